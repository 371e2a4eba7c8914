"""RSCFed: random sampling consensus (arXiv 2203.13993, CVPR 2022).

    labelled:    CE(p(a(x); w), y)
    unlabelled:  q = Sharpen(p(a(u); w_teacher), T),  lambda_u * ||p(a'(u); w) - q||^2     T = 0.5, 0.02
                 after each step  w_teacher = d w_teacher + (1 - d) w                         d = 0.999
    server:      `subsets` times: draw a subset of `subset` clients, average them by their samples n_k, and
                 again with n_k exp(-beta ||w_k - average|| / n_k); the new model is the mean of the subsets'

Differences. The subsets are drawn from the round's clients, so that a round costs what it costs for the other
methods (the paper trains 3 times 5 clients). The teacher starts each round as the global model: clients keep
nothing. beta is relative: it divides the exponent by its mean over the subset, since the authors' 10,000 fits
the size of their network only. One learning rate for all clients, as for every method here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Annotated

import msgspec
import numpy as np

from fedbac_edge.lab.flat.augmentation import weak
from fedbac_edge.lab.flat.dealing import deal
from fedbac_edge.lab.flat.method import Answer, Bench, Client, State
from fedbac_edge.lab.flat.mixmatch import sharpen
from fedbac_edge.lab.flat.single import SingleModel
from fedbac_edge.learning.forward import logits_of
from fedbac_edge.learning.losses import cross_entropy, softmax, squared_probabilities
from fedbac_edge.learning.network import trainee
from fedbac_edge.learning.normalise import Labels, normalise
from fedbac_edge.parts.aggregation import weighted_mean
from fedbac_edge.parts.part import FloatArray, Part, distance

Count = Annotated[int, msgspec.Meta(ge=1)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]


class RSCFed(SingleModel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings with the paper's names."""

    subsets: Count = 3
    subset: Count = 5
    beta: NonNegative = 1.0
    temperature: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    lambda_u: NonNegative = 0.02
    ema: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.999

    def learn(self, bench: Bench, parts: Mapping[str, Part], client: Client, round: int) -> Answer:
        """Cross-entropy on labels, the mean teacher on the rest."""
        training, rng = bench.training, bench.random("client", round, client.number)
        labelled, unlabelled = client.labelled, client.unlabelled
        teacher = {name: tensor.copy() for name, tensor in parts["model"].items()}
        total, steps = 0.0, 0
        with closing(trainee(bench.model, parts["model"], backend=bench.backend)) as w:
            for here, there in deal(
                len(labelled), len(unlabelled), training.epochs, training.batch_size, rng
            ):
                x = normalise(weak(labelled.x[here], rng), bench.normalisation)
                u = unlabelled.x[there]
                first, second = (normalise(weak(u, rng), bench.normalisation) for _ in range(2))
                q = np.zeros((0, bench.model.classes), np.float32)
                if len(there):
                    guessed = logits_of(bench.model, teacher, backend=bench.backend)(first)
                    q = sharpen(softmax(guessed), self.temperature)
                logits = w.forward(np.concatenate([x, second]))
                loss, gradient = taught(logits, labelled.y[here], q, self.lambda_u)
                w.backward(gradient)
                w.step(training.learning_rate, training.momentum, 0.0, training.clip_norm)
                if len(unlabelled):
                    follow(teacher, w.dump(), self.ema)
                total, steps = total + loss, steps + 1
            weight = len(labelled) + len(unlabelled)
            return Answer({"model": w.dump()}, {"model": weight}, total / max(steps, 1), steps)

    def fold(self, bench: Bench, state: State, answers: Mapping[int, Answer], round: int) -> State:
        """The mean of the sub-consensus models."""
        numbers = sorted(answers)
        if not numbers:
            return dict(state)
        rng = bench.random("sub-consensus", round)
        found = []
        for _ in range(self.subsets):
            drawn = np.sort(rng.choice(numbers, min(self.subset, len(numbers)), replace=False))
            members = [answers[int(number)] for number in drawn]
            found.append(
                sub_consensus(
                    [member.parts["model"] for member in members],
                    [member.weights["model"] for member in members],
                    self.beta,
                )
            )
        mean = weighted_mean((part, 1.0) for part in found)
        assert mean is not None
        return {"model": mean}


def taught(logits: FloatArray, y: Labels, q: FloatArray, lambda_u: float) -> tuple[float, FloatArray]:
    """CE of the first rows against `y` + lambda_u * squares, summed over classes, of the others against q."""
    gradient = np.empty_like(logits)
    loss = 0.0
    if len(y):
        loss, gradient[: len(y)] = cross_entropy(logits[: len(y)], y)
    if len(q):
        classes = logits.shape[1]
        squares, steep = squared_probabilities(logits[len(y) :], q)
        loss += lambda_u * classes * squares
        gradient[len(y) :] = lambda_u * classes * steep
    return loss, gradient


def follow(teacher: Part, student: Part, decay: float) -> None:
    """teacher = decay * teacher + (1 - decay) * student, in place."""
    for name, tensor in teacher.items():
        tensor *= np.float32(decay)
        tensor += np.float32(1 - decay) * student[name]


def sub_consensus(parts: Sequence[Part], samples: Sequence[float], beta: float) -> Part:
    """The mean by samples, and again by samples * exp(-beta * d / mean d), d = ||w_k - mean|| / n_k."""
    first = weighted_mean(zip(parts, samples, strict=True))
    if first is None:
        raise ValueError("a sub-consensus needs clients with samples")
    d = np.array([distance(part, first) / n for part, n in zip(parts, samples, strict=True)])
    scale = d.mean() if d.mean() > 0 else 1.0
    weights = np.asarray(samples) * np.exp(-beta * d / scale)
    consensus = weighted_mean(zip(parts, weights.tolist(), strict=True))
    assert consensus is not None
    return consensus


METHOD = RSCFed
