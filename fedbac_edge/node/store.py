"""What a process must not forget: one SQLite file, one transaction per event.

Tables: `state` (the machine), `outbox` (what is to be published and what awaits an answer), `retained` (the
topics that this process owns), `blobs` (by content hash), `spool` (chunks of payloads still arriving),
`ledger` (append-only: why anything happened). `store_file` opens the file.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbac_edge.node import damage
from fedbac_edge.node.store_file import StoreDamaged as StoreDamaged
from fedbac_edge.node.store_file import StoreError as StoreError
from fedbac_edge.node.store_file import StoreFailed as StoreFailed
from fedbac_edge.node.store_file import StoreInUse as StoreInUse
from fedbac_edge.node.store_file import open_connection


@dataclass(frozen=True)
class OutboxRow:
    """One publication that is still to be made or still awaits its answer."""

    id: int
    key: str
    topic: str
    payload: bytes | None
    blob: str
    retain: bool
    kind: str


@dataclass(frozen=True)
class LedgerLine:
    """One line of the ledger; `wall` in seconds since 1970."""

    id: int
    wall: float
    round: int
    kind: str
    subject: str
    detail: dict[str, Any]


class Blobs(Mapping[str, bytes]):
    """Read-only view of the store's blobs by content hash. Reading is a pure function of the hash.

    Machines ask what is here with every event: the store's owner remembers the hashes. A reader of another
    process's store asks the file each time.
    """

    def __init__(self, connection: sqlite3.Connection, owned: bool) -> None:
        self._connection, self._owned = connection, owned
        self._here: set[str] | None = None

    @property
    def here(self) -> set[str]:
        """The hashes there are; the owner keeps this set in step with the file."""
        if self._here is None or not self._owned:
            self._here = {row[0] for row in self._connection.execute("SELECT hash FROM blobs")}
        return self._here

    def forget(self) -> None:
        """The file is not what was thought, as after a rollback: read the hashes again when next asked."""
        self._here = None

    def __getitem__(self, hash: str) -> bytes:
        row = self._connection.execute("SELECT data FROM blobs WHERE hash = ?", (hash,)).fetchone()
        if row is None:
            raise KeyError(hash)
        data: bytes = row[0]
        return data

    def __contains__(self, hash: object) -> bool:
        return hash in self.here

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.here))

    def __len__(self) -> int:
        return len(self.here)


class Store:
    """The store of one process. Not thread-safe: only the thread that made it may use it."""

    def __init__(
        self, path: Path | None, *, read_only: bool = False, durable: bool = True, check_blobs: bool = True
    ) -> None:
        """Open or create the file at `path`; None keeps everything in memory.

        Not `durable` (the laboratory): commits survive a kill -9 but not a power cut, and no other process
        may open the file meanwhile. It saves the waiting for the disk, and most of the writing.

        A durable store is checked from end to end before it is used, as after a power cut; its blobs are
        left out for an owner that holds each to its hash itself (`check_blobs` false). Raises StoreError,
        StoreDamaged among them, and StoreFailed when the disk is full or fails.
        """
        self.name = "in memory" if path is None else str(path)
        self._connection = open_connection(path, read_only, durable, check_blobs)
        self.blobs = Blobs(self._connection, owned=not read_only)

    def close(self) -> None:
        """Close the file; a WAL is folded in."""
        self._connection.close()

    def damage(self) -> str:
        """What is wrong with the file, in a few words; "" when nothing is. Reads all of it."""
        return damage.found(self._connection)

    def compact(self) -> None:
        """Give back the space of what was deleted; outside of a transaction."""
        self._connection.execute("PRAGMA journal_size_limit = 0")  # the journal's too
        self._connection.execute("VACUUM")

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing: commit at the end, roll back on an exception. In another one it is part of that."""
        if self._connection.in_transaction:
            yield
            return
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._connection.execute("COMMIT")
        except BaseException as error:
            self.blobs.forget()
            with contextlib.suppress(sqlite3.Error):  # SQLite has rolled back by itself on a full disk
                self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise StoreFailed(
                    f"the store {self.name} cannot be written ({error}); "
                    "make room or mend the disk, then start again: nothing is lost"
                ) from error
            if isinstance(error, sqlite3.DatabaseError) and damage.is_told_by(error):
                raise StoreFailed(
                    f"the store {self.name} has become unreadable ({error}): the disk may be failing"
                ) from error
            raise

    # --- state ---

    def read(self, key: str) -> bytes | None:
        """The value stored under `key`, or None."""
        row = self._connection.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def write(self, key: str, value: bytes) -> None:
        """Store `value` under `key`."""
        self._connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (key, value))

    # --- blobs ---

    def keep_blob(self, hash: str, data: bytes) -> None:
        """Store a blob; a second time is free."""
        if hash not in self.blobs:
            self._connection.execute("INSERT INTO blobs VALUES (?, ?)", (hash, data))
            self.blobs.here.add(hash)

    def collect_blobs(self, kept: set[str]) -> int:
        """Delete every blob that is neither in `kept` nor waiting in outbox or retained; how many went."""
        needed = kept | {
            row[0]
            for table in ("outbox", "retained")
            for row in self._connection.execute(f"SELECT blob FROM {table} WHERE blob <> ''")
        }
        gone = [hash for hash in self.blobs if hash not in needed]
        self._connection.executemany("DELETE FROM blobs WHERE hash = ?", [(hash,) for hash in gone])
        self.blobs.here.difference_update(gone)
        return len(gone)

    # --- outbox ---

    def post(
        self,
        topic: str,
        payload: bytes | None,
        *,
        key: str = "",
        blob: str = "",
        retain: bool = False,
        kind: str = "message",
    ) -> int:
        """Add a publication; under a key it replaces the one that was there. Returns its id."""
        if key:
            self.settle(key)
        cursor = self._connection.execute(
            "INSERT INTO outbox (key, topic, payload, blob, retain, kind) VALUES (?, ?, ?, ?, ?, ?)",
            (key, topic, payload, blob, int(retain), kind),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def settle(self, key: str) -> int | None:
        """Remove the publication under `key`; its id, or None when there was none."""
        row = self._connection.execute("SELECT id FROM outbox WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        self.remove(row[0])
        identifier: int = row[0]
        return identifier

    def remove(self, id: int) -> None:
        """Remove one publication."""
        self._connection.execute("DELETE FROM outbox WHERE id = ?", (id,))

    def outbox(self, after: int = 0, limit: int = 1_000_000) -> list[OutboxRow]:
        """Publications with an id over `after`, in order."""
        rows = self._connection.execute(
            "SELECT id, key, topic, payload, blob, retain, kind FROM outbox WHERE id > ? ORDER BY id LIMIT ?",
            (after, limit),
        )
        return [OutboxRow(i, k, t, p, b, bool(r), n) for i, k, t, p, b, r, n in rows]

    def withdraw(self, topic: str) -> list[int]:
        """Remove the publications to `topic`; their ids."""
        ids = [row[0] for row in self._connection.execute("SELECT id FROM outbox WHERE topic = ?", (topic,))]
        for id in ids:
            self.remove(id)
        return ids

    def outbox_row(self, id: int) -> OutboxRow | None:
        """One publication by id."""
        rows = self.outbox(after=id - 1, limit=1)
        return rows[0] if rows and rows[0].id == id else None

    def outbox_id(self, key: str) -> int | None:
        """The id of the publication under `key`."""
        row = self._connection.execute("SELECT id FROM outbox WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    # --- retained topics that this process owns ---

    def own(self, topic: str, payload: bytes | None, blob: str = "", kind: str = "message") -> None:
        """Remember what this process keeps retained on `topic` (chunks of a part: its blob/<hash> prefix)."""
        self._connection.execute(
            "INSERT OR REPLACE INTO retained VALUES (?, ?, ?, ?)", (topic, payload, blob, kind)
        )

    def disown(self, topic: str) -> None:
        """Forget a retained topic."""
        self._connection.execute("DELETE FROM retained WHERE topic = ?", (topic,))

    def owns(self, topic: str) -> bool:
        """True when this process keeps something retained on `topic`."""
        row = self._connection.execute("SELECT 1 FROM retained WHERE topic = ?", (topic,)).fetchone()
        return row is not None

    def owned(self) -> list[tuple[str, bytes | None, str, str]]:
        """(topic, payload, blob, kind) of every retained topic, parts first."""
        return list(
            self._connection.execute(
                "SELECT topic, payload, blob, kind FROM retained ORDER BY kind <> 'part', topic"
            )
        )

    # --- spool ---

    def spool(
        self, topic: str, transfer: str, index: int, count: int, size: int, now: float, data: bytes
    ) -> bool:
        """Store one arriving chunk; True when the payload is complete.

        The same payload cut otherwise is a transfer of its own: remains of an old cut never mix with a new
        one. Per topic the four newest transfers are kept, so that a stranger cannot fill the disk.
        """
        place = (topic, _cut_key(transfer, count, size))
        self._connection.execute(
            "INSERT OR IGNORE INTO spool VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*place, index, count, size, now, data),
        )
        here: int = self._connection.execute(
            "SELECT COUNT(*) FROM spool WHERE topic = ? AND transfer = ?", place
        ).fetchone()[0]
        if here == 1:
            self._connection.execute(
                """DELETE FROM spool WHERE topic = ?1 AND transfer NOT IN (
                       SELECT transfer FROM spool WHERE topic = ?1
                       GROUP BY transfer ORDER BY MAX(arrived) DESC, MAX(rowid) DESC LIMIT 4)""",
                (topic,),
            )
        return here == count

    def unspool(self, topic: str, transfer: str, count: int, size: int) -> list[bytes]:
        """Take a payload's chunks out of the spool, in order."""
        place = (topic, _cut_key(transfer, count, size))
        rows = self._connection.execute(
            "SELECT data FROM spool WHERE topic = ? AND transfer = ? ORDER BY number", place
        ).fetchall()
        self._connection.execute("DELETE FROM spool WHERE topic = ? AND transfer = ?", place)
        return [row[0] for row in rows]

    def drop_spool(self, topic: str) -> None:
        """Drop whatever has come on a topic: it is not wanted any more."""
        self._connection.execute("DELETE FROM spool WHERE topic = ?", (topic,))

    def expire_spool(self, before: float) -> None:
        """Drop the chunks of transfers whose last chunk arrived earlier than `before`."""
        self._connection.execute(
            """DELETE FROM spool WHERE (topic, transfer) IN (
                   SELECT topic, transfer FROM spool GROUP BY topic, transfer HAVING MAX(arrived) < ?)""",
            (before,),
        )

    # --- ledger ---

    def log(self, wall: float, round: int, kind: str, subject: str, detail: Mapping[str, Any]) -> None:
        """Append one line to the ledger."""
        self._connection.execute(
            "INSERT INTO ledger (wall, round, kind, subject, detail) VALUES (?, ?, ?, ?, ?)",
            (wall, round, kind, subject, json.dumps(detail, sort_keys=True)),
        )

    def ledger(self, kind: str | None = None, round: int | None = None, after: int = 0) -> list[LedgerLine]:
        """Lines of the ledger in order, by kind and round when given."""
        rows = self._connection.execute(
            """SELECT id, wall, round, kind, subject, detail FROM ledger
               WHERE id > ?1 AND (?2 IS NULL OR kind = ?2) AND (?3 IS NULL OR round = ?3) ORDER BY id""",
            (after, kind, round),
        )
        return [LedgerLine(i, w, r, k, s, json.loads(d)) for i, w, r, k, s, d in rows]

    def collect_ledger(self, before: int, beside: Iterable[str] = ()) -> int:
        """Delete all lines from before the first one of round `before`; how many went.

        Lines of the kinds `beside` do not tell where a round begins: strangers choose their round.
        """
        kinds = tuple(beside)
        marks = ", ".join("?" for _ in kinds)
        first = self._connection.execute(
            f"SELECT id FROM ledger WHERE round >= ? AND kind NOT IN ({marks}) ORDER BY id LIMIT 1",
            (before, *kinds),
        ).fetchone()
        if first is None:
            return 0
        return self._connection.execute("DELETE FROM ledger WHERE id < ?", first).rowcount


def _cut_key(transfer: str, count: int, size: int) -> str:
    return f"{transfer} {count} {size}"
