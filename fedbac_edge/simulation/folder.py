"""Files of a run's folder: held by one process, whole or not there, read back with a fault's place named.

`error` is the caller's own exception; it gets one sentence.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


@contextlib.contextmanager
def held(folder: Path, error: type[Exception]) -> Iterator[None]:
    """The folder, made if need be, held against a second process."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise error(f"another process runs in {folder} right now") from None
        yield


def read_about(folder: Path, kind: type[T], error: type[Exception]) -> T:
    """What run.json says; raises `error` when there is no run in `folder`."""
    path = folder / "run.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
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
