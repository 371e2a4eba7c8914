"""IDX files, the format of MNIST and Fashion-MNIST, plain or gzip-compressed.

Layout: two zero bytes, a type byte (0x08 = unsigned byte), the number of dimensions, one big-endian uint32
per dimension, then the values.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets.limits import read_exactly, refuse_impossible, refuse_oversize
from fedbac_edge.datasets.samples import UNLABELLED, DataError, Samples

_DAMAGED = "Copy it again from its source; it should begin like train-images-idx3-ubyte of MNIST"


def read(images: Path, labels: Path | None) -> Samples:
    """Images (N, H, W) as uint8 (N, H, W, 1) with their labels; `labels` None leaves all unlabelled.

    Raises DataError when a file is not IDX, is cut short or too long, or when the two lengths differ.
    """
    x = read_array(images)
    if x.ndim != 3:
        kind = "labels" if x.ndim == 1 else f"{x.ndim} dimensions"
        raise DataError(
            images,
            f"it holds {kind}, not images",
            "Give the images' file, for example --data train-images-idx3-ubyte.gz",
        )
    y = read_array(labels).astype(np.int64) if labels else np.full(len(x), UNLABELLED, dtype=np.int64)
    if labels and y.ndim != 1:
        raise DataError(
            labels, f"it has {y.ndim} dimensions, labels have one", "Give the labels' file beside it"
        )
    if labels and len(x) != len(y):
        raise DataError(
            images,
            f"{len(x):,} images, but {len(y):,} labels in {labels.name}",
            "Give two files that belong together",
        )
    return Samples(x[..., np.newaxis], y)


def labels_beside(images: Path) -> Path | None:
    """The labels' file that belongs to an images' file by its name, with or without .gz; None if absent."""
    name = images.name.replace("images", "labels").replace("idx3", "idx1")
    plain = name.removesuffix(".gz")
    for candidate in (name, plain, f"{plain}.gz"):
        path = images.with_name(candidate)
        if candidate != images.name and path.is_file():
            return path
    return None


def read_array(path: Path) -> npt.NDArray[np.uint8]:
    """The array of one IDX file, uint8, with the shape that its header gives."""
    size = path.stat().st_size
    with path.open("rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if not compressed:
            return decode(raw, size, str(path), compressed=False)
        with gzip.GzipFile(fileobj=raw) as stream:
            return decode(cast(BinaryIO, stream), size, str(path), compressed=True)


def decode(stream: BinaryIO, size: int, where: str, *, compressed: bool) -> npt.NDArray[np.uint8]:
    """Decode one IDX array from `stream`; `size` is the file's size on disk in bytes.

    A plain file must have exactly the size that its header gives; a compressed one must be able to hold it.
    Both are checked before the allocation, and no more than one byte beyond the array is decompressed.
    Raises DataError only.
    """
    try:
        start = stream.read(4)
        if len(start) < 4 or start[:2] != b"\0\0":
            raise DataError(where, f"not an IDX file: it begins with {start.hex() or 'nothing'}", _DAMAGED)
        kind, dimensions = start[2], start[3]
        if kind != 0x08:
            raise DataError(
                where,
                f"IDX values of type 0x{kind:02x}, only unsigned bytes (0x08) are images or labels",
                _DAMAGED,
            )
        if not 1 <= dimensions <= 3:
            raise DataError(
                where, f"IDX with {dimensions} dimensions, expected 1 (labels) or 3 (images)", _DAMAGED
            )
        sizes = stream.read(4 * dimensions)
        if len(sizes) < 4 * dimensions:
            raise DataError(where, "cut off inside its IDX header", _DAMAGED)
        shape = struct.unpack(f">{dimensions}I", sizes)
        count = math.prod(shape)
        if not compressed:
            _hold_to_size(where, shape, 4 + 4 * dimensions + count, size)
        else:
            refuse_impossible(where, count, size)
        refuse_oversize(where, count)
        array = read_exactly(stream, count)
        if stream.read(1):
            raise DataError(where, f"more bytes follow the {shape} values that its header gives", _DAMAGED)
    except EOFError as error:
        raise DataError(where, f"cut off: {error}", _DAMAGED) from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise DataError(where, f"cannot be decompressed: {error}", _DAMAGED) from error
    return array.reshape(shape)


def _hold_to_size(where: str, shape: tuple[int, ...], expected: int, size: int) -> None:
    if size != expected:
        fault = "cut off" if size < expected else "too long"
        raise DataError(
            where, f"{fault}: {shape} values make {expected:,} bytes, the file has {size:,}", _DAMAGED
        )
