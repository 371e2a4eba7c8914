"""A damaged store: how damage is told from a full disk, how it is found, and where a damaged file goes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sqlite3
import time
from pathlib import Path

BESIDE = ("", "-wal", "-shm")
"""What belongs to one SQLite store: the file, the changes that are not folded in yet, an index of them."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""The disk's own troubles: they pass, and say nothing about the file."""


def is_told_by(error: sqlite3.Error) -> bool:
    """True when `error` says that the file itself is wrong, not that it cannot be written or opened now."""
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)


def is_disk_trouble(error: sqlite3.Error | OSError) -> bool:
    """True for a full or failing disk."""
    if isinstance(error, OSError):
        return error.errno in NO_ROOM
    return any(words in str(error) for words in ("full", "I/O error"))


def found(connection: sqlite3.Connection, blobs: bool = True) -> str:
    """What is wrong with an open store, in a few words; "" when nothing is.

    Reads the whole file once: SQLite's own check of every page, then each of the `blobs` is held to its hash.
    Raises sqlite3.OperationalError when the disk cannot be read.
    """
    try:
        (answer,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if answer != "ok":
            return " ".join(str(answer).replace("*** in database main ***", "").split())[:200]
        for hash, data in connection.execute("SELECT hash, data FROM blobs") if blobs else ():
            if not isinstance(data, bytes) or hashlib.sha256(data).hexdigest() != hash:
                return f"the blob {str(hash)[:12]} is not what its hash says"
    except sqlite3.DatabaseError as error:
        if not is_told_by(error):
            raise
        return str(error)
    return ""


def move_aside(path: Path, why: str) -> Path | None:
    """Rename a store, with what belongs to it, so that a new one has its place; None when there is none."""
    aside = _unused(path, why)
    moved = None
    for end in reversed(BESIDE):  # the file itself last: it is what says that a store is there
        with contextlib.suppress(FileNotFoundError):
            os.replace(path.with_name(path.name + end), aside.with_name(aside.name + end))
            moved = aside
    return moved


def exchange(path: Path, new: Path, why: str) -> Path | None:
    """Put the store `new`, one file, in the place of `path`, which goes aside; None when there was none.

    At every moment a store stands at `path`, the former or the new one: a cloud that found none would begin
    a new federation. Nobody else may have either of them open.
    """
    aside = None
    if path.exists():
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as former:
            former.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # one file, if it can still be read
        aside = _unused(path, why)
        for end in reversed(BESIDE[1:]):
            with contextlib.suppress(FileNotFoundError):
                os.replace(path.with_name(path.name + end), aside.with_name(aside.name + end))
        try:
            os.link(path, aside)
        except OSError:  # a file system without links: there is a gap, and it is short
            os.replace(path, aside)
    os.replace(new, path)
    return aside


def _unused(path: Path, why: str) -> Path:
    """A name beside `path` that says `why` and when, and that no file has."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside, number = path.with_name(f"{path.name}.{why}-{stamp}"), 1
    while any(aside.with_name(aside.name + end).exists() for end in BESIDE):
        number += 1
        aside = path.with_name(f"{path.name}.{why}-{stamp}-{number}")
    return aside


def forget_older(path: Path, why: str, newest: Path) -> None:
    """Of the stores that were moved aside for one reason only the newest stays: a disk may fail again."""
    for old in path.parent.glob(f"{path.name}.{why}-*"):
        if not old.name.startswith(newest.name):
            old.unlink(missing_ok=True)
