"""Fewer samples of a data set than it has, drawn by a seed."""

from __future__ import annotations

import numpy as np

from fedbac_edge.datasets.samples import Samples
from fedbac_edge.randomness import generator


def subset(samples: Samples, count: int | None, seed: int, *what: str) -> Samples:
    """`count` samples drawn without replacement, in their order; all of them for None or a large count.

    `what` names the draw, as for `randomness.generator`: other words draw others.
    """
    if count is None or count >= len(samples):
        return samples
    chosen = generator(seed, *what).permutation(len(samples))[:count]
    return samples.take(np.sort(chosen))
