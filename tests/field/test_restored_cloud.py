"""A cloud that goes on from an older backup, over Mosquitto: gateway and devices follow it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from broker.mosquitto import MosquittoBroker
from fedbac_edge.protocol.cloud_state import CloudState
from fedbac_edge.store import LedgerLine, Store, StoreError

FEDERATION = """
name = "again"
rounds = 100000
[model]
classes = ["a", "b"]
input = [1, 16, 16]
[training]
epochs = 1
[deadlines]
gather_s = 1.0
deadline_min_s = 20.0
[releases]
every = 3
[gateways]
gw1 = []
"""
WAIT_S = 150.0


class Fleet:
    """A cloud, gw1, a device that trains and one that serves; each has a log and a state of its own."""

    def __init__(self, folder: Path, broker: str) -> None:
        self.folder, self.broker = folder, broker
        self.file, self.state = folder / "federation.toml", folder / "state"
        self.file.write_text(FEDERATION)
        rng = np.random.default_rng(0)
        x, y = rng.integers(0, 255, (40, 16, 16, 1), dtype=np.uint8), np.arange(40) % 2
        np.savez(folder / "data.npz", x=x, y=y)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        state = str(self.state / name)
        agent = ["device_agent"]
        command = {
            "cloud": ["fedbac_edge.cli", "cloud", "run", "--federation", str(self.file)],
            "gw1": ["fedbac_edge.cli", "gateway", "run", "gw1"],
            "dev": [
                *agent,
                "join",
                "--edge",
                "gw1",
                "--name",
                "dev",
                "--data",
                str(self.folder / "data.npz"),
            ],
            "serving": [*agent, "serve", "--edge", "gw1", "--name", "serving"],
        }[name]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *command, "--broker", self.broker, "--state", state],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def fedbac(self, *arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fedbac_edge.cli", *map(str, arguments)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def wait_for(self, name: str, text: str, after: int = 0) -> None:
        self.wait_until(lambda: text in self.log(name)[after:], f"{name}: {text!r}")

    def wait_until(self, holds: Callable[[], Any], what: str) -> None:
        end = time.monotonic() + WAIT_S
        while not holds():
            logs = "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in self.processes)
            assert time.monotonic() < end, f"{what} never came\n{logs}"
            time.sleep(0.1)

    def of_store(self, what: Callable[[Store], Any], default: Any) -> Any:
        try:
            store = Store(self.state / "cloud" / "cloud.sqlite", read_only=True)
        except StoreError:
            return default
        try:
            return what(store)
        finally:
            store.close()

    def cloud(self) -> CloudState:
        def read(store: Store) -> CloudState:
            return msgspec.msgpack.decode(store.read("machine") or b"", type=CloudState)

        found: CloudState = self.of_store(read, CloudState(instance="0" * 8))
        return found

    def ledger(self, kind: str) -> list[LedgerLine]:
        lines: list[LedgerLine] = self.of_store(lambda store: store.ledger(kind), [])
        return lines

    def counted(self) -> int:
        """The newest round in which an update counted."""
        return max((line.round for line in self.ledger("aggregated") if not line.detail["void"]), default=0)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with MosquittoBroker("127.0.0.1", port, tmp_path / "mosquitto"):
        made = Fleet(tmp_path, f"mqtt://127.0.0.1:{port}")
        try:
            for name in ("cloud", "gw1", "dev", "serving"):
                made.start(name)
            yield made
        finally:
            for process in made.processes.values():
                process.kill()
                process.wait()


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
        assert "is not newer" not in fleet.log("serving")[marks["serving"] :]
        limits = [line.detail["deadline"] for line in fleet.ledger("round") if line.round > round_then]
        assert max(limits) <= max(20.0, 2.0 * max(state.seconds)), "void rounds do not draw out the next ones"
        instances.append(state.instance)
