"""CIFAR-10 in its official binary version: data_batch_1..5.bin, test_batch.bin, batches.meta.txt.

A record is one label byte and 3,072 bytes: the planes R, G and B of a 32x32 image, each row by row. Read from
the unpacked folder, or straight from the .tar.gz without writing anything to disk.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets.labels import align
from fedbac_edge.datasets.samples import DataError, Samples

RECORD = 1 + 3 * 32 * 32
NAMES = "batches.meta.txt"
BATCHES = {"train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test": ("test_batch.bin",)}
MAX_ARCHIVE_BYTES = 256 << 20
"""Unpacked size at which reading an archive stops: the official one has 184 MB."""

_SOURCE = "Give the folder cifar-10-batches-bin or the file cifar-10-binary.tar.gz of the binary version"


def read(path: Path, classes: Sequence[str], split: Literal["train", "test"] = "train") -> Samples:
    """CIFAR-10 as uint8 (N, 32, 32, 3), batches in the order of their numbers; missing batches are fine.

    Labels follow the federation's `classes` by the names in batches.meta.txt. Raises DataError.
    """
    wanted = {*BATCHES[split], NAMES}
    files = _from_folder(path, wanted) if path.is_dir() else _from_archive(path, wanted)
    if NAMES not in files:
        raise DataError(path, f"no {NAMES}, which names the classes", _SOURCE)
    names = files.pop(NAMES).decode("utf-8", errors="replace").split("\n")
    names = [name.strip() for name in names if name.strip()]
    total = sum(len(data) // RECORD for data in files.values())
    if not total:
        raise DataError(path, f"none of {', '.join(BATCHES[split])}", _SOURCE)
    x = np.empty((total, 32, 32, 3), dtype=np.uint8)
    y = np.empty(total, dtype=np.int64)
    start = 0
    for name in BATCHES[split]:
        if name not in files:
            continue
        # Popped, so that each batch's bytes are free before the next one is turned.
        records = np.frombuffer(files.pop(name), dtype=np.uint8).reshape(-1, RECORD)
        _check_labels(f"{path}/{name}", records[:, 0], len(names))
        end = start + len(records)
        y[start:end] = records[:, 0]
        x[start:end] = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        start = end
    return Samples(x, align(y, names, classes, path))


def is_folder(path: Path) -> bool:
    """Whether `path` is an unpacked CIFAR-10 folder, or the folder around one."""
    return path.is_dir() and any(
        (_inner(path) / name).is_file() for split in BATCHES.values() for name in split
    )


def _inner(path: Path) -> Path:
    inside = path / "cifar-10-batches-bin"
    return inside if inside.is_dir() else path


def _check_labels(where: str, labels: npt.NDArray[np.uint8], classes: int) -> None:
    bad = np.flatnonzero(labels >= classes)
    if len(bad):
        raise DataError(
            where, f"record {bad[0]} has the label {labels[bad[0]]}, {NAMES} names {classes} classes", _SOURCE
        )


def _check_length(where: str, name: str, size: int) -> None:
    if name == NAMES:
        if size > 4096:
            raise DataError(where, f"{size:,} bytes are too long for a list of class names", _SOURCE)
    elif size == 0 or size % RECORD or size > MAX_ARCHIVE_BYTES:
        raise DataError(
            where, f"{size:,} bytes are no whole number of {RECORD}-byte records: cut off?", _SOURCE
        )


def _from_folder(path: Path, wanted: set[str]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for name in sorted(wanted):
        file = _inner(path) / name
        if file.is_file():
            _check_length(str(file), name, file.stat().st_size)
            files[name] = file.read_bytes()
    return files


class _Bounded:
    """The read end of a stream that stops with DataError once more than `limit` bytes have passed."""

    def __init__(self, stream: BinaryIO | gzip.GzipFile, limit: int, where: str) -> None:
        self._stream, self._left, self._where = stream, limit, where

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise DataError(self._where, f"it unpacks to more than {MAX_ARCHIVE_BYTES:,} bytes", _SOURCE)
        return data


def _from_archive(path: Path, wanted: set[str]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    try:
        with path.open("rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = _Bounded(gzip.GzipFile(fileobj=raw) if compressed else raw, MAX_ARCHIVE_BYTES, str(path))
            # Streaming: members pass once, in their order; links are never followed.
            with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
                for member in archive:
                    name = PurePosixPath(member.name).name
                    if name not in wanted or not member.isreg():
                        continue
                    where = f"{path}/{name}"
                    if name in files:
                        raise DataError(where, "it is in the archive twice", _SOURCE)
                    _check_length(where, name, member.size)
                    content = archive.extractfile(member)
                    data = content.read() if content else b""
                    if len(data) != member.size:
                        raise DataError(
                            where, f"cut off after {len(data):,} of {member.size:,} bytes", _SOURCE
                        )
                    files[name] = data
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(path, f"not a whole tar archive: {error}", _SOURCE) from error
    return files
