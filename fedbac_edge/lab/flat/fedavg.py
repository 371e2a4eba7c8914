"""FedAvg (arXiv 1602.05629), and FedProx (arXiv 1812.06127) when mu is above zero, on labelled samples only.

    local:   min_w  CE(f(x; w), y) + mu/2 ||w - w_global||^2        over the client's labelled samples
    server:  w_global = sum_k n_k w_k / sum_k n_k                     n_k: labelled samples of client k

Clients without labels are not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Annotated

import msgspec

from fedbac_edge.lab.flat.method import Answer, Bench, Client, Holding
from fedbac_edge.lab.flat.single import SingleModel
from fedbac_edge.learning.batches import batches
from fedbac_edge.learning.losses import cross_entropy
from fedbac_edge.learning.network import trainee
from fedbac_edge.learning.normalise import normalise
from fedbac_edge.parts.part import Part


class FedAvg(SingleModel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`mu`: weight of the proximal term; 0 is FedAvg."""

    mu: Annotated[float, msgspec.Meta(ge=0)] = 0.0

    def draws(self, holding: Holding) -> bool:
        """Clients with labels."""
        return holding.labelled > 0

    def learn(self, bench: Bench, parts: Mapping[str, Part], client: Client, round: int) -> Answer:
        """Minimise the local objective from the global model on."""
        training, data = bench.training, client.labelled
        w_global = parts["model"]
        seed = bench.random("client", round, client.number).integers(0, 2**32, 4).tolist()
        total, steps = 0.0, 0
        with closing(trainee(bench.model, w_global, backend=bench.backend)) as w:
            for _, chosen in batches(len(data), training.epochs, training.batch_size, seed):
                logits = w.forward(normalise(data.x[chosen], bench.normalisation))
                loss, gradient = cross_entropy(logits, data.y[chosen])
                w.backward(gradient)
                if self.mu:
                    w.pull(w_global, self.mu)  # the gradient of mu/2 ||w - w_global||^2
                w.step(training.learning_rate, training.momentum, 0.0, training.clip_norm)
                total, steps = total + loss, steps + 1
            return Answer({"model": w.dump()}, {"model": len(data)}, total / max(steps, 1), steps)


METHOD = FedAvg
