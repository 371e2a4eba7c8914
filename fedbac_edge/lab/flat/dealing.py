"""In which order a client sees its samples when labelled and unlabelled batches go together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.intp]


def deal(
    labelled: int, unlabelled: int, epochs: int, batch_size: int, rng: np.random.Generator
) -> Iterator[tuple[Positions, Positions]]:
    """Yield (labelled positions, unlabelled positions) for every step.

    An epoch passes once over the larger kind; the smaller one is shuffled anew whenever it has been dealt. A
    kind that the client has not is an empty batch, and a kind smaller than a batch is dealt whole.
    """
    steps = epochs * max(-(-labelled // batch_size), -(-unlabelled // batch_size))
    kinds = [_endless(count, batch_size, rng) for count in (labelled, unlabelled)]
    for _ in range(steps):
        yield next(kinds[0]), next(kinds[1])


def _endless(count: int, batch_size: int, rng: np.random.Generator) -> Iterator[Positions]:
    while True:
        order = rng.permutation(count)
        for start in range(0, max(count, 1), batch_size):
            yield order[start : start + batch_size]
