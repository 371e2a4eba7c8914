"""FedMatch, labels at the clients (arXiv 2006.12097): w = sigma + psi, and helpers that agree.

    sigma, on labels, psi fixed:      lambda_s CE(p(x; sigma + psi), y)                         lambda_s = 10
    psi, on the rest, sigma fixed, over the u with max p(u) >= tau:                               tau = 0.75
        lambda_i / H sum_h KL(p(u; sigma + psi_h) || p(u))  +  lambda_a CE(p(A(u)), y^)      both 0.01
        + lambda_2 ||sigma - psi||^2 + lambda_1 ||psi||_1                                    10 and 0.0001
    y^ = the class with most votes of the client's and the H helpers' predictions (ties: the lowest class)

Every `every` rounds a client that the server has seen gets as helpers the psi of the H = 2 clients whose
models answer most like its own on one fixed picture of noise; in other rounds it labels alone, as in the
authors' code. psi starts at a fifth of sigma's start.

Differences. The learning rate is divided by lambda_s, and a bound of the gradient multiplied by it, which
gives cross-entropy the steps that it has in every other method; the paper's own rate is 0.001. sigma and psi
learn in turns of an epoch each, not of a batch, with fresh momentum. sigma weighs a client's labelled samples
and psi its unlabelled ones: a client without any leaves it as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Annotated

import msgspec
import numpy as np

from fedbac_edge.lab.flat.augmentation import strong
from fedbac_edge.lab.flat.method import Answer, Bench, Client, Holding, State, View, mean_by_role
from fedbac_edge.lab.flat.single import SingleModel
from fedbac_edge.lab.flat.study import Training
from fedbac_edge.learning.batches import batches
from fedbac_edge.learning.forward import Logits, logits_of
from fedbac_edge.learning.losses import cross_entropy, softmax
from fedbac_edge.learning.network import Trainee, trainee
from fedbac_edge.learning.normalise import normalise
from fedbac_edge.parts.part import FloatArray, Part

Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
PSI_START = 0.2


class FedMatch(SingleModel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings with the paper's names; `helpers` is H."""

    tau: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.75
    helpers: Count = 2
    every: Count = 10
    lambda_s: Positive = 10.0
    lambda_i: NonNegative = 1e-2
    lambda_a: NonNegative = 1e-2
    lambda_2: NonNegative = 10.0
    lambda_1: NonNegative = 1e-4

    def begin(self, bench: Bench) -> State:
        """sigma, psi and their sum."""
        sigma = bench.model.init(bench.random("init", "model"))
        psi = {name: np.float32(PSI_START) * tensor for name, tensor in sigma.items()}
        return {"sigma": sigma, "psi": psi, "model": plus(sigma, psi)}

    def download(self, bench: Bench, state: State, holding: Holding, round: int) -> Mapping[str, Part]:
        """sigma, psi and, when it is time, the helpers' psi."""
        sent = {"sigma": state["sigma"], "psi": state["psi"]}
        if round % self.every == 0:
            for place, number in enumerate(alike(state, holding.number)[: self.helpers]):
                sent[f"helper-{place}"] = state[f"psi-{number}"]
        return sent

    def learn(self, bench: Bench, parts: Mapping[str, Part], client: Client, round: int) -> Answer:
        """An epoch of sigma, an epoch of psi, and so on."""
        sigma, psi = parts["sigma"], parts["psi"]
        helpers = [parts[name] for name in sorted(parts) if name.startswith("helper")]
        rng = bench.random("client", round, client.number)
        losses, steps = [0.0], 0
        for _ in range(bench.training.epochs):
            if len(client.labelled):
                sigma, loss, more = self.supervised(bench, sigma, psi, client, rng)
                losses.append(loss)
                steps += more
            if len(client.unlabelled):
                voters = [logits_of(bench.model, plus(sigma, h), backend=bench.backend) for h in helpers]
                psi, more = self.unsupervised(bench, sigma, psi, voters, client, rng)
                steps += more
        weights = {"sigma": len(client.labelled), "psi": len(client.unlabelled)}
        trained = {"sigma": sigma, "psi": psi}
        return Answer({role: trained[role] for role in weights if weights[role]}, weights, losses[-1], steps)

    def supervised(
        self, bench: Bench, sigma: Part, psi: Part, client: Client, rng: np.random.Generator
    ) -> tuple[Part, float, int]:
        """One epoch over the labelled samples: (sigma, mean cross-entropy, steps)."""
        training, data = bench.training, client.labelled
        total, steps = 0.0, 0
        with closing(trainee(bench.model, plus(sigma, psi), backend=bench.backend)) as w:
            for _, chosen in batches(len(data), 1, training.batch_size, _seed(rng)):
                logits = w.forward(normalise(data.x[chosen], bench.normalisation))
                loss, gradient = cross_entropy(logits, data.y[chosen])
                w.backward(np.float32(self.lambda_s) * gradient)
                self.step(w, training)
                total, steps = total + loss, steps + 1
            return minus(w.dump(), psi), total / steps, steps

    def unsupervised(
        self,
        bench: Bench,
        sigma: Part,
        psi: Part,
        voters: list[Logits],
        client: Client,
        rng: np.random.Generator,
    ) -> tuple[Part, int]:
        """One epoch over the unlabelled samples: (psi, steps)."""
        training, data = bench.training, client.unlabelled
        steps = 0
        with closing(trainee(bench.model, plus(sigma, psi), backend=bench.backend)) as w:
            for _, chosen in batches(len(data), 1, training.batch_size, _seed(rng)):
                u = data.x[chosen]
                p = softmax(w.logits(normalise(u, bench.normalisation)))
                sure = np.flatnonzero(p.max(axis=1) >= self.tau)
                if len(sure):
                    plain = normalise(u[sure], bench.normalisation)
                    opinions = [softmax(voter(plain)) for voter in voters]
                    hard = normalise(strong(u[sure], rng), bench.normalisation)
                    logits = w.forward(np.concatenate([hard, plain]))
                    w.backward(self.agreement(logits, p[sure], opinions))
                weights = w.dump()
                w.pull(minus(weights, self.penalty_slope(sigma, minus(weights, sigma))), 1.0)
                self.step(w, training)
                steps += 1
            return minus(w.dump(), sigma), steps

    def step(self, w: Trainee, training: Training) -> None:
        """SGD at the rate, and under the bound of the gradient, that cross-entropy has in other methods."""
        bound = training.clip_norm and training.clip_norm * self.lambda_s
        w.step(training.learning_rate / self.lambda_s, training.momentum, 0.0, bound)

    def agreement(self, logits: FloatArray, own: FloatArray, opinions: list[FloatArray]) -> FloatArray:
        """The gradient of lambda_a CE and lambda_i KL by the logits of (hard views, plain views)."""
        count = len(own)
        gradient = np.zeros_like(logits)
        _, steep = cross_entropy(logits[:count], vote([own, *opinions]))
        gradient[:count] = np.float32(self.lambda_a) * steep
        if opinions:
            # d KL(q || softmax(z)) / dz = softmax(z) - q, and the mean over helpers is that of their q.
            difference = softmax(logits[count:]) - np.mean(opinions, axis=0)
            gradient[count:] = np.float32(self.lambda_i / count) * difference
        return gradient

    def penalty_slope(self, sigma: Part, psi: Part) -> Part:
        """The gradient by psi of lambda_2 ||sigma - psi||^2 + lambda_1 ||psi||_1."""
        return {
            name: np.asarray(
                2 * self.lambda_2 * (tensor - sigma[name]) + self.lambda_1 * np.sign(tensor), np.float32
            )
            for name, tensor in psi.items()
        }

    def fold(self, bench: Bench, state: State, answers: Mapping[int, Answer], round: int) -> State:
        """Means of sigma and psi; each client's psi and its model's answer to noise, for its neighbours."""
        folded = mean_by_role(state, answers)
        noise = bench.random("noise").integers(0, 256, (1, *_picture(bench)), dtype=np.uint8)
        x = normalise(noise, bench.normalisation)
        for number, answer in answers.items():
            psi = answer.parts.get("psi", state["psi"])
            own = plus(answer.parts.get("sigma", state["sigma"]), psi)
            folded[f"psi-{number}"] = psi
            folded[f"answer-{number}"] = {"logits": logits_of(bench.model, own, backend=bench.backend)(x)[0]}
        folded["model"] = plus(folded["sigma"], folded["psi"])
        return folded

    def views(self, state: State) -> Mapping[str, View]:
        """sigma + psi."""
        return {"model": (("model", 1.0),)}


