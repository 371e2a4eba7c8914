"""Where every random number comes from.

A generator is made from the federation's seed and what it is for, used, and thrown away. No generator state
is stored anywhere, so a process that was killed draws the same numbers again after its restart.
"""

from __future__ import annotations

import hashlib

import numpy as np


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """A generator of its own for each (seed, purpose), such as (7, "edge", "gw-1", round, "select").

    Equal arguments give equal streams in every process; the order of the purposes counts, and 1 and "1" are
    different purposes. Raises ValueError for a negative seed.
    """
    if seed < 0:
        raise ValueError(f"a seed is a whole number from 0 on, not {seed}")
    return np.random.default_rng([int(seed), *(_number(word) for word in purpose)])


def _number(word: str | int) -> int:
    # Whole numbers are hashed too: numpy's seeding pads with zeros and cuts at 32 bits, so that as they are
    # [7] would equal [7, 0], and [7, 2**32] would equal [7, 0, 1].
    text = f"text {word}" if isinstance(word, str) else f"number {int(word)}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
