"""HASSLE with SUMA, one device's round: "Federated Semi-Supervised Learning with Annotation Heterogeneity",
arXiv 2303.02445.

Symbols: w_S and w_U are the dual models (supervised, unsupervised), r_S and r_U their compact residuals, f
the logits, sigma the softmax. Everything that is frozen or pulled towards is as downloaded:

    pseudo-labels   y^ = argmax[f(x; w_S) + f(x; r_S)]
    residuals       KL(sigma(c / tau) || sigma(f(x; r) / tau)) + lambda CE(f(x; w) + f(x; r), y)
                    r_S: c = f(x; w_U) - f(x; w_S), w = w_S, labelled samples
                    r_U: c = f(x; w_S) - f(x; w_U), w = w_U, pseudo-labelled samples, y^ for y
                    where c and f(x; w) are constants
    duals           w_S: CE(f(x; w_S), y)  + gamma ||w_S - w_U^(t-1)||^2
                    w_U: CE(f(x; w_U), y^) + gamma ||w_U - w_S^(t-1)||^2

No line reads what another one trains, so that each frozen model is asked once for all samples. A round may
come in two exchanges, residuals and then duals (`Stage`): the second one downloads w^(t-1) and r^t, and its
pseudo-labels are those of f(x; w_S^(t-1)) + f(x; r_S^t).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets.samples import Samples
from fedbac_edge.learning.batches import batches, step_count
from fedbac_edge.learning.forward import logits_of
from fedbac_edge.learning.inputs import check_data, check_part
from fedbac_edge.learning.losses import entropy, softmax
from fedbac_edge.learning.network import trainee
from fedbac_edge.learning.normalise import Images, Labels, normalise
from fedbac_edge.learning.outcomes import Cancelled
from fedbac_edge.learning.threads import torch_threads
from fedbac_edge.methods.hassle import R_S, R_U, W_S, W_U, Stage
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import FloatArray, Part
from fedbac_edge.vocabulary.training import Backend, Count, NonNegative, Normalisation, Positive

CHUNK = 512
"""Images at once where nothing is trained."""

Frozen = Callable[[str], FloatArray]
"""Role -> logits (N, classes) of the downloaded model over a device's samples of one kind."""


class HassleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The round's optimisation. Defaults: the paper's, and where its text is silent the authors' code's."""

    epochs: Count = 10
    """Of the duals."""
    batch_size: Count = 128
    learning_rate: Positive = 0.1
    """This round's, of all four."""
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.9
    weight_decay: NonNegative = 0.0
    """Of the duals."""
    residual_weight_decay: NonNegative = 1e-4
    residual_steps: Count = 100
    gamma: NonNegative = 0.001
    """Of the proximity alignment; 0: none."""
    lam: NonNegative = 1.0
    """lambda of the residuals' cross-entropy."""
    tau_s: Positive = 2.0
    tau_u: Positive = 1.0
    """Temperatures of r_S and of r_U."""
    teacher: Literal["dual", "with-residual"] = "dual"
    """The complement's first term: the other dual alone, or with its residual."""
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Samples whose pseudo-label is less probable are left out of the round; 0: none."""
    align_residuals: bool = True
    """False: the paper's models without residuals. They are neither read nor trained, SM is f(w_S), UM is
    f(w_U), and y^ = argmax f(x; w_S). With gamma = 0 as well, the duals share nothing but y^."""
    clip_norm: Positive | None = None
    """The longest gradient of a whole objective, before weight decay; None: any."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "residual_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("learning_rate", "tau_s", "tau_u"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above zero and finite, not {getattr(self, name)}")
        for name in ("weight_decay", "residual_weight_decay", "gamma", "lam"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be zero or above and finite, not {getattr(self, name)}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), not {self.momentum}")
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"confidence is a probability, not {self.confidence}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm must be above zero, not {self.clip_norm}")


@dataclass(frozen=True)
class HassleUpdate:
    """What a round leaves: the roles that were trained, and no others.

    `labelled` and `unlabelled` count the samples trained on, each once: the weights of w_S and r_S, and of
    w_U and r_U. `losses`: role -> mean over its last pass, each batch before its step; of the duals the
    cross-entropy alone.
    """

    parts: dict[str, Part]
    labelled: int
    unlabelled: int
    losses: dict[str, float]


