"""The words of every tier: names, hashes, counts with their bounds, scores, references to parts."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=96)]

Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")]

Instance = Annotated[str, Meta(pattern="^[0-9a-f]{8}\\Z")]

Text = Annotated[str, Meta(max_length=500)]

Round = Annotated[int, Meta(ge=0, le=1_000_000_000)]

Cluster = Annotated[int, Meta(ge=0, le=1_000_000)]

Count = Annotated[int, Meta(ge=0, le=10**12)]
"""What one device says of itself; small enough that no sum over a federation leaves the range of Total."""

Total = Annotated[int, Meta(ge=0, le=2**53)]
"""A sum over the devices of a site: exact as a float, too."""

Bytes = Annotated[int, Meta(ge=0)]
"""A sum over sites, for people."""

Seconds = Annotated[float, Meta(ge=0, le=1e9)]

Loss = float
"""Anything goes over the wire: a NaN is refused at the gate, with a receipt that says so."""


class PartRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part by content: `name` of the part, hash and size in bytes of its canonical form."""

    name: Name
    hash: Hash
    size: Count


Parts = dict[Name, PartRef]
"""Role -> the part that plays it."""


class Score(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model on labelled samples: how many, how many right, summed cross-entropy."""

    count: Total
    correct: Total
    loss: Loss

    def __add__(self, other: Score) -> Score:
        return Score(self.count + other.count, self.correct + other.correct, self.loss + other.loss)

    @property
    def accuracy(self) -> float:
        """Share of right answers; 0 when there were no samples."""
        return self.correct / self.count if self.count else 0.0

    @property
    def mean_loss(self) -> float:
        """Mean cross-entropy; NaN when there were no samples."""
        return self.loss / self.count if self.count else float("nan")


NO_SCORE = Score(0, 0, 0.0)
