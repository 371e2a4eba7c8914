"""FedAvg whose clients learn by MixMatch (arXiv 1905.02249).

For a labelled batch (x, y) and an unlabelled batch u, with A a random weak view:

    x^ = A(x);   u^_k = A(u), k = 1 .. K                                          K = 2
    q = Sharpen(1/K sum_k p(u^_k), T),   Sharpen(p, T)_c = p_c^(1/T) / sum p^(1/T)    T = 0.5
    W = shuffle of all (x^, y) and (u^_k, q)
    MixUp(a, b): l ~ Beta(alpha, alpha), l' = max(l, 1 - l), l' a + (1 - l') b      alpha = 0.75
    X' = MixUp(x^, W),  U' = MixUp(u^, the rest of W)
    loss = CE on X' + lambda_u * ||p - q||^2 / classes on U', means over samples

lambda_u grows linearly over the rounds. Differences from the paper: guesses come from the evaluation mode of
the network, l is drawn for each sample, lambda_u is 7.5 and not 75 (the learning rate is 0.1 and the paper's
0.002), and the average of weights is kept by the server: after a round of n steps per client (mean), average
= d^n average + (1 - d^n) model with d = 0.999. A client with one kind of data has the loss of that kind.
Clients weigh as many samples as they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from statistics import fmean
from typing import Annotated

import msgspec
import numpy as np

from fedbac_edge.lab.flat.augmentation import weak
from fedbac_edge.lab.flat.dealing import deal
from fedbac_edge.lab.flat.method import Answer, Bench, Client, State, View, mean_by_role
from fedbac_edge.lab.flat.single import SingleModel
from fedbac_edge.learning.losses import soft_cross_entropy, softmax, squared_probabilities
from fedbac_edge.learning.network import Trainee, trainee
from fedbac_edge.learning.normalise import normalise
from fedbac_edge.parts.part import FloatArray, Part

Positive = Annotated[float, msgspec.Meta(gt=0)]
Decay = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class MixMatch(SingleModel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings with the paper's names."""

    views_k: Annotated[int, msgspec.Meta(ge=1)] = 2
    temperature: Positive = 0.5
    alpha: Positive = 0.75
    lambda_u: Annotated[float, msgspec.Meta(ge=0)] = 7.5
    ema: Decay = 0.999

    def begin(self, bench: Bench) -> State:
        """The model and the average of its weights."""
        first = bench.model.init(bench.random("init", "model"))
        return {"model": first, "average": first}

    def learn(self, bench: Bench, parts: Mapping[str, Part], client: Client, round: int) -> Answer:
        """MixMatch from the global model on."""
        training, rng = bench.training, bench.random("client", round, client.number)
        labelled, unlabelled = client.labelled, client.unlabelled
        lambda_u = self.lambda_u * round / bench.rounds
        classes = np.eye(bench.model.classes, dtype=np.float32)
        total, steps = 0.0, 0
        with closing(trainee(bench.model, parts["model"], backend=bench.backend)) as w:
            for here, there in deal(
                len(labelled), len(unlabelled), training.epochs, training.batch_size, rng
            ):
                x = normalise(weak(labelled.x[here], rng), bench.normalisation)
                y = classes[labelled.y[here]]
                views = [
                    normalise(weak(unlabelled.x[there], rng), bench.normalisation)
                    for _ in range(self.views_k)
                ]
                q = self.guess(w, views) if len(there) else classes[:0]
                mixed, targets = mix_up(
                    np.concatenate([x, *views]),
                    np.concatenate([y, *[q] * self.views_k]),
                    self.alpha,
                    rng,
                )
                loss, gradient = match(w.forward(mixed), targets, len(x), lambda_u)
                w.backward(gradient)
                w.step(training.learning_rate, training.momentum, 0.0, training.clip_norm)
                total, steps = total + loss, steps + 1
            weight = len(labelled) + len(unlabelled)
            return Answer({"model": w.dump()}, {"model": weight}, total / max(steps, 1), steps)

    def guess(self, w: Trainee, views: list[FloatArray]) -> FloatArray:
        """q (N, classes): the sharpened mean prediction over the views."""
        return sharpen(np.mean([softmax(w.logits(view)) for view in views], axis=0), self.temperature)

    def fold(self, bench: Bench, state: State, answers: Mapping[int, Answer], round: int) -> State:
        """The weighted mean, and the average over rounds."""
        folded = mean_by_role(state, answers)
        if answers:
            d = np.float32(self.ema ** fmean(answer.steps for answer in answers.values()))
            folded["average"] = {
                name: d * old + (1 - d) * folded["model"][name] for name, old in state["average"].items()
            }
        return folded

    def views(self, state: State) -> Mapping[str, View]:
        """The model as it is, and the average of its weights."""
        return {"model": (("model", 1.0),), "average": (("average", 1.0),)}


def sharpen(p: FloatArray, temperature: float) -> FloatArray:
    """Rows of probabilities (N, classes), made steeper below temperature 1."""
    steep = np.power(p, np.float32(1 / temperature))
    sharp: FloatArray = steep / steep.sum(axis=1, keepdims=True)
    return sharp


def mix_up(
    x: FloatArray, q: FloatArray, alpha: float, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Each sample (N, C, H, W) and target (N, classes) with those of another, the own share above half."""
    partner = rng.permutation(len(x))
    share = rng.beta(alpha, alpha, len(x)).astype(np.float32)
    share = np.maximum(share, 1 - share)
    wide = share[:, None, None, None]
    return (
        wide * x + (1 - wide) * x[partner],
        share[:, None] * q + (1 - share[:, None]) * q[partner],
    )


def match(logits: FloatArray, q: FloatArray, labelled: int, lambda_u: float) -> tuple[float, FloatArray]:
    """The loss and its gradient: cross-entropy of the first `labelled` rows, squares for the rest."""
    gradient = np.empty_like(logits)
    loss = 0.0
    if labelled:
        loss, gradient[:labelled] = soft_cross_entropy(logits[:labelled], q[:labelled])
    if len(logits) > labelled:
        squares, steep = squared_probabilities(logits[labelled:], q[labelled:])
        loss += lambda_u * squares
        gradient[labelled:] = lambda_u * steep
    return loss, gradient


METHOD = MixMatch