@dataclass(frozen=True)
class _Side:
    """A dual and its residual: the samples and labels that they learn from, and what they learn beside."""

    dual: str
    residual: str
    other: str
    """The other side's dual ..."""
    other_residual: str
    """... and residual."""
    tau: float
    x: Images
    y: Labels
    f: Frozen


@dataclass(frozen=True)
class _Round:
    models: Mapping[str, Architecture]
    downloaded: Mapping[str, Part]
    settings: HassleSettings
    normalisation: Normalisation
    seed: Sequence[int]
    device: str
    backend: Backend | None
    cancelled: Callable[[], bool]

    def steps(self, role: str, samples: int, most: int) -> Iterator[tuple[bool, npt.NDArray[np.intp]]]:
        """(in the last pass?, sample indices) of `most` steps; passes are shuffled for each role anew."""
        size = self.settings.batch_size
        passes = -(-most // step_count(samples, 1, size))
        stream = [*self.seed, 1 + (W_S, W_U, R_S, R_U).index(role)]
        for epoch, chosen in islice(batches(samples, passes, size, stream), most):
            self.stop_if_cancelled()
            yield epoch == passes - 1, chosen

    def frozen(self, x: Images) -> Frozen:
        """Logits of downloaded models on `x`, each made when first asked for, in evaluation mode."""

        @cache
        def f(role: str) -> FloatArray:
            logits = logits_of(self.models[role], self.downloaded[role], self.device, self.backend)
            made = []
            for start in range(0, len(x), CHUNK):
                self.stop_if_cancelled()
                made.append(logits(normalise(x[start : start + CHUNK], self.normalisation)))
            return np.concatenate(made)

        return f

    def stop_if_cancelled(self) -> None:
        if self.cancelled():
            raise Cancelled("stopped between two steps of a round")


def never() -> bool:
    """Nobody cancels."""
    return False


def train_hassle(
    models: Mapping[str, Architecture],
    parts: Mapping[str, Part],
    labelled: Samples,
    unlabelled: Samples,
    settings: HassleSettings,
    normalisation: Normalisation,
    seed: Sequence[int],
    *,
    stage: Stage = "whole",
    threads: int = 1,
    device: str = "cpu",
    backend: Backend | None = None,
    cancelled: Callable[[], bool] = never,
) -> HassleUpdate:
    """One device's round from the downloaded `parts`, role -> part, which are not changed.

    Either kind of samples may be empty; the labels of `unlabelled` are not read. Without labelled samples
    w_S and r_S are not trained; without unlabelled ones, or confident ones, w_U and r_U are not. A device
    without any of both leaves no part. `stage` "residuals" and "duals" train these alone. Optimisers begin at
    zero. `threads` are torch's, `backend` fixes the path (the fastest of each network by
    default).

    Repeats bit for bit on one machine under one path and number of threads. Raises ValueError when there are
    no samples at all, or when data or parts do not fit; Cancelled once `cancelled()` was true.
    """
    _check(models, parts, labelled, unlabelled, settings, stage)
    here = _Round(models, parts, settings, normalisation, seed, device, backend, cancelled)
    fresh: dict[str, Part] = {}
    losses: dict[str, float] = {}
    with torch_threads(threads):
        sides = []
        if len(labelled):
            f = here.frozen(labelled.x)
            sides.append(_Side(W_S, R_S, W_U, R_U, settings.tau_s, labelled.x, labelled.y, f))
        if len(unlabelled):
            x, y, f = _pseudo_labelled(unlabelled.x, here)
            if len(y):
                sides.append(_Side(W_U, R_U, W_S, R_S, settings.tau_u, x, y, f))
        if settings.align_residuals and stage != "duals":
            for side in sides:
                fresh[side.residual], losses[side.residual] = _train_residual(side, here)
        if stage != "residuals":
            for side in sides:
                fresh[side.dual], losses[side.dual] = _train_dual(side, here)
    counts = {side.dual: len(side.y) for side in sides}
    return HassleUpdate(fresh, counts.get(W_S, 0), counts.get(W_U, 0), losses)


def _pseudo_labelled(x: Images, here: _Round) -> tuple[Images, Labels, Frozen]:
    """The samples whose pseudo-label is probable enough, y^ of these, and logits over these."""
    f = here.frozen(x)
    served = f(W_S) + f(R_S) if here.settings.align_residuals else f(W_S)
    y = served.argmax(axis=1).astype(np.int64)
    if not here.settings.confidence:
        return x, y, f
    sure = softmax(served).max(axis=1) >= here.settings.confidence
    return x[sure], y[sure], lambda role: f(role)[sure]


def _train_residual(side: _Side, here: _Round) -> tuple[Part, float]:
    """KL(sigma(c / tau) || sigma(f(x; r) / tau)) + lambda CE(f(x; w) + f(x; r), y); no factor tau^2."""
    s = here.settings
    f_w = side.f(side.dual)
    c = side.f(side.other) - f_w
    if s.teacher == "with-residual":
        c = c + side.f(side.other_residual)
    q = softmax(c / side.tau)
    seen = total = 0.0
    r = trainee(
        here.models[side.residual], here.downloaded[side.residual], device=here.device, backend=here.backend
    )
    with closing(r):
        for last, chosen in here.steps(side.residual, len(side.y), s.residual_steps):
            x = normalise(side.x[chosen], here.normalisation)
            loss = r.learn_beside(x, side.y[chosen], f_w[chosen], q[chosen], side.tau, s.lam)
            r.step(s.learning_rate, s.momentum, s.residual_weight_decay, s.clip_norm)
            if last:
                # KL is the cross-entropy less the entropy of its target, which no weight changes.
                seen, total = seen + len(chosen), total + len(chosen) * loss - float(entropy(q[chosen]).sum())
        return r.dump(), total / seen


def _train_dual(side: _Side, here: _Round) -> tuple[Part, float]:
    """CE(f(x; w), y) + gamma ||w - w_other||^2, w_other as downloaded; statistics of batch norm are free."""
    s = here.settings
    seen = total = 0.0
    w = trainee(here.models[side.dual], here.downloaded[side.dual], device=here.device, backend=here.backend)
    with closing(w):
        steps = step_count(len(side.y), s.epochs, s.batch_size)
        for last, chosen in here.steps(side.dual, len(side.y), steps):
            ce = w.learn(normalise(side.x[chosen], here.normalisation), side.y[chosen])
            if s.gamma:
                w.pull(here.downloaded[side.other], 2.0 * s.gamma)
            w.step(s.learning_rate, s.momentum, s.weight_decay, s.clip_norm)
            seen, total = seen + last * len(chosen), total + last * len(chosen) * ce
        return w.dump(), total / seen


def roles_needed(
    settings: HassleSettings, labelled: bool, unlabelled: bool, stage: Stage = "whole"
) -> tuple[str, ...]:
    """The roles that a device with such samples must be given."""
    aligned = settings.align_residuals
    residuals = aligned and stage != "duals"
    other = residuals or settings.gamma > 0
    needed = {
        W_S: labelled or unlabelled,
        W_U: unlabelled or (labelled and other),
        R_S: aligned and (unlabelled or (labelled and residuals)),  # pseudo-labels need it in any stage
        R_U: residuals and (unlabelled or settings.teacher == "with-residual"),
    }
    return tuple(role for role, is_needed in needed.items() if is_needed)


def _check(
    models: Mapping[str, Architecture],
    parts: Mapping[str, Part],
    labelled: Samples,
    unlabelled: Samples,
    settings: HassleSettings,
    stage: Stage,
) -> None:
    if not len(labelled) and not len(unlabelled):
        raise ValueError("there are no samples to train on")
    if stage == "residuals" and not settings.align_residuals:
        raise ValueError("a round of residuals alone has nothing to train without residual alignment")
    for role in roles_needed(settings, len(labelled) > 0, len(unlabelled) > 0, stage):
        if role not in parts or role not in models:
            raise ValueError(f"this device's losses read the {role} model, given are {sorted(parts)}")
        check_part(models[role], role, parts[role])
        if len(labelled):
            check_data(models[role], labelled.x, labelled.y)
        if len(unlabelled):
            check_data(models[role], unlabelled.x, np.zeros(len(unlabelled), dtype=np.int64))
        if models[role].classes != models[W_S].classes:
            raise ValueError(f"the {role} model has {models[role].classes} classes, {W_S} another number")
