"""The store: one file, one transaction per event, and clear words when the file is not ours."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fedbac_edge.node.runtime import opened_store
from fedbac_edge.node.store import Store, StoreError
from fedbac_edge.node.store_file import SCHEMA_VERSION


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "deep" / "down" / "s.sqlite")


def test_a_fresh_store_has_the_newest_version(store: Store, tmp_path: Path) -> None:
    store.write("a", b"1")
    assert Store(tmp_path / "deep" / "down" / "s.sqlite").read("a") == b"1"
    version = store._connection.execute("PRAGMA user_version").fetchone()[0]
    assert version == SCHEMA_VERSION
    assert store._connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert store._connection.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_newer_software_wrote_it(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "s.sqlite"
    store._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    store.close()
    for read_only in (False, True):
        with pytest.raises(StoreError) as refusal:
            Store(path, read_only=read_only)
        assert f"store version {SCHEMA_VERSION + 1}, this one knows {SCHEMA_VERSION}" in str(refusal.value)
        assert str(path) in str(refusal.value)


@pytest.mark.parametrize("read_only", [False, True])
def test_files_that_are_no_store(tmp_path: Path, read_only: bool) -> None:
    text, foreign, folder = tmp_path / "text", tmp_path / "foreign", tmp_path / "folder"
    text.write_bytes(b"this is no database at all " * 100)
    folder.mkdir()
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    for path, why in ((text, "not a database"), (foreign, "another software"), (folder, "folder")):
        with pytest.raises(StoreError) as refusal:
            Store(path, read_only=read_only)
        assert why in str(refusal.value)
        assert str(path) in str(refusal.value)
    assert text.read_bytes().startswith(b"this is no database")
    with sqlite3.connect(foreign) as connection:
        assert [row[0] for row in connection.execute("SELECT name FROM sqlite_master")] == ["songs"]
    connection.close()


def test_read_only_reads_and_never_makes(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        Store(tmp_path / "other.sqlite", read_only=True)
    assert not (tmp_path / "other.sqlite").exists()
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(StoreError, match="is empty: what it held is lost"):
        Store(tmp_path / "empty", read_only=True)
    store.log(1.0, 2, "kind", "d1", {"a": 1})
    reader = Store(tmp_path / "deep" / "down" / "s.sqlite", read_only=True)
    (line,) = reader.ledger()
    assert (line.wall, line.round, line.kind, line.subject, line.detail) == (1.0, 2, "kind", "d1", {"a": 1})
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.write("a", b"1")
    with store.transaction():
        store.log(1.0, 3, "kind", "d2", {})
        assert len(reader.ledger()) == 1, "not yet committed"
    assert len(reader.ledger()) == 2


def test_a_second_process_is_told_to_go_elsewhere(tmp_path: Path) -> None:
    with opened_store(tmp_path, "gw1"):
        second = opened_store(tmp_path, "gw1")
        with pytest.raises(StoreError, match=r"another process uses .*gw1\.sqlite; stop it"):
            second.__enter__()
        with opened_store(tmp_path, "gw2") as other:
            other.write("a", b"1")
    with opened_store(tmp_path, "gw1") as again:
        assert again.read("a") is None


def test_a_killed_process_leaves_the_lock_free_and_half_an_event_undone(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from fedbac_edge.node.runtime import opened_store
with opened_store(Path(sys.argv[1]), "gw1") as store:
    with store.transaction():
        store.write("a", b"done")
        store.post("topic", b"payload", key="k")
    with store.transaction():
        store.write("a", b"half")
        store.settle("k")
        os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert killed.returncode == -9
    with opened_store(tmp_path, "gw1") as store:
        assert store.read("a") == b"done"
        assert [row.key for row in store.outbox()] == ["k"]


def test_a_transaction_is_all_or_nothing(store: Store) -> None:

    def fail() -> None:
        with store.transaction():
            store.write("a", b"1")
            store.keep_blob("h", b"data")
            store.post("t", b"p")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert store.read("a") is None
    assert store.outbox() == []
    assert "h" not in store.blobs


def test_a_reader_sees_the_blobs_that_come_and_go_under_it(store: Store, tmp_path: Path) -> None:
    store.keep_blob("first", b"1")
    reader = Store(tmp_path / "deep" / "down" / "s.sqlite", read_only=True)
    assert list(reader.blobs) == ["first"]
    store.keep_blob("second", b"2")
    assert list(reader.blobs) == ["first", "second"]
    store.collect_blobs({"second"})
    assert "first" not in reader.blobs
    reader.close()


def test_what_a_rollback_deletes_or_brings_back_is_known(store: Store) -> None:
    store.keep_blob("old", b"1")

    def fail() -> None:
        with store.transaction():
            store.collect_blobs(set())
            store.keep_blob("new", b"2")
            assert list(store.blobs) == ["new"]
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(store.blobs) == ["old"]
    store.keep_blob("new", b"2")
    assert store.blobs["new"] == b"2"


def test_blobs_stay_while_anybody_needs_them(store: Store) -> None:
    for name in ("kept", "sent", "owned", "gone"):
        store.keep_blob(name, name.encode())
        store.keep_blob(name, b"something else under the same hash")
    store.post("blob/sent/", None, blob="sent", kind="part")
    store.own("blob/owned/", None, "owned", "part")
    assert store.collect_blobs({"kept"}) == 1
    assert list(store.blobs) == ["kept", "owned", "sent"]
    assert len(store.blobs) == 3
    assert store.blobs["kept"] == b"kept"
    assert "gone" not in store.blobs
    with pytest.raises(KeyError):
        store.blobs["gone"]
    store.disown("blob/owned/")
    assert store.withdraw("blob/sent/")
    assert store.collect_blobs(set()) == 3


def test_one_publication_per_key(store: Store) -> None:
    first = store.post("t", b"1", key="k")
    second = store.post("t", b"2", key="k")
    store.post("t", b"3")
    store.post("t", b"4")
    assert first != second
    assert [row.payload for row in store.outbox()] == [b"2", b"3", b"4"]
    assert store.outbox_id("k") == second
    assert store.outbox_row(first) is None
    assert store.settle("k") == second
    assert store.settle("k") is None
    assert store.outbox_row(second) is None
    assert store.post("t", b"5") > second, "an id is never used twice"


def test_retained_topics_by_owner(store: Store) -> None:
    store.own("z/manifest", b"m", kind="manifest")
    store.own("b/part", None, "hash", "part")
    store.own("a/status", b"1")
    store.own("a/status", b"2")
    assert store.owned() == [
        ("b/part", None, "hash", "part"),
        ("a/status", b"2", "", "message"),
        ("z/manifest", b"m", "", "manifest"),
    ]
    assert store.owns("b/part")
    store.disown("b/part")
    assert not store.owns("b/part")


def spool(store: Store, transfer: str, index: int, count: int = 3, size: int = 30, now: float = 0.0) -> bool:
    return store.spool("topic", transfer, index, count, size, now, bytes([index]))


def test_chunks_are_put_together_in_order_whatever_the_order_of_arrival(store: Store) -> None:
    assert [spool(store, "a", index) for index in (2, 0, 2, 0)] == [False] * 4
    assert spool(store, "a", 1)
    assert store.unspool("topic", "a", 3, 30) == [b"\x00", b"\x01", b"\x02"]
    assert store.unspool("topic", "a", 3, 30) == []


def test_two_cuts_of_one_payload_do_not_mix_and_do_not_hinder_each_other(store: Store) -> None:
    """Remains of an old cut may come again and again between the chunks of the new one."""
    assert not any((spool(store, "a", 0), spool(store, "a", 1, count=2), spool(store, "a", 1)))
    assert spool(store, "a", 0, count=2)
    assert store.unspool("topic", "a", 2, 30) == [b"\x00", b"\x01"]
    assert spool(store, "a", 2)
    spool(store, "b", 0)
    store.drop_spool("topic")
    assert store.unspool("topic", "a", 3, 30) == store.unspool("topic", "b", 3, 30) == []


def test_four_transfers_of_a_topic_are_kept_even_within_one_moment(store: Store) -> None:
    for number in range(9):
        spool(store, f"{number}", 0)
    rows = store._connection.execute("SELECT transfer FROM spool ORDER BY transfer").fetchall()
    assert [row[0].split()[0] for row in rows] == ["5", "6", "7", "8"]


def test_transfers_expire_by_their_last_chunk(store: Store) -> None:
    spool(store, "old", 0, now=0.0)
    spool(store, "alive", 0, now=0.0)
    spool(store, "alive", 1, now=50.0)
    store.expire_spool(before=10.0)
    assert store.unspool("topic", "old", 3, 30) == []
    assert len(store.unspool("topic", "alive", 3, 30)) == 2


def test_the_ledger_is_filtered_by_kind_round_and_place(store: Store) -> None:
    for round, kind in ((1, "asked"), (1, "answered"), (2, "asked")):
        store.log(float(round), round, kind, "d1", {})
    assert [line.round for line in store.ledger("asked")] == [1, 2]
    assert [line.kind for line in store.ledger(round=1)] == ["asked", "answered"]
    assert [line.kind for line in store.ledger(after=2)] == ["asked"]
    assert store.ledger("asked", 3) == []
