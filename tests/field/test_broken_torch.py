"""A device whose torch dies at import, as a process: it says why, leaves the selection, and stays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedbac_edge.node.store import Store

if TYPE_CHECKING:
    from tests.field.conftest import Fleet


def test_it_leaves_the_selection_and_stays(fleet: Fleet, tmp_path: Path) -> None:
    package = tmp_path / "broken" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    fleet.start("broken", PYTHONPATH=str(package.parent))
    fleet.wait_for("broken", "leaving the selection until this agent is started again")
    assert "SIGILL" in fleet.log("broken")
    then = fleet.counted()
    fleet.wait_until(lambda: fleet.counted() >= then + 6, "rounds without it")
    assert fleet.processes["broken"].poll() is None, "it stays, for its owner to look at"
    store = Store(fleet.state / "gw1" / "gateway-gw1.sqlite", read_only=True)
    try:
        asked = [
            name
            for line in store.ledger("selected")
            if line.round > then + 2
            for name in line.detail["asked"]
        ]
    finally:
        store.close()
    assert set(asked) == {"dev"}
    fleet.processes["broken"].terminate()
    assert fleet.processes["broken"].wait(20) == 0
