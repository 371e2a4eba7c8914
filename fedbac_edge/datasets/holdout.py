"""Which samples are never trained on: a tenth of a device's data, each chosen by its own content.

A draw by position or by a seed would reshuffle when a device gains samples or lists its files in another
order: yesterday's training sample would be today's test. The pixels decide alone: duplicates fall on the same
side, on any device, and a corrected label moves nothing.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets.samples import Samples


def split(samples: Samples, fraction: float = 0.1, minimum: int = 10) -> tuple[Samples, Samples]:
    """(to train on, held out), each in the order of `samples`.

    A sample is held out if its hash / 2^64 < `fraction`, so the number held out is binomial, not exact. A
    device with fewer than `minimum` samples holds nothing out, nor does one whose samples would all be held
    out (all equal): it would have nothing to train on. ValueError when `fraction` is not in [0, 1).
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"the held-out fraction must be at least 0 and below 1, not {fraction}")
    held = np.zeros(len(samples), dtype=np.bool_)
    if len(samples) >= minimum:
        held = content_hashes(samples.x) < np.uint64(int(fraction * 2**64))
    if not held.any() or held.all():
        return samples, samples.take(np.zeros(len(samples), dtype=np.bool_))
    return samples.take(~held), samples.take(held)


def content_hashes(x: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """A 64-bit hash (BLAKE2b) of the pixels of each sample: uint8 (N, ...) -> uint64 (N,)."""
    if not x.size:
        return np.zeros(len(x), dtype=np.uint64)
    pixels = np.ascontiguousarray(x).reshape(-1).data
    size = x.size // len(x)
    digests = b"".join(
        blake2b(pixels[start : start + size], digest_size=8, person=b"fedbac-holdout").digest()
        for start in range(0, x.size, size)
    )
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)
