"""Files of a run's folder: held by one process, whole or not there, read back with a fault's place named.

`error` is the caller's own exception; it gets one sentence.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from fedbac_edge import __version__

T = TypeVar("T")


@contextlib.contextmanager
def held(folder: Path, error: type[Exception]) -> Iterator[None]:
    """The folder, made if need be, held against a second process."""
    if folder.exists() and not folder.is_dir():
        raise error(f"{folder} is a file; give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise error(f"another process runs in {folder} right now") from None
        yield


def read_about(folder: Path, kind: type[T], error: type[Exception]) -> T:
    """What run.json says; raises `error` when there is no run in `folder`, or another command's."""
    path = folder / "run.json"
    try:
        data = path.read_bytes()
        for command, key in (("semi", "study"), ("simulate", "scenario")):
            if key not in kind.__annotations__ and key in msgspec.json.decode(data, type=dict):
                raise error(f"{folder} holds a run of `fedbac {command}`: that command goes on with it")
        return msgspec.json.decode(data, type=kind)
    except (FileNotFoundError, NotADirectoryError):
        raise error(f"there is no run in {folder}: run.json is missing") from None
    except (OSError, msgspec.DecodeError) as fault:
        raise error(f"{path} cannot be read: {fault}") from fault


def read_result(folder: Path, kind: type[T], error: type[Exception]) -> T | None:
    """The result of a finished run, None while it is not finished."""
    path = folder / "result.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind) if path.exists() else None
    except msgspec.DecodeError as fault:
        raise error(f"{path} is damaged: {fault}") from fault


def read_rows(path: Path, kind: type[T], error: type[Exception]) -> list[T]:
    """The whole lines of a metrics file; none when it is not there. Raises `error` naming the line."""
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            rows.append(msgspec.json.decode(line, type=kind))
        except msgspec.DecodeError as fault:
            raise error(f"{path}, line {number} is damaged: {fault}") from fault
    return rows


def check_same(
    folder: Path, same: bool, software: str, command: str, resume: bool, error: type[Exception]
) -> None:
    """May `fedbac COMMAND` go on with the run in `folder`? Raises `error` when it may not.

    `same`: what is asked for is what is stored; `software`: the version that began it.
    """
    if not resume:
        raise error(f"{folder} holds a run already: go on with --resume, or give another --out")
    if not same:
        raise error(
            f"{folder} holds a run with other settings; `fedbac {command} --resume --out {folder}` "
            "alone goes on with those that it has"
        )
    if software != __version__:
        raise error(f"{folder} was begun by version {software}, this is {__version__}")


def hash_over(parts: Mapping[str, str]) -> str:
    """One hash over all final parts (name -> content hash)."""
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()


class Lines(Generic[T]):
    """A file of JSON lines, open for appending; `rows` are those that it holds.

    It is cut to `rows`, the first of its whole lines: what stands behind them is torn, or not wanted.
    """

    def __init__(self, path: Path, rows: Iterable[T]) -> None:
        self.rows = list(rows)
        if path.exists():
            os.truncate(path, sum(len(_line(row)) for row in self.rows))
        self._file = path.open("ab")

    def append(self, row: T) -> None:
        """Add a line and hand it to the system."""
        self._file.write(_line(row))
        self._file.flush()
        self.rows.append(row)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _line(row: object) -> bytes:
    return msgspec.json.encode(row) + b"\n"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is whole or not there."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
