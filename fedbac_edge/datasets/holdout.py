"""Which samples are never trained on: a tenth of a device's labelled data, each chosen by its own content.

A draw by position or by a seed would reshuffle when a device gains samples or lists its files in another
order: yesterday's training sample would be today's test. The pixels decide alone: duplicates fall on the same
side, on any device, and a corrected label moves nothing.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets.samples import UNLABELLED, Samples


def split(samples: Samples, fraction: float = 0.1, minimum: int = 10) -> tuple[Samples, Samples]:
    """(to train on, held out), each in the order of `samples`.

    A labelled sample is held out if its hash / 2^64 < `fraction`, so the number held out is binomial, not
    exact; nothing can be judged on an unlabelled one. A device with fewer than `minimum` labelled samples
    holds nothing out, nor does one whose labelled samples would all be held out (all equal): it would have
    nothing to train on. ValueError when `fraction` is not in [0, 1).
    """
    held = held_out(samples, fraction, minimum)
    return (samples.take(~held), samples.take(held)) if held.any() else (samples, samples.take(held))


def held_out(samples: Samples, fraction: float = 0.1, minimum: int = 10) -> npt.NDArray[np.bool_]:
    """The mask behind `split`."""
    if not 0 <= fraction < 1:
        raise ValueError(f"the held-out fraction must be at least 0 and below 1, not {fraction}")
    labelled = samples.y != UNLABELLED
    held = np.zeros(len(samples), dtype=np.bool_)
    if np.count_nonzero(labelled) >= minimum:
        held = labelled & (content_hashes(samples.x) < np.uint64(int(fraction * 2**64)))
    return np.zeros_like(held) if np.array_equal(held, labelled) else held


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
