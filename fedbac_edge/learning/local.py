"""Joint local training on the fastest path that this model and machine have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedbac_edge.learning.normalise import Images, Labels
from fedbac_edge.learning.reference import train_reference
from fedbac_edge.learning.settings import LocalTraining, LocalUpdate, Normalisation
from fedbac_edge.models.catalog import Architecture
from fedbac_edge.parts import Part


def train_jointly(
    model: Architecture,
    parts: Mapping[str, Part],
    x: Images,
    y: Labels,
    settings: LocalTraining,
    normalisation: Normalisation,
    seed: Sequence[int],
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> LocalUpdate:
    """Train role -> part, all of one architecture, on the sum of their logits (Fed-BAC, local objective).

    `x` is (N, H, W, C), uint8 or float32 in [0, 1]; `y` is (N,) int64. Samples are shuffled anew in each
    epoch by numpy's default_rng(seed). `progress(step, steps)` is called after each step; `cancelled()` is
    asked before each, and a true answer raises Cancelled. The parts given are not changed.

    Repeats bit for bit on one machine under one number of threads. Raises ValueError when data or parts do
    not fit the model, or `settings.l2` names a role that is not among the parts.
    """
    return train_reference(model, parts, x, y, settings, normalisation, seed, device, progress, cancelled)
