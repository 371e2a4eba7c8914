"""A store's file: made whole, opened, checked, brought up to the newest version; and why it cannot be used.

WAL with synchronous=FULL: what was committed survives a kill -9 and a power cut.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from fedbac_edge.node import damage

SCHEMA_VERSION = 1

_MIGRATIONS: dict[int, str] = {
    1: """
    CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE outbox (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        key TEXT NOT NULL,              -- '' once published is done; else stays until settled
        topic TEXT NOT NULL,
        payload BLOB,                   -- NULL: the blob with the hash in `blob`
        blob TEXT NOT NULL DEFAULT '',
        retain INTEGER NOT NULL,
        kind TEXT NOT NULL              -- 'message' or 'part' (chunks under blob/<hash>/)
    );
    CREATE UNIQUE INDEX outbox_key ON outbox (key) WHERE key <> '';
    CREATE TABLE retained (
        topic TEXT PRIMARY KEY, payload BLOB, blob TEXT NOT NULL, kind TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE blobs (hash TEXT PRIMARY KEY, data BLOB NOT NULL);
    CREATE TABLE spool (
        topic TEXT NOT NULL, transfer TEXT NOT NULL, number INTEGER NOT NULL, count INTEGER NOT NULL,
        size INTEGER NOT NULL, arrived REAL NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (topic, transfer, number)
    );
    CREATE TABLE ledger (
        id INTEGER PRIMARY KEY AUTOINCREMENT, wall REAL NOT NULL, round INTEGER NOT NULL, kind TEXT NOT NULL,
        subject TEXT NOT NULL, detail TEXT NOT NULL
    );
    CREATE INDEX ledger_round ON ledger (round);
    """,
}


class StoreError(RuntimeError):
    """The store cannot be used; the message says which file and what to do."""


class StoreInUse(StoreError):
    """Another process has the store."""


class StoreDamaged(StoreError):
    """The file is no store any more, or was never one; the message says which file and what is wrong."""


class StoreFailed(RuntimeError):
    """The store could not be written: no room, a broken disk. What was committed before is safe."""


def open_connection(
    path: Path | None, read_only: bool, durable: bool, check_blobs: bool
) -> sqlite3.Connection:
    """The store at `path`, made if it is not there, of the newest version; see `Store` for the rest.

    Raises StoreError, StoreDamaged among them, and StoreFailed when the disk is full or fails.
    """
    owned = durable and not read_only
    if path is not None and owned and not path.exists():
        _create(path)
    connection = _connect(path, read_only, durable)
    try:
        _migrate(connection, path, read_only)
        if path is not None and owned and (wrong := damage.found(connection, check_blobs)):
            raise StoreDamaged(f"{path} is damaged ({wrong})")
    except sqlite3.Error as error:
        connection.close()
        raise _failure(path, error) from error
    except StoreError:
        connection.close()
        raise
    return connection


def _create(path: Path) -> None:
    """A new store, which is whole from the moment it has its name: an empty file is a damaged one."""
    new = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        damage.move_aside(path, "left")  # changes without their file belong to no new one
        new.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(new, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            _migrate(connection, new, False)
        os.replace(new, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except (OSError, sqlite3.Error) as error:
        for end in ("", "-journal"):
            with contextlib.suppress(OSError):
                new.with_name(new.name + end).unlink()
        raise _failure(path, error) from error


def _connect(path: Path | None, read_only: bool, durable: bool) -> sqlite3.Connection:
    """Autocommit connection (transactions are ours); WAL, synchronous=FULL unless it need not last."""
    if path is None:
        return sqlite3.connect(":memory:", isolation_level=None)
    try:
        if path.is_dir():
            raise StoreError(f"{path} is a folder, and no store")
        if read_only:
            if not path.exists():
                raise StoreError(f"there is no store {path}")
            if path.stat().st_size == 0:
                raise StoreDamaged(f"{path} is empty: what it held is lost")
            return sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, timeout=10)
        path.parent.mkdir(parents=True, exist_ok=True)
        if durable and path.stat().st_size == 0:
            raise StoreDamaged(f"{path} is empty: what it held is lost")
        connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        if not durable:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA page_size = 16384")  # models: fewer, larger pages
            connection.execute("PRAGMA secure_delete = OFF")  # some systems write zeros over what is deleted
        # A rollback journal, unlike a WAL, holds no second copy of what is new; only its waits cost more.
        connection.execute(f"PRAGMA journal_mode = {'WAL' if durable else 'PERSIST'}")
        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
    except (OSError, sqlite3.Error) as error:
        raise _failure(path, error) from error
    return connection


def _migrate(connection: sqlite3.Connection, path: Path | None, read_only: bool) -> None:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by newer software: store version {version}, this one knows "
            f"{SCHEMA_VERSION}; update this software"
        )
    if version == 0 and connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        raise StoreError(f"{path} is a database of another software; give another path")
    if read_only and version < SCHEMA_VERSION:
        raise StoreError(
            f"{path} has store version {version}, this software needs {SCHEMA_VERSION}: start the "
            "process that owns it once, which brings it up to date"
        )
    for step in range(version + 1, SCHEMA_VERSION + 1):
        connection.executescript(f"BEGIN; {_MIGRATIONS[step]} PRAGMA user_version = {step}; COMMIT;")


def _failure(path: Path | None, error: OSError | sqlite3.Error) -> StoreError | StoreFailed:
    """What an error at the opening of a store means."""
    if damage.is_disk_trouble(error):
        return StoreFailed(
            f"the store {path} cannot be used ({error}): make room or mend the disk, then start again; "
            "nothing is lost"
        )
    if isinstance(error, sqlite3.Error) and damage.is_told_by(error):
        return StoreDamaged(f"{path} is damaged, or is no store ({error})")
    return StoreError(f"the store {path} cannot be opened: {error}")
