"""NumPy archives with two arrays, `x` and `y`, as `numpy.savez_compressed("data.npz", x=x, y=y)` writes them.

Each member's header is read and held against the archive before its array is allocated; objects are
refused, so nothing is ever unpickled.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt

from fedbac_edge.datasets.limits import read_exactly, refuse_impossible, refuse_oversize
from fedbac_edge.datasets.samples import UNLABELLED, DataError, Samples

_EXAMPLE = 'Write it with numpy.savez_compressed("data.npz", x=images, y=labels)'
_BLOCK = 1024
# What zipfile, zlib and numpy's header parser raise on damaged members.
_DAMAGE = (EOFError, zlib.error, NotImplementedError, RuntimeError, ValueError, TypeError, SyntaxError)


def read(path: Path, *, allow_unlabelled: bool = False) -> Samples:
    """Read `x`: uint8, or float32 in [0, 1], of shape (N, H, W, C) or (N, H, W); and `y`: integers (N,).

    float32 becomes uint8 by rint(255 x): exact for what was 8-bit before, at most 1/510 off otherwise.
    Without a `y` all samples are unlabelled, where that is allowed. Raises DataError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            needed = ["x.npy"] if allow_unlabelled and "y.npy" not in members else ["x.npy", "y.npy"]
            for name in needed:
                if name not in members:
                    held = ", ".join(sorted(members)[:10]) or "nothing"
                    raise DataError(
                        path, f"no array {name.removesuffix('.npy')!r}; it holds {held}", _EXAMPLE
                    )
            arrays = [_member(path, archive, members[name]) for name in needed]
    except zipfile.BadZipFile as error:
        raise DataError(path, f"not a whole .npz archive: {error}", _EXAMPLE) from error
    x = _images(path, arrays[0])
    y = _labels(path, arrays[1]) if len(arrays) == 2 else np.full(len(x), UNLABELLED, dtype=np.int64)
    if len(x) != len(y):
        raise DataError(path, f"x holds {len(x):,} images, y {len(y):,} labels", "Both need the same length")
    return Samples(x, y)


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> npt.NDArray[np.generic]:
    where = f"{path}[{info.filename.removesuffix('.npy')}]"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(where, "compressed by a method that numpy does not write", _EXAMPLE)
    on_disk = path.stat().st_size
    if info.compress_type == zipfile.ZIP_STORED and info.file_size > on_disk:
        raise DataError(where, f"{info.file_size:,} bytes, longer than the file itself", _EXAMPLE)
    # The directory's own word on the compressed size is no evidence; the file's size is.
    refuse_impossible(where, info.file_size, min(info.compress_size, on_disk))
    try:
        with archive.open(info) as stream:
            shape, fortran, dtype = _header(where, cast(BinaryIO, stream))
            if dtype.hasobject:
                raise DataError(
                    where,
                    "an array of Python objects, which would have to be unpickled",
                    f"Use numbers. {_EXAMPLE}",
                )
            if dtype.names or dtype.subdtype or dtype.kind not in "uif":
                raise DataError(where, f"values of type {dtype}, expected numbers", _EXAMPLE)
            count = math.prod(shape) * dtype.itemsize
            if stream.tell() + count != info.file_size:
                raise DataError(
                    where,
                    f"its header promises {dtype} {shape}, {count:,} bytes, but the archive holds "
                    f"{info.file_size - stream.tell():,}",
                    "The file is damaged: write it again",
                )
            refuse_oversize(where, count)
            # zipfile compares the checksum as the member's last byte is read.
            values = read_exactly(cast(BinaryIO, stream), count).view(dtype)
    except DataError:
        raise
    except _DAMAGE as error:
        raise DataError(where, f"cannot be read: {error}", _EXAMPLE) from error
    # The bytes of a Fortran-ordered array are those of its transpose in C order.
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)


def _header(where: str, stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = npy.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran, dtype = npy.read_array_header_2_0(stream)
    else:
        raise DataError(where, f"array format version {version}, expected 1.0 or 2.0", _EXAMPLE)
    if any(size < 0 for size in shape):
        raise DataError(where, f"a negative size in the shape {shape}", "The file is damaged: write it again")
    return shape, fortran, dtype


def _images(path: Path, x: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    where = f"{path}[x]"
    if x.ndim == 3:
        x = x[..., np.newaxis]
    if x.ndim != 4:
        raise DataError(where, f"the shape {x.shape}, expected (samples, height, width, channels)", _EXAMPLE)
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x, dtype=np.uint8)
    if x.dtype.kind != "f" or x.dtype.itemsize != 4:
        raise DataError(
            where,
            f"values of type {x.dtype}, expected uint8 (0 to 255) or float32 (0 to 1)",
            _pixels_remedy(x),
        )
    pixels = np.empty(x.shape, dtype=np.uint8)
    for start in range(0, len(x), _BLOCK):  # in blocks, so that no second float copy is ever made
        block = x[start : start + _BLOCK].astype(np.float32, copy=False)
        if not np.isfinite(block).all():
            bad = start + int(np.argwhere(~np.isfinite(block))[0][0])
            raise DataError(where, f"sample {bad} holds a NaN or an infinity", "Remove or repair that sample")
        if block.size and (block.min() < 0 or block.max() > 1):
            raise DataError(
                where,
                f"float32 values from {block.min():g} to {block.max():g}, expected 0 to 1",
                _pixels_remedy(x),
            )
        pixels[start : start + _BLOCK] = np.rint(block * np.float32(255))
    return pixels


def _labels(path: Path, y: npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    where = f"{path}[y]"
    if y.ndim != 1:
        raise DataError(where, f"the shape {y.shape}, expected (samples,)", _labels_remedy(y))
    if y.dtype.kind not in "iu":
        raise DataError(where, f"labels of type {y.dtype}, expected integers", _labels_remedy(y))
    if y.dtype.kind == "u" and y.size and int(y.max()) > np.iinfo(np.int64).max:
        raise DataError(
            where, f"the label {int(y.max())}", "Labels are positions in the federation's class list"
        )
    return y.astype(np.int64)


_CLASS_LIST = "Labels are positions in the federation's class list: whole numbers from 0"


def _pixels_remedy(x: npt.NDArray[np.generic]) -> str:
    """What makes these values pixels without changing what they show; for some there is no such thing."""
    low, high = (float(x.min()), float(x.max())) if x.size else (0.0, 0.0)
    if x.dtype.kind == "f" and 0 <= low <= high <= 1:
        return 'Try x.astype("float32")'
    if low >= 0 and 1 < high <= 255:  # 0 and 1 alone do not tell what they are
        return 'Try x.astype("uint8")' if x.dtype.kind in "iu" else 'Try numpy.rint(x).astype("uint8")'
    return (
        f"Here they go from {low:g} to {high:g}: give the pixels before any normalisation, 0 to 255 as uint8"
    )


def _labels_remedy(y: npt.NDArray[np.generic]) -> str:
    """What makes these values labels without changing what they say."""
    if y.ndim == 2 and y.shape[1] == 1:
        return 'Try y.ravel().astype("int64")' if _whole(y) else _CLASS_LIST
    if y.ndim == 2 and y.size and ((y == 0) | (y == 1)).all() and ((y == 1).sum(1) == 1).all():
        return "Try y.argmax(1): each row says its class by a 1"
    return 'Try y.astype("int64")' if y.ndim == 1 and _whole(y) else _CLASS_LIST


def _whole(y: npt.NDArray[np.generic]) -> bool:
    """True when every value is a whole number."""
    return bool((np.isfinite(y) & (y == np.rint(y.astype(np.float64)))).all())
