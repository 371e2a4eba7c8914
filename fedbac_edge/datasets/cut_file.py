"""How a cut of a data set is kept: one npz of plain arrays, its settings as JSON inside, and a content hash.

Written whole or not at all; read without unpickling, each array's header held against the size of its file
before it is allocated.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]
Indices = npt.NDArray[np.int64]

LARGEST_FILE = 2**30
UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""What a damaged archive raises beside ValueError and KeyError."""


class CutFileError(ValueError):
    """The file holds no such cut."""


def digest(settings: Mapping[str, Any], arrays: Arrays) -> str:
    """Content hash, 64 hex digits: of the settings and of every array with its type and shape."""
    content = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for name, array in arrays.items():
        content.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()


def save(path: str | os.PathLike[str], meta: Mapping[str, Any], arrays: Arrays) -> None:
    """Write the arrays, and `meta` as JSON in an array of that name; the file is whole or not there."""
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            text = json.dumps(meta, sort_keys=True).encode()
            stored: dict[str, Any] = dict(arrays)
            np.savez_compressed(file, meta=np.frombuffer(text, np.uint8), **stored)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def load(path: Path, kinds: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """(meta, arrays) of a saved file that holds arrays of these names and types ("<i8", "<f8").

    Raises CutFileError, and what is in UNREADABLE, ValueError or KeyError when the file is something else.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    with zipfile.ZipFile(path) as archive:
        if sum(member.file_size for member in archive.infolist()) > LARGEST_FILE:
            raise CutFileError("it is too large")
        for name, kind in {"meta": "|u1", **kinds}.items():
            file = io.BytesIO(archive.read(f"{name}.npy"))
            np.lib.format.read_magic(file)
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            rest = file.getbuffer().nbytes - file.tell()
            if dtype.str != kind or prod(shape) * dtype.itemsize != rest:
                raise CutFileError(f"{name} is not what such a file holds")
            file.seek(0)
            arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
    meta = json.loads(arrays.pop("meta").tobytes())
    if not isinstance(meta, dict):
        raise CutFileError("its settings are no table")
    return meta, arrays


def pieces(flat: Indices, ends: Indices) -> tuple[Indices, ...]:
    """`flat` cut at `ends`, of which the last is its length. Raises CutFileError."""
    if len(ends) == 0 or ends[-1] != len(flat) or np.diff(ends, prepend=0).min() < 0:
        raise CutFileError("its pieces do not add up")
    return tuple(np.split(flat, ends[:-1]))


def joined(hands: tuple[Indices, ...]) -> tuple[Indices, Indices]:
    """(all of them one after another, where each ends): what `pieces` takes."""
    return np.concatenate([*hands, np.zeros(0, np.int64)]), np.cumsum([len(hand) for hand in hands])


def labels_digest(*labels: npt.NDArray[Any]) -> str:
    """sha256 of the labels that were cut: of their numbers, then of themselves."""
    content = hashlib.sha256((" ".join(str(len(each)) for each in labels) + " ").encode())
    for each in labels:
        content.update(each.astype("<i8").tobytes())
    return content.hexdigest()
