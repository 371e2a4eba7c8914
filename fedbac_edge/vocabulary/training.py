"""What local training is told: plain values, no torch."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
# Training paths. Equal in the mathematics, not in the last bits: hashes are equal under one of them only.
Backend = Literal["compiled", "fused", "reference"]

NonNegative = Annotated[float, msgspec.Meta(ge=0)]


class Normalisation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mean and standard deviation of each channel, of pixels scaled to [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[Positive, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(f"one mean and one std per channel: {len(self.mean)} and {len(self.std)} given")
        if not all(map(math.isfinite, self.mean + self.std)) or min(self.std) <= 0:
            raise ValueError("means must be finite, standard deviations finite and above zero")


class LocalTraining(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device's optimisation in one round (Fed-BAC, arXiv 2605.11815, local objective).

    `learning_rate` is that of the round: its decay over rounds is the caller's. `l2` gives lambda for each
    role that has one; the term is lambda * ||part||^2, a literal square without 1/2. `clip_norm` bounds the
    gradient of the whole objective over all parts together, before weight decay. `threads` is part of the
    result: sums are ordered by it on some paths.
    """

    epochs: Count
    batch_size: Count
    learning_rate: Positive
    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    weight_decay: NonNegative
    clip_norm: Positive
    l2: dict[str, NonNegative]
    threads: Count = 1
    turns: tuple[tuple[str, ...], ...] = ()
    """Roles that train in turn while the others stay as they are, each turn for its share of the epochs."""
    frozen: tuple[str, ...] = ()
    """Roles that are part of the sum and do not change."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if len(self.turns) > self.epochs:
            raise ValueError(f"{len(self.turns)} turns need as many epochs, not {self.epochs}")
        for name in ("learning_rate", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above zero and finite, not {getattr(self, name)}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), not {self.momentum}")
        for name, value in {"weight_decay": self.weight_decay, **self.l2}.items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be zero or above and finite, not {value}")
