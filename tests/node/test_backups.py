"""Restoring: what lies in a backup's write-ahead log counts, and at no moment is the state's place empty."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from fedbac_edge.node import backups
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.settings.federation import Federation, ModelTable

DIES_AT = """
import os, signal, sys
from pathlib import Path
from fedbac_edge.node import backups

left = int(sys.argv[3])

def hook(event, arguments):
    global left
    if event in ("os.rename", "os.link", "os.remove"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
backups.restore(Path(sys.argv[1]), Path(sys.argv[2]))
"""
"""`restore BACKUP STATE`, killed before it renames, links or removes a file for the Nth time."""


def write(store: Store, round: int) -> None:
    """The state of a cloud after `round`."""
    with store.transaction():
        store.write("machine", msgspec.msgpack.encode(CloudState(instance="0badcafe", round=round)))
        store.write(
            "federation",
            msgspec.msgpack.encode(Federation(name="orchard", model=ModelTable(classes=("a", "b")))),
        )


def copy_of_running(place: Path) -> Path:
    """Copies of all files of a store whose owner was killed: round 4 in the file, round 5 in its log."""
    place.mkdir()
    running = place / "running.sqlite"
    with contextlib.closing(Store(running)) as store:
        write(store, 4)
    with contextlib.closing(Store(running)) as store:
        write(store, 5)
        for end in ("", "-wal", "-shm"):
            shutil.copy(f"{running}{end}", place / f"cloud.sqlite{end}")
    return place / "cloud.sqlite"


def restored_round(state: Path) -> int:
    return backups.describe(state / "cloud.sqlite").round


def test_what_lies_in_the_log_of_a_copied_store_is_restored(tmp_path: Path) -> None:
    backup, state = copy_of_running(tmp_path / "copied"), tmp_path / "state"
    found, _ = backups.restore(backup, state)
    assert (found.round, found.path, restored_round(state)) == (5, backup, 5)


def test_a_store_that_is_restored_in_its_own_place_keeps_its_log(tmp_path: Path) -> None:
    own = copy_of_running(tmp_path / "state")
    _, aside = backups.restore(own, own.parent)
    assert aside is not None
    assert (restored_round(own.parent), backups.describe(aside).round) == (5, 5)


def test_a_restore_that_is_killed_leaves_a_state_in_its_place(tmp_path: Path) -> None:
    backup = copy_of_running(tmp_path / "copied")
    killed = 0
    while True:
        killed += 1
        state = tmp_path / f"state-{killed}"
        state.mkdir()
        with contextlib.closing(Store(state / "cloud.sqlite")) as store:
            write(store, 9)
        command = [sys.executable, "-c", DIES_AT, str(backup), str(state), str(killed)]
        code = subprocess.run(command, check=False, timeout=60).returncode
        assert code in (0, -signal.SIGKILL)
        assert restored_round(state) in (5, 9)
        if code == 0:
            break
    assert restored_round(state) == 5
    assert killed > 2


def test_a_damaged_state_goes_aside_as_it_is(tmp_path: Path) -> None:
    backup, state = copy_of_running(tmp_path / "copied"), tmp_path / "state"
    state.mkdir()
    (state / "cloud.sqlite").write_bytes(b"junk" * 3000)
    _, aside = backups.restore(backup, state)
    assert aside is not None
    assert aside.read_bytes() == b"junk" * 3000
    assert restored_round(state) == 5
