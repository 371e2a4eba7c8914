"""What local training and evaluation answer."""

from __future__ import annotations

from dataclasses import dataclass

from fedbac_edge.parts.part import Part


@dataclass(frozen=True)
class LocalUpdate:
    """What training leaves.

    `samples` is n_i, the samples really trained on (each counted once, whatever the epochs); `steps` the
    optimiser steps; `loss` the mean cross-entropy of the summed logits over the last epoch, each batch
    measured before its step.
    """

    parts: dict[str, Part]
    samples: int
    steps: int
    loss: float


@dataclass(frozen=True)
class Evaluation:
    """Counts that can be added over devices: samples, correct ones, and the sum of cross-entropies."""

    count: int
    correct: int
    loss_sum: float


class Cancelled(Exception):
    """Training was stopped between two steps; nothing of it is kept."""
