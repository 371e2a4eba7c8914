"""Backups of the cloud's store: a checked copy while it runs, and back again as a restored cloud."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from fedbac_edge.node import damage
from fedbac_edge.node.runtime import held_store
from fedbac_edge.node.store import Store, StoreError
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.settings.federation import Federation

STORE = "cloud"
"""The cloud's store is STATE/cloud.sqlite."""


@dataclass(frozen=True)
class Backup:
    """A backup, or the state that it was made of."""

    path: Path
    federation: str
    round: int
    instance: str


def make(state: Path, to: Path, *, folder: bool = False) -> Backup:
    """Copy the cloud's store in `state`, whether its cloud runs or not; `to` is a new file or a folder.

    With `folder`, `to` is a folder even if it is not there yet. The copy is checked before it gets its name.
    Raises StoreError.
    """
    source = state / f"{STORE}.sqlite"
    if not source.is_file():
        raise StoreError(f"there is no cloud's store {source}; --state is the folder of `fedbac cloud run`")
    with _written(to if folder or to.is_dir() else to.parent) as new:
        _copy(source, new)
        made = describe(new)
        path = to / f"{made.federation}-round-{made.round}.sqlite" if to.is_dir() else to
        if path.exists():
            raise StoreError(f"{path} is there already; give another --to, or move it away")
        os.replace(new, path)
        return replace(made, path=path)


def restore(backup: Path, state: Path) -> tuple[Backup, Path | None]:
    """Put a backup in the place of the cloud's store in `state`; what was there is moved aside, not deleted.

    The cloud that starts there next begins a new generation of its instance (`protocol.cloud.restoration`).
    Returns the backup and where the former store is now. Raises StoreError.
    """
    describe(backup)
    with held_store(state, STORE) as path, _written(state) as new:
        _copy(backup, new)
        found = replace(describe(new), path=backup)  # of the copy: `backup` may be a store in use
        _mark(new)
        aside = damage.exchange(path, new, "before-restore")
        return found, aside


def describe(path: Path) -> Backup:
    """What a backup holds. Raises StoreError when it is damaged, or is not the store of a cloud."""
    if not path.is_file():
        raise StoreError(f"there is no file {path}")
    store = Store(path, read_only=True)
    try:
        if wrong := store.damage():
            raise StoreError(f"{path} is damaged ({wrong}); take an older backup")
        machine, settings = store.read("machine"), store.read("federation")
        if machine is None or settings is None:
            raise StoreError(f"{path} is not the store of a cloud")
        state = msgspec.msgpack.decode(machine, type=CloudState)
        federation = msgspec.msgpack.decode(settings, type=Federation)
    except msgspec.DecodeError as error:
        raise StoreError(f"{path} is not the store of a cloud that this software knows ({error})") from error
    finally:
        store.close()
    return Backup(path, federation.name, state.round, state.instance)


def _copy(source: Path, new: Path) -> None:
    """Copy a store into the file `new`, with what lies in its write-ahead log. Raises StoreError."""
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as old,
            contextlib.closing(sqlite3.connect(new)) as copy,
        ):
            old.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file
    except sqlite3.Error as error:
        raise StoreError(f"{source} cannot be copied ({error})") from error


@contextlib.contextmanager
def _written(folder: Path) -> Iterator[Path]:
    """A file of no name in `folder`, on the disk before the block renames it; gone after a failure."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f".{secrets.token_hex(4)}.new"
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise StoreError(f"the folder {folder} cannot be written ({error.strerror})") from error
    try:
        yield new
    finally:
        for end in (*damage.BESIDE, "-journal"):
            new.with_name(new.name + end).unlink(missing_ok=True)


def _mark(path: Path) -> None:
    """Leave in a cloud's store that it was restored; on the disk when this returns."""
    store = Store(path)
    try:
        machine = store.read("machine")
        assert machine is not None
        state = msgspec.msgpack.decode(machine, type=CloudState)
        state.restored = secrets.token_hex(4)
        with store.transaction():
            store.write("machine", msgspec.msgpack.encode(state))
    finally:
        store.close()
