"""Under systemd: ready, alive as long as the loop goes round, stopping; and the unit files."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedbac_edge.host import systemd

FEDERATION = 'name = "served"\nrounds = 9\n[model]\nclasses = ["a", "b"]\n[gateways]\ngw1 = []\n'


class Manager:
    """The socket of a service manager."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self.said: list[str] = []

    def wait_for(self, line: str, count: int = 1, timeout: float = 30.0) -> None:
        end = time.monotonic() + timeout
        while self.said.count(line) < count:
            self._socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                self.said += self._socket.recv(4096).decode().splitlines()
            except TimeoutError:
                pytest.fail(f"{line} was said {self.said.count(line)} times: {self.said}")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("role", ["cloud", "gateway", "searching gateway", "agent"])
def test_a_role_says_that_it_is_ready_and_alive(manager: Manager, tmp_path: Path, role: str) -> None:
    """Its broker is away: a service is ready when it can wait by itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"mqtt://127.0.0.1:{probe.getsockname()[1]}"
    (tmp_path / "federation.toml").write_text(FEDERATION)
    (tmp_path / "data").mkdir()
    arguments = {
        "cloud": ["fedbac_edge.cli", "cloud", "run", "--federation", str(tmp_path / "federation.toml")],
        "gateway": ["fedbac_edge.cli", "gateway", "run", "gw1", "--federation", "served"],
        "searching gateway": ["fedbac_edge.cli", "gateway", "run", "gw1"],
        "agent": ["device_agent", "join", "--edge", "gw1", "--data", str(tmp_path / "data")],
    }[role]
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments, "--broker", url, "--state", str(tmp_path / "state")],
        env={**os.environ, "NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "400000"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        manager.wait_for("READY=1")
        manager.wait_for("WATCHDOG=1", 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) in (0, 1)
        if role in ("cloud", "gateway", "agent"):
            manager.wait_for("STOPPING=1")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


def test_a_loop_that_hangs_gives_no_sign(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.path)
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    turns = systemd.Turns(lambda: False)
    with systemd.watched([turns.poke]):
        for _ in range(200):
            assert not turns()
            time.sleep(0.002)
        manager.wait_for("WATCHDOG=1", 3)
        time.sleep(0.3)  # it does not come round any more
        manager._socket.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            while True:
                manager._socket.recv(4096)
        time.sleep(0.3)
        with pytest.raises(TimeoutError):
            manager._socket.recv(4096)
