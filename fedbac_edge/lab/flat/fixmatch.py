"""FedAvg whose clients learn by FixMatch (arXiv 2001.07685).

For a labelled batch (x, y) and an unlabelled batch u of mu times its size, a a weak and A a strong view:

    l_s = CE(p(a(x)), y)
    q = p(a(u)),  l_u = mean over u of  1[max q >= tau] CE(p(A(u)), argmax q)      tau = 0.95
    loss = l_s + lambda_u l_u                                                         lambda_u = 1

Here mu is 1, not 7, so that each method passes equally often over a client's unlabelled data: a step of the
partially labelled clients sees one batch of each kind. A client with one kind of data has the loss of that
kind; clients weigh as many samples as they have. Pseudo-labels come from the evaluation mode of the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Annotated

import msgspec
import numpy as np

from fedbac_edge.lab.flat.augmentation import strong, weak
from fedbac_edge.lab.flat.dealing import deal
from fedbac_edge.lab.flat.method import Answer, Bench, Client
from fedbac_edge.lab.flat.single import SingleModel
from fedbac_edge.learning.losses import cross_entropy, softmax
from fedbac_edge.learning.network import trainee
from fedbac_edge.learning.normalise import Labels, normalise
from fedbac_edge.parts.part import FloatArray, Part


class FixMatch(SingleModel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings with the paper's names."""

    tau: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.95
    lambda_u: Annotated[float, msgspec.Meta(ge=0)] = 1.0

    def learn(self, bench: Bench, parts: Mapping[str, Part], client: Client, round: int) -> Answer:
        """FixMatch from the global model on."""
        training, rng = bench.training, bench.random("client", round, client.number)
        labelled, unlabelled = client.labelled, client.unlabelled
        total, steps = 0.0, 0
        with closing(trainee(bench.model, parts["model"], backend=bench.backend)) as w:
            for here, there in deal(
                len(labelled), len(unlabelled), training.epochs, training.batch_size, rng
            ):
                steps += 1
                x = normalise(weak(labelled.x[here], rng), bench.normalisation)
                sure, pseudo = np.zeros(0, np.intp), np.zeros(0, np.int64)
                if len(there):
                    q = softmax(w.logits(normalise(weak(unlabelled.x[there], rng), bench.normalisation)))
                    sure = np.flatnonzero(q.max(axis=1) >= self.tau)
                    pseudo = q.argmax(axis=1)[sure]
                if not len(here) + len(sure):
                    continue
                u = normalise(strong(unlabelled.x[there][sure], rng), bench.normalisation)
                logits = w.forward(np.concatenate([x, u]))
                loss, gradient = consistency(
                    logits, labelled.y[here], pseudo, self.lambda_u * len(sure) / max(len(there), 1)
                )
                w.backward(gradient)
                w.step(training.learning_rate, training.momentum, 0.0, training.clip_norm)
                total += loss
            weight = len(labelled) + len(unlabelled)
            return Answer({"model": w.dump()}, {"model": weight}, total / max(steps, 1), steps)


def consistency(logits: FloatArray, y: Labels, pseudo: Labels, factor: float) -> tuple[float, FloatArray]:
    """CE of the first rows against `y` + factor * CE of the others against `pseudo`; with its gradient."""
    gradient = np.empty_like(logits)
    loss = 0.0
    if len(y):
        loss, gradient[: len(y)] = cross_entropy(logits[: len(y)], y)
    if len(pseudo):
        more, steep = cross_entropy(logits[len(y) :], pseudo)
        loss += factor * more
        gradient[len(y) :] = factor * steep
    return loss, gradient


METHOD = FixMatch