def vote(opinions: list[FloatArray]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The class with most first places among predictions (N, classes); of equals the lowest."""
    votes = sum(np.eye(opinion.shape[1], dtype=np.int64)[opinion.argmax(axis=1)] for opinion in opinions)
    winners: np.ndarray[tuple[int], np.dtype[np.int64]] = np.asarray(votes).argmax(axis=1).astype(np.int64)
    return winners


def alike(state: State, number: int) -> list[int]:
    """Other clients that the server has seen, those that answered most like this one first."""
    seen = {int(name[7:]): part["logits"] for name, part in state.items() if name.startswith("answer-")}
    own = seen.pop(number, None)
    if own is None:
        return []
    return sorted(seen, key=lambda other: (float(np.square(seen[other] - own).sum()), other))


def plus(one: Part, other: Part) -> Part:
    """The sum of two parts."""
    return {name: tensor + other[name] for name, tensor in one.items()}


def minus(one: Part, other: Part) -> Part:
    """The difference of two parts."""
    return {name: tensor - other[name] for name, tensor in one.items()}


def _seed(rng: np.random.Generator) -> list[int]:
    return [int(word) for word in rng.integers(0, 2**32, 4)]


def _picture(bench: Bench) -> tuple[int, int, int]:
    channels, height, width = bench.model.input_shape
    return height, width, channels


METHOD = FedMatch
