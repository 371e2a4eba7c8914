"""How a device trains what its data train: one function per way of learning, by the name a method gives.

Torch is imported when a lesson begins, so that a process can know this module and stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from fedbac_edge.datasets.samples import UNLABELLED, Samples
from fedbac_edge.methods import method
from fedbac_edge.methods.hassle import stage
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import Part
from fedbac_edge.settings.federation import NO_CLIPPING, Federation, HassleTable
from fedbac_edge.vocabulary.training import Backend, LocalTraining, Normalisation

if TYPE_CHECKING:
    from fedbac_edge.learning.hassle import HassleSettings


class NothingToLearn(ValueError):
    """The device holds no sample that this way of learning can use; the message says so."""


def never() -> bool:
    """Nobody cancels."""
    return False


@dataclass(frozen=True)
class Lesson:
    """What one device is to learn in one round.

    `parts` are the roles that its data need, in the method's order; `models` has the architecture of each
    role. `train` are its samples, y = -1 where there is no label.
    """

    models: Mapping[str, Architecture]
    parts: Mapping[str, Part]
    train: Samples
    federation: Federation
    training: LocalTraining
    round: int
    normalisation: Normalisation
    seed: list[int]
    device: str = "cpu"
    threads: int = 1
    backend: Backend | None = None
    cancelled: Callable[[], bool] = never


@dataclass(frozen=True)
class Learned:
    """The roles that were trained; `weights`: how many samples of the role's kind each was trained on.

    `unlabelled`: of a role's samples, if it learns from all kinds, those without a label.
    """

    parts: dict[str, Part]
    weights: dict[str, int]
    loss: float
    unlabelled: int = 0


Learner = Callable[[Lesson], Learned]


def joint(lesson: Lesson) -> Learned:
    """All roles at once, on the sum of their logits, from the labelled samples (Fed-BAC and its kin)."""
    labelled = lesson.train.labelled()
    if not len(labelled):
        raise NothingToLearn("this device has no labelled samples to train on")
    return _train_jointly(lesson, labelled)


def joint_with_pseudo_labels(lesson: Lesson) -> Learned:
    """The same, and samples without a label have that of the model which the device was given."""
    from fedbac_edge.learning.pseudo_labels import pseudo_labelled

    wanted = lesson.federation.training.confidence
    served = method(lesson.federation).served_view.coefficients()
    samples = pseudo_labelled(
        next(iter(lesson.models.values())),
        [(lesson.parts[role], factor) for role, factor in served.items()],
        lesson.train,
        lesson.normalisation,
        wanted,
        threads=lesson.threads,
        device=lesson.device,
        backend=lesson.backend,
        cancelled=lesson.cancelled,
    )
    if not len(samples):
        raise NothingToLearn(
            "this device has no labelled samples"
            + (f", and the model is sure of none of the others by {wanted:g}" if len(lesson.train) else "")
        )
    given = int(np.count_nonzero(lesson.train.y != UNLABELLED))
    return replace(_train_jointly(lesson, samples), unlabelled=len(samples) - given)


def _train_jointly(lesson: Lesson, labelled: Samples) -> Learned:
    from fedbac_edge.learning.local import train_jointly

    update = train_jointly(
        next(iter(lesson.models.values())),
        lesson.parts,
        labelled.x,
        labelled.y,
        lesson.training,
        lesson.normalisation,
        lesson.seed,
        lesson.device,
        cancelled=lesson.cancelled,
        backend=lesson.backend,
    )
    return Learned(update.parts, dict.fromkeys(update.parts, update.samples), update.loss)


def hassle(lesson: Lesson) -> Learned:
    """HASSLE's round (`learning.hassle`): the roles of each kind of samples from these samples."""
    from fedbac_edge.learning.hassle import train_hassle

    table = lesson.federation.hassle or HassleTable()
    update = train_hassle(
        lesson.models,
        lesson.parts,
        lesson.train.labelled(),
        without_labels(lesson.train),
        _hassle_settings(table, lesson.training),
        lesson.normalisation,
        lesson.seed,
        stage=stage(table, lesson.round),
        threads=lesson.threads,
        device=lesson.device,
        backend=lesson.backend,
        cancelled=lesson.cancelled,
    )
    if not update.parts:
        raise NothingToLearn(
            f"no pseudo-label of this device reaches the confidence of {table.confidence:g} ([hassle])"
        )
    kinds = {role.name: role.weight for role in method(lesson.federation).roles}
    weights = {
        role: update.labelled if kinds[role] == "labelled" else update.unlabelled for role in update.parts
    }
    return Learned(update.parts, weights, fmean(update.losses.values()))


def _hassle_settings(table: HassleTable, training: LocalTraining) -> HassleSettings:
    from fedbac_edge.learning.hassle import HassleSettings

    return HassleSettings(
        epochs=training.epochs,
        batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        residual_weight_decay=table.residual_weight_decay,
        residual_steps=table.residual_steps,
        gamma=table.gamma,
        lam=table.residual_weight,
        tau_s=table.tau_s,
        tau_u=table.tau_u,
        teacher=table.teacher,
        confidence=table.confidence,
        align_residuals=table.align_residuals,
        clip_norm=None if training.clip_norm >= NO_CLIPPING else training.clip_norm,
    )


LEARNERS: dict[str, Learner] = {
    "joint": joint,
    "pseudo-labels": joint_with_pseudo_labels,
    "hassle": hassle,
}


def learner(name: str) -> Learner:
    """The way of learning of this name. Raises KeyError."""
    return LEARNERS[name]


def without_labels(samples: Samples) -> Samples:
    """The samples without a label."""
    return samples.take(samples.y == UNLABELLED)
