"""CIFAR-10 and CIFAR-100 in their official binary version.

A record is one label byte (CIFAR-100: two, the group of classes and the class) and 3,072 bytes: the planes R,
G and B of a 32x32 image, each row by row. Read from the unpacked folder, or straight from the .tar.gz without
writing anything to disk.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets.labels import align
from fedbac_edge.datasets.samples import DataError, Samples

PIXELS = 3 * 32 * 32
MAX_ARCHIVE_BYTES = 256 << 20
"""Unpacked size at which reading an archive stops: the official ones have 184 and 185 MB."""


@dataclass(frozen=True)
class Layout:
    """How one of the two is laid out; `labels` bytes begin a record, the last of them is the class."""

    folder: str
    archive: str
    labels: int
    names: str
    """The file of the class names, one a line."""
    train: tuple[str, ...]
    test: tuple[str, ...]

    @property
    def record(self) -> int:
        """Bytes."""
        return self.labels + PIXELS

    @property
    def source(self) -> str:
        """What to give."""
        return f"Give the folder {self.folder} or the file {self.archive} of the binary version"

    def batches(self, split: Literal["train", "test"]) -> tuple[str, ...]:
        """The files of a split, in their order."""
        return self.train if split == "train" else self.test


CIFAR10 = Layout(
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    labels=1,
    names="batches.meta.txt",
    train=tuple(f"data_batch_{n}.bin" for n in range(1, 6)),
    test=("test_batch.bin",),
)
CIFAR100 = Layout(
    folder="cifar-100-binary",
    archive="cifar-100-binary.tar.gz",
    labels=2,
    names="fine_label_names.txt",
    train=("train.bin",),
    test=("test.bin",),
)
_ANY = "Give the folder or the .tar.gz of CIFAR-10's or CIFAR-100's binary version"


def read(path: Path, classes: Sequence[str], split: Literal["train", "test"] = "train") -> Samples:
    """Images as uint8 (N, 32, 32, 3), batches in the order of their numbers; missing batches are fine.

    Which of the two it is tells the file of class names; labels follow the federation's `classes` by those
    names. Raises DataError.
    """
    wanted = {name for layout in (CIFAR10, CIFAR100) for name in (*layout.batches(split), layout.names)}
    files = _from_folder(path, wanted) if path.is_dir() else _from_archive(path, wanted)
    layout = CIFAR100 if CIFAR100.names in files else CIFAR10
    if layout.names not in files:
        raise DataError(path, f"no {CIFAR10.names} or {CIFAR100.names}, which name the classes", _ANY)
    names = files.pop(layout.names).decode("utf-8", errors="replace").split("\n")
    names = [name.strip() for name in names if name.strip()]
    batches = [name for name in layout.batches(split) if name in files]
    total = sum(len(files[name]) // layout.record for name in batches)
    if not total:
        raise DataError(path, f"none of {', '.join(layout.batches(split))}", layout.source)
    x = np.empty((total, 32, 32, 3), dtype=np.uint8)
    y = np.empty(total, dtype=np.int64)
    start = 0
    for name in batches:
        # Popped, so that each batch's bytes are free before the next one is turned.
        records = np.frombuffer(files.pop(name), dtype=np.uint8).reshape(-1, layout.record)
        labels = records[:, layout.labels - 1]
        _check_labels(f"{path}/{name}", labels, len(names), layout)
        end = start + len(records)
        y[start:end] = labels
        x[start:end] = records[:, layout.labels :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        start = end
    return Samples(x, align(y, names, classes, path))


def is_folder(path: Path) -> bool:
    """Whether `path` is an unpacked folder of one of the two, or the folder around one."""
    if not path.is_dir():
        return False
    inner = _inner(path)
    return any((inner / name).is_file() for name in (*CIFAR10.train, *CIFAR10.test, CIFAR100.names))


def _inner(path: Path) -> Path:
    for layout in (CIFAR10, CIFAR100):
        if (path / layout.folder).is_dir():
            return path / layout.folder
    return path


def _check_labels(where: str, labels: npt.NDArray[np.uint8], classes: int, layout: Layout) -> None:
    bad = np.flatnonzero(labels >= classes)
    if len(bad):
        raise DataError(
            where,
            f"record {bad[0]} has the label {labels[bad[0]]}, {layout.names} names {classes} classes",
            layout.source,
        )


def _check_length(where: str, name: str, size: int) -> None:
    if name in (CIFAR10.names, CIFAR100.names):
        if size > 4096:
            raise DataError(where, f"{size:,} bytes are too long for a list of class names", _ANY)
        return
    layout = CIFAR100 if name in (*CIFAR100.train, *CIFAR100.test) else CIFAR10
    if size == 0 or size % layout.record or size > MAX_ARCHIVE_BYTES:
        raise DataError(
            where,
            f"{size:,} bytes are no whole number of {layout.record}-byte records: cut off?",
            layout.source,
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
            raise DataError(self._where, f"it unpacks to more than {MAX_ARCHIVE_BYTES:,} bytes", _ANY)
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
                        raise DataError(where, "it is in the archive twice", _ANY)
                    _check_length(where, name, member.size)
                    content = archive.extractfile(member)
                    data = content.read() if content else b""
                    if len(data) != member.size:
                        raise DataError(where, f"cut off after {len(data):,} of {member.size:,} bytes", _ANY)
                    files[name] = data
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(path, f"not a whole tar archive: {error}", _ANY) from error
    return files
