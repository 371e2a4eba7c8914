"""What every tier may ask of a model, its author's or ours."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from fedbac_edge.parts.part import Part


class UnknownArchitecture(ValueError):
    """The federation names an architecture that cannot be had here; the message says why."""


@runtime_checkable
class Architecture(Protocol):
    """What every tier may ask of a model."""

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        ...

    @property
    def classes(self) -> int:
        """Number of logits."""
        ...

    def schema(self) -> dict[str, tuple[int, ...]]:
        """Tensor name -> shape, in forward order; names are those of the torch state dict."""
        ...

    def init(self, rng: np.random.Generator) -> Part:
        """Fresh random weights."""
        ...


def buffers(model: Architecture) -> frozenset[str]:
    """The tensors of a part that are measured and not trained: a description may name them as `buffers`.

    They travel, are averaged with the weights of the update that they belong to, and are left out of
    gradients and penalties.
    """
    named: frozenset[str] = getattr(model, "buffers", frozenset())
    return named


def share(width: int, numerator: int, denominator: int) -> int:
    """numerator/denominator of `width`: to the nearest, halves up, at least one."""
    return max(1, (2 * width * numerator + denominator) // (2 * denominator))
