"""A fleet of real processes on a real broker: start, kill -9, start again, look into the stores."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedbac_edge.datasets import idx
from fedbac_edge.federation_file import reading
from fedbac_edge.node.store import Store, StoreError
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.settings.federation import Federation

FASHION = Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")

ROSTER = {"gw1": ("dev-a", "dev-b", "dev-c"), "gw2": ("dev-d", "dev-e")}

FEDERATION = """
name = "equal"
seed = 5
rounds = 4
eligibility = "roster"
[model]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
mean = [0.286]
std = [0.353]
[method]
clusters = 2
[training]
epochs = 2
learning_rate = 0.03
backend = "reference"
[selection]
participation = 0.7
warm_up = 1
[assignment]
every = 2
[deadlines]
deadline_min_s = 600.0
[gateways]
gw1 = ["dev-a", "dev-b", "dev-c"]
gw2 = ["dev-d", "dev-e"]
"""


class Fleet:
    """Processes by name, each with a log; all of them end with the test."""

    def __init__(self, root: Path, data: Path, broker: str) -> None:
        self.root, self.data, self.kind = root, data, broker
        self.url = f"mqtt://127.0.0.1:{_free_port()}"
        self.file = root / "federation.toml"
        self.file.write_text(FEDERATION)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start "broker", "cloud", a gateway or a device, as a person would."""
        python = [sys.executable, "-m"]
        port = self.url.rsplit(":", 1)[1]
        state = str(self.root / "state" / name)
        gateway = next((gw for gw, members in ROSTER.items() if name in members), "")
        if name == "broker":
            command = [
                "fedbac_edge.cli",
                "broker",
                "run",
                "--kind",
                self.kind,
                "--port",
                port,
                "--state",
                state,
            ]
        elif name == "cloud":
            command = ["fedbac_edge.cli", "cloud", "run", "--federation", str(self.file), "--state", state]
        elif name in ROSTER:
            command = ["fedbac_edge.cli", "gateway", "run", name, "--state", state]
        else:
            command = ["device_agent", "join", "--edge", gateway, "--name", name, "--state", state]
            command += ["--data", str(self.data / f"{name}.npz")]
        if name != "broker":
            command += ["--broker", self.url]
        with (self.root / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*python, *command], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def start_all(self) -> None:
        """In the order of nobody's convenience: devices first, the broker last."""
        for members in ROSTER.values():
            for device in members:
                self.start(device)
        for name in (*ROSTER, "cloud", "broker"):
            self.start(name)

    def kill(self, name: str) -> None:
        """kill -9, the process alone: what it started must notice by itself."""
        self._processes[name].send_signal(signal.SIGKILL)
        self._processes[name].wait()

    def wait_for_cloud(self, timeout: float = 150.0) -> dict[str, str]:
        """Wait until the campaign is over; part name -> hash."""
        code = self._processes["cloud"].wait(timeout)
        assert code == 0, self.log("cloud")
        state = msgspec.msgpack.decode(self.state("cloud") or b"", type=CloudState)
        return {name: ref.hash for name, ref in state.parts.items()}

    def state(self, name: str) -> bytes | None:
        """The stored state of a process's machine, or None while there is none."""
        files = sorted((self.root / "state" / name).rglob("*.sqlite"))
        try:
            store = Store(files[0], read_only=True) if files else None
        except StoreError:
            return None
        if store is None:
            return None
        try:
            return store.read("machine")
        finally:
            store.close()

    def wait_until(self, holds: Callable[[], bool], what: str, timeout: float = 90.0) -> None:
        """Poll a condition; fails the test with all logs when it does not come true."""
        end = time.monotonic() + timeout
        while not holds():
            if time.monotonic() > end:
                logs = "\n".join(f"--- {name}\n{self.log(name)}" for name in self._processes)
                pytest.fail(f"{what} did not happen within {timeout:g} s\n{logs}")
            time.sleep(0.02)

    def log(self, name: str) -> str:
        """The last lines that a process printed."""
        return (self.root / f"{name}.log").read_text(errors="replace")[-2000:]

    def close(self) -> None:
        """End whatever still runs, with whatever that started."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for name, process in self._processes.items():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                pytest.fail(f"{name} did not end within 10 s of SIGTERM: {self.log(name)}")


@pytest.fixture(scope="session")
def federation() -> Federation:
    """The small federation of these tests."""
    return reading.parse(FEDERATION)


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One .npz of real images per device, of unequal sizes."""
    if not FASHION.exists():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    folder = tmp_path_factory.mktemp("shards")
    x = idx.read_array(FASHION)[:3000, :, :, None]
    y = idx.read_array(FASHION.with_name("train-labels-idx1-ubyte.gz"))[:3000].astype(np.int64)
    edges = np.cumsum([0, 350, 200, 300, 250, 280])
    for device, (start, end) in zip(
        [device for members in ROSTER.values() for device in members],
        itertools.pairwise(edges.tolist()),
        strict=True,
    ):
        np.savez(folder / f"{device}.npz", x=x[start:end], y=y[start:end])
    return folder


@pytest.fixture
def fleet(tmp_path: Path, shards: Path) -> Iterator[Callable[[str], Fleet]]:
    """Makes a fleet on a broker of the given kind."""
    made: list[Fleet] = []

    def make(broker: str) -> Fleet:
        made.append(Fleet(tmp_path, shards, broker))
        return made[-1]

    yield make
    for one in made:
        one.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
