"""Samples per second of a device's round of HASSLE, path by path, beside separate eager networks.

The eager round is what one writes down from the paper: torch modules, autograd, torch.optim.SGD, and the
frozen models asked again at every step. A sample counts once for every step that it is part of. Seconds are
those of this process on one core (`time.process_time`), so that what it waits for on a busy machine is not
counted; paths take turns, and a ratio is the median over rounds of the ratio inside one round.

    python benchmarks/hassle_training.py [--labelled 250] [--unlabelled 2250] [--rounds 5] [--resnet]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from fedbac_edge.datasets.samples import Samples
from fedbac_edge.learning.batches import batches, step_count
from fedbac_edge.learning.hassle import R_S, R_U, W_S, W_U, HassleSettings, train_hassle
from fedbac_edge.learning.local import best_backend
from fedbac_edge.learning.normalise import Images, Labels, normalise
from fedbac_edge.learning.threads import torch_threads
from fedbac_edge.models.additive import load, network
from fedbac_edge.models.catalog import architecture, shrunk
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import Part
from fedbac_edge.vocabulary.training import Backend, Normalisation

NAMES: dict[Backend, str] = {
    "reference": "frozen logits once, plain torch",
    "compiled": "frozen logits once, compiled kernel",
}


class EagerRound:
    """A partially labelled device, four modules, every loss from its definition at every step."""

    def __init__(
        self,
        models: dict[str, Architecture],
        parts: dict[str, Part],
        settings: HassleSettings,
        normalisation: Normalisation,
    ) -> None:
        self.models, self.parts = models, parts
        self.s, self.normalisation = settings, normalisation

    def network(self, role: str) -> nn.Module:
        """A role's module, as downloaded."""
        module = network(self.models[role])
        load(module, self.parts[role])
        return module

    def residual(self, role: str, own: str, other: str, x: Images, y: Labels, tau: float) -> None:
        """KL to the complement, and cross-entropy beside the frozen dual."""
        r, f_own, f_other = self.network(role), self.network(own).eval(), self.network(other).eval()

        def objective(images: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                beside, there = f_own(images), f_other(images)
            logits = r(images)
            kl = functional.kl_div(
                functional.log_softmax(logits / tau, dim=1),
                functional.softmax((there - beside) / tau, dim=1),
                reduction="batchmean",
            )
            return kl + self.s.lam * functional.cross_entropy(beside + logits, labels)

        steps = self.s.residual_steps
        self.descend(r, x, y, steps, self.s.residual_weight_decay, objective)

    def dual(self, own: str, other: str, x: Images, y: Labels) -> None:
        """Cross-entropy, and the way to the other dual."""
        w, there = self.network(own), dict(self.network(other).named_parameters())

        def objective(images: Tensor, labels: Tensor) -> Tensor:
            away = [(p - there[name].detach()).square().sum() for name, p in w.named_parameters()]
            return functional.cross_entropy(w(images), labels) + self.s.gamma * torch.stack(away).sum()

        steps = step_count(len(y), self.s.epochs, self.s.batch_size)
        self.descend(w, x, y, steps, self.s.weight_decay, objective)

    def descend(
        self,
        module: nn.Module,
        x: Images,
        y: Labels,
        steps: int,
        decay: float,
        objective: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        """So many steps of SGD."""
        optimiser = torch.optim.SGD(
            module.parameters(), self.s.learning_rate, self.s.momentum, weight_decay=decay
        )
        module.train()
        stream = batches(len(y), steps, self.s.batch_size, [1])
        for _, (_, chosen) in zip(range(steps), stream, strict=False):
            optimiser.zero_grad()
            images = torch.from_numpy(normalise(x[chosen], self.normalisation))
            objective(images, torch.from_numpy(y[chosen])).backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    def pseudo_labels(self, x: Images) -> Labels:
        """argmax[f(x; w_S) + f(x; r_S)]."""
        w, r, found = self.network(W_S).eval(), self.network(R_S).eval(), []
        with torch.no_grad():
            for start in range(0, len(x), self.s.batch_size):
                images = torch.from_numpy(normalise(x[start : start + self.s.batch_size], self.normalisation))
                found.append((w(images) + r(images)).argmax(dim=1).numpy())
        return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--labelled", type=int, default=250)
    parser.add_argument("--unlabelled", type=int, default=2250)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="of each residual")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--resnet", action="store_true", help="ResNet-8 on RGB 32x32 instead of LeNet on gray 28x28"
    )
    options = parser.parse_args()

    shape = (3, 32, 32) if options.resnet else (1, 28, 28)
    model = architecture("resnet8" if options.resnet else "lenet", shape, 10)
    models = {W_S: model, W_U: model, R_S: shrunk(model, 4), R_U: shrunk(model, 4)}
    rng = np.random.default_rng(0)
    parts = {role: described.init(rng) for role, described in models.items()}
    settings = HassleSettings(epochs=options.epochs, residual_steps=options.steps)
    normalisation = Normalisation(mean=(0.3,) * shape[0], std=(0.35,) * shape[0])

    def samples(count: int) -> Samples:
        x = rng.integers(0, 256, (count, *shape[1:], shape[0]), dtype=np.uint8)
        return Samples(x, rng.integers(0, 10, count))

    labelled, unlabelled = samples(options.labelled), samples(options.unlabelled)
    eager = EagerRound(models, parts, settings, normalisation)
    backends: list[Backend] = ["reference"]
    if best_backend(model) == "compiled":
        backends.append("compiled")

    def ours(backend: Backend, which: str) -> None:
        # A round of residuals alone is a part of the objective; of duals alone, one without residuals.
        asked = replace(settings, align_residuals=which != "duals")
        train_hassle(
            models,
            parts,
            labelled,
            unlabelled,
            asked,
            normalisation,
            [1],
            stage="residuals" if which == "residuals" else "whole",
            backend=backend,
        )

    def theirs(which: str) -> None:
        with torch_threads(1):
            y = eager.pseudo_labels(unlabelled.x)
            if which != "duals":
                eager.residual(R_S, W_S, W_U, labelled.x, labelled.y, settings.tau_s)
                eager.residual(R_U, W_U, W_S, unlabelled.x, y, settings.tau_u)
            if which != "residuals":
                eager.dual(W_S, W_U, labelled.x, labelled.y)
                eager.dual(W_U, W_S, unlabelled.x, y)

    def seen(count: int, steps: int) -> int:
        """Samples in so many steps; the last batch of a pass is shorter."""
        size = settings.batch_size
        passes, rest = divmod(steps, step_count(count, 1, size))
        return passes * count + min(count, rest * size)

    residuals = seen(len(labelled), options.steps) + seen(len(unlabelled), options.steps)
    duals = options.epochs * (len(labelled) + len(unlabelled))
    for which, count in (("residuals", residuals), ("duals", duals), ("a whole round", residuals + duals)):
        work: dict[str, Callable[[], None]] = {"separate eager networks": lambda w=which: theirs(w)}  # type: ignore[misc]
        for backend in backends:
            work[NAMES[backend]] = lambda b=backend, w=which: ours(b, w)  # type: ignore[misc]
        compare(f"{which}, {shape}, 1 thread", work, count, options.rounds)


def compare(title: str, work: dict[str, Callable[[], None]], samples: int, rounds: int) -> None:
    """Time every piece of work once per round, and print rates and ratios to the first."""
    for run in work.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, run in work.items():
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
    first = next(iter(seconds.values()))
    print(f"\n{title}")
    for name, taken in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(first, taken, strict=True))
        print(f"  {name:42} {samples / statistics.median(taken):9,.0f} samples/s   x {ratio:5.2f}")


if __name__ == "__main__":
    main()
