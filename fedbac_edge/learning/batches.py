"""The order in which one device sees its samples: the same for every training path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt


def step_count(samples: int, epochs: int, batch_size: int) -> int:
    """Optimiser steps of a whole training; the last short batch of an epoch is one."""
    return epochs * -(-samples // batch_size)


def batches(
    samples: int, epochs: int, batch_size: int, seed: Sequence[int]
) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Yield (epoch, sample indices) for every step, shuffled anew in each epoch by default_rng(seed)."""
    rng = np.random.default_rng(list(seed))
    for epoch in range(epochs):
        order = rng.permutation(samples)
        for start in range(0, samples, batch_size):
            yield epoch, order[start : start + batch_size]
