"""What tests of the field share."""

from __future__ import annotations

import os
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
from fedbac_edge.node.store import LedgerLine, Store, StoreError
from fedbac_edge.protocol.cloud.state import CloudState

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
        self.data = folder / "data.npz"
        np.savez(self.data, x=x, y=y)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, **environment: str) -> None:
        """Start a role; any other name is one more device that trains."""
        state = str(self.state / name)
        agent = ["device_agent"]
        join = [*agent, "join", "--edge", "gw1", "--name", name, "--data", str(self.data)]
        command = {
            "cloud": ["fedbac_edge.cli", "cloud", "run", "--federation", str(self.file)],
            "gw1": ["fedbac_edge.cli", "gateway", "run", "gw1"],
            "serving": [*agent, "serve", "--edge", "gw1", "--name", "serving"],
        }.get(name, join)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *command, "--broker", self.broker, "--state", state],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            )

    def fedbac(self, *arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fedbac_edge.cli", *map(str, arguments)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="surrogateescape") if path.exists() else ""

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


@pytest.fixture
def record(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Says a figure on the terminal, whatever is captured: long campaigns tell how much they did."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n    {text}", flush=True)

    return say
