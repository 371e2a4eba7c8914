"""SIGTERM: every role is gone within five seconds with its state saved, whatever its network does."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from broker.mosquitto import MosquittoBroker
from fedbac_edge.node.store import LedgerLine, Store, StoreError

FEDERATION = """
name = "leaving"
rounds = 100000
[model]
classes = ["a", "b"]
input = [1, 16, 16]
[training]
epochs = 1
[deadlines]
gather_s = 1.0
[gateways]
gw1 = []
"""
LEAVE_S = 5.0

Start = Callable[..., subprocess.Popen[bytes]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts commands with a log each; what a test leaves is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{name}.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", *arguments],
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                )
            )
        return started[-1]

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


def start_all(
    start: Start, folder: Path, url: str, training: str = "epochs = 1"
) -> dict[str, subprocess.Popen[bytes]]:
    (folder / "federation.toml").write_text(FEDERATION.replace("epochs = 1", training))
    images = np.random.default_rng(1).integers(0, 256, (60, 16, 16), dtype=np.uint8)
    np.savez(folder / "data.npz", x=images, y=np.arange(60) % 2)
    common = ["--broker", url, "--state", str(folder / "state")]
    cloud = ["fedbac_edge.cli", "cloud", "run", "--federation", str(folder / "federation.toml")]
    agent = ["device_agent", "join", "--edge", "gw1", "--name", "d1", "--data", str(folder / "data.npz")]
    gateway = ["fedbac_edge.cli", "gateway", "run", "gw1", "--federation", "leaving"]
    return {
        "cloud": start("cloud", *cloud, *common),
        "gateway": start("gateway", *gateway, *common),
        "agent": start("agent", *agent, *common[:2], "--state", str(folder / "agent")),
    }


def leave(process: subprocess.Popen[bytes]) -> float:
    """Seconds until it has ended after SIGTERM."""
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    return time.monotonic() - began


def wait_for(holds: Callable[[], bool], what: str, folder: Path) -> None:
    end = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end:
            logs = "\n".join(f"--- {path}\n{path.read_text()[-1500:]}" for path in folder.glob("*.log"))
            pytest.fail(f"{what} did not happen\n{logs}")
        time.sleep(0.05)


def test_every_role_in_the_middle_of_rounds(start: Start, tmp_path: Path) -> None:
    port = free_port()
    with MosquittoBroker("127.0.0.1", port, tmp_path / "mosquitto"):
        processes = start_all(start, tmp_path, f"mqtt://127.0.0.1:{port}")
        wait_for(lambda: "round 2: update counted" in log(tmp_path, "agent"), "round 2", tmp_path)
        for name, code in (("agent", 0), ("gateway", 0), ("cloud", 0)):
            assert leave(processes[name]) < LEAVE_S, name
            assert processes[name].returncode == code, log(tmp_path, name)
            assert "Traceback" not in log(tmp_path, name)
    # What they had come to is there: folded into one file each, readable, and of the same round.
    stores = [*(tmp_path / "state").glob("*.sqlite"), *(tmp_path / "agent").rglob("*.sqlite")]
    assert len(stores) == 3
    for path in stores:
        assert not path.with_name(f"{path.name}-wal").exists(), "the store was not closed"
        store = Store(path, read_only=True)
        assert store.read("machine")
        assert store.ledger()
        store.close()


def log(folder: Path, name: str) -> str:
    return (folder / f"{name}.log").read_text()


class Deaf:
    """Takes connections and never says a word: a broker behind a dead firewall."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.taken: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.taken.append(self._listener.accept()[0])

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self.taken:
            sock.close()


def test_while_a_broker_that_does_not_answer_is_waited_for(start: Start, tmp_path: Path) -> None:
    deaf = Deaf()
    try:
        processes = start_all(start, tmp_path, f"mqtt://127.0.0.1:{deaf.port}")
        wait_for(lambda: len(deaf.taken) >= 3, "connections of all", tmp_path)
        for name, process in processes.items():
            assert leave(process) < LEAVE_S, name
            assert "Traceback" not in log(tmp_path, name)
    finally:
        deaf.close()


def test_with_a_broker_that_has_stopped_answering(start: Start, tmp_path: Path) -> None:
    """Connected, and something is to be said: the goodbye cannot be."""
    port = free_port()
    with MosquittoBroker("127.0.0.1", port, tmp_path / "mosquitto") as broker:
        processes = start_all(start, tmp_path, f"mqtt://127.0.0.1:{port}")
        wait_for(lambda: "round 1: update counted" in log(tmp_path, "agent"), "round 1", tmp_path)
        pid = broker.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            for name, process in processes.items():
                assert leave(process) < LEAVE_S, name
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_device_that_leaves_in_its_training_costs_the_others_nothing(start: Start, tmp_path: Path) -> None:
    """The other one is long done; without a word from the leaving one the round lasted to its deadline."""
    port = free_port()
    with MosquittoBroker("127.0.0.1", port, tmp_path / "mosquitto"):
        slow = np.random.default_rng(2).integers(0, 256, (40_000, 16, 16), dtype=np.uint8)
        np.savez(tmp_path / "slow.npz", x=slow, y=np.arange(40_000) % 2)
        url = f"mqtt://127.0.0.1:{port}"
        processes = start_all(start, tmp_path, url, "epochs = 50\n[selection]\nparticipation = 1.0")
        arguments = ["device_agent", "join", "--edge", "gw1", "--name", "d2", "--broker", url]
        data = ["--data", str(tmp_path / "slow.npz"), "--state", str(tmp_path / "d2")]
        leaving = start("d2", *arguments, *data)
        store = tmp_path / "state" / "gateway-gw1.sqlite"

        def lines(kind: str) -> list[LedgerLine]:
            with contextlib.suppress(StoreError), contextlib.closing(Store(store, read_only=True)) as opened:
                return opened.ledger(kind)
            return []  # it is being made

        def both() -> set[int]:
            asked = {line.round for line in lines("selected") if set(line.detail["asked"]) == {"d1", "d2"}}
            return asked & {line.round for line in lines("accepted") if line.subject == "d1"}

        wait_for(lambda: bool(both()), "a round in which d1 has answered and d2 trains", tmp_path)
        (round, *_) = both()
        leaving.send_signal(signal.SIGINT)
        leaving.wait(30)
        wait_for(lambda: any(line.round == round for line in lines("closed")), "the close", tmp_path)
        assert [(line.subject, line.detail["why"]) for line in lines("declined") if line.round == round] == [
            ("d2", "the device has left")
        ]
        assert not lines("silent")
        assert all(process.poll() is None for process in processes.values())
