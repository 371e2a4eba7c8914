"""A cloud that goes on from an older backup, over Mosquitto: gateway and devices follow it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.field.conftest import Fleet


def by_command(fleet: Fleet, backup: Path) -> None:
    fleet.processes["cloud"].terminate()
    assert fleet.processes["cloud"].wait(20) == 0
    said = fleet.fedbac("restore", backup, "--state", fleet.state / "cloud")
    assert "before-restore" in said, "what was there is kept"


def by_copying(fleet: Fleet, backup: Path) -> None:
    """As people do it who have not read about `fedbac restore`."""
    fleet.processes["cloud"].kill()
    fleet.processes["cloud"].wait()
    for end in ("", "-wal", "-shm"):
        (fleet.state / "cloud" / f"cloud.sqlite{end}").unlink(missing_ok=True)
    shutil.copyfile(backup, fleet.state / "cloud" / "cloud.sqlite")


@pytest.mark.parametrize("restore", [by_command, by_copying])
def test_a_fleet_follows_a_restored_cloud(fleet: Fleet, restore: Callable[[Fleet, Path], None]) -> None:
    """Twice from the same backup: the second time the fleet is a generation ahead, too."""
    fleet.wait_until(lambda: fleet.counted() >= 4, "round 4")
    fleet.wait_for("serving", "answering with release")
    said = fleet.fedbac("backup", "--state", fleet.state / "cloud", "--to", fleet.folder)
    backup = Path(said.split(": federation")[0])
    assert backup.is_file()
    then = fleet.fedbac("status", "--state", backup, "--json")
    round_then = json.loads(then)[0]["round"]
    instances = [fleet.cloud().instance]
    for _ in range(2):
        before = fleet.cloud()
        fleet.wait_until(lambda: fleet.counted() >= round_then + 7, "rounds after the backup")
        released = fleet.cloud().release_number
        marks = {name: len(fleet.log(name)) for name in fleet.processes}
        restore(fleet, backup)
        fleet.start("cloud")
        fleet.wait_for("cloud", "restored from an older backup", marks["cloud"])
        fleet.wait_for("gw1", "the cloud was restored from an older backup", marks["gw1"])
        fleet.wait_for("dev", "the cloud was restored from an older backup", marks["dev"])
        fleet.wait_until(lambda: fleet.counted() >= round_then + 2, "a round after the restoration")
        fleet.wait_for("serving", "the cloud was restored from an older backup", marks["serving"])
        state = fleet.cloud()
        assert state.instance not in instances, "a new generation"
        assert state.instance[:4] == instances[0][:4], "of the same federation"
        assert state.founded > before.founded, "so that its releases count as newer"
        assert released
        fleet.wait_for("serving", "answering with release", marks["serving"])
        if restore is by_command:  # a plain copy first says again what it knew
            assert "is not newer" not in fleet.log("serving")[marks["serving"] :]
        limits = [line.detail["deadline"] for line in fleet.ledger("round") if line.round > round_then]
        assert max(limits) <= max(20.0, 2.0 * max(state.seconds)), "void rounds do not draw out the next ones"
        instances.append(state.instance)
