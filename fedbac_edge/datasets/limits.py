"""How much a file may ask this machine to allocate, decided before anything is allocated.

Declared sizes are held against what the file can really contain: a deflate stream never expands more than
about 1032 times, so a header that promises more than that is a lie, however small the file.
"""

from __future__ import annotations

import os
from os import PathLike
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets.samples import DataError
from fedbac_edge.host.cgroups import memory_limit

MAX_BYTES = 4 << 30
"""No single array is larger than this, whatever the machine."""

DEFLATE_RATIO = 1032
"""Upper bound of deflate's expansion (zlib technical details: 1032:1)."""

_STEP = 1 << 20


def allowed_bytes() -> int:
    """Largest array to accept here: MAX_BYTES, or half of the memory of machine or container where less."""
    contained = memory_limit()
    most = MAX_BYTES if contained is None else min(MAX_BYTES, contained // 2)
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system tells
        return most
    return min(most, physical // 2) if physical > 0 else most


def refuse_oversize(where: str | PathLike[str], declared: int) -> None:
    """Raise DataError when `declared` bytes are more than this machine should hold."""
    allowed = allowed_bytes()
    if declared > allowed:
        raise DataError(
            where,
            f"it would need {declared:,} bytes of memory, more than the {allowed:,} that this machine allows",
            "Give this device fewer or smaller samples",
        )


def refuse_impossible(where: str | PathLike[str], declared: int, stored: int) -> None:
    """Raise DataError when `stored` compressed bytes cannot hold the `declared` ones."""
    if declared > stored * DEFLATE_RATIO:
        raise DataError(
            where,
            f"its header promises {declared:,} bytes, which {stored:,} compressed bytes cannot hold",
            "The file is damaged or not what its name says: copy it again from its source",
        )


class _Readable(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...


def read_exactly(stream: BinaryIO | _Readable, count: int) -> npt.NDArray[np.uint8]:
    """The next `count` bytes of `stream` as a writable uint8 array; EOFError when it ends before."""
    array = np.empty(count, dtype=np.uint8)
    view = array.data
    filled = 0
    while filled < count:
        # Small steps: some streams make a copy of each piece on its way.
        got = stream.readinto(view[filled : filled + _STEP])  # type: ignore[union-attr]
        if not got:
            raise EOFError(f"ended after {filled:,} of {count:,} bytes")
        filled += got
    return array
