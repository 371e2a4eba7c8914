"""Real processes over Mosquitto that die of SIGKILL at write points of their stores, over and over."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from broker.mosquitto import MosquittoBroker
from fedbac_edge.lab.trials import trials
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.cloud.state import CloudState

SCRIPT = Path(__file__).with_name("dying_role.py")


@dataclass
class Mortals:
    """Every role as a process that is started again whenever it has died."""

    shape: trials.Shape
    url: str
    state: Path
    lives: int
    """Of each role; the last one does not end by itself."""
    rng: random.Random
    mortal: frozenset[str] = frozenset()
    """Roles that die; empty: all."""
    killed: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: dict[str, threading.Thread] = field(default_factory=dict)

    def start(self) -> None:
        for role in sorted(trials.undisturbed(self.shape)[2]):
            dies = not self.mortal or role in self.mortal
            points = [self.rng.randint(1, 90) for _ in range(self.lives - 1)] if dies else []
            self.killed[role] = 0
            self._threads[role] = threading.Thread(target=self._live, args=(role, [*points, 0]))
            self._threads[role].start()

    def _live(self, role: str, points: list[int]) -> None:
        shape = [str(each) for each in self.shape]
        log = self.state / f"{role}.log"
        for point in points:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    [sys.executable, str(SCRIPT), role, self.url, str(self.state), str(point), *shape],
                    stdout=output,
                    stderr=output,
                )
            while process.poll() is None:
                if self._over.wait(0.02):
                    process.terminate()
                    process.wait(20)
            if process.returncode == -signal.SIGKILL:
                self.killed[role] += 1
            elif process.returncode != 0:
                self.wrong.append(f"{role}: exit code {process.returncode}: {log.read_text()[-1500:]}")
            if process.returncode == 0 and role == "cloud":
                return
            if self._over.is_set():
                return

    def finish(self, timeout: float) -> None:
        """Until the cloud is done; then end the others."""
        cloud = self._threads["cloud"]
        cloud.join(timeout)
        self._over.set()
        late = cloud.is_alive()
        for thread in self._threads.values():
            thread.join(30)
        assert self.wrong == []
        assert not late, "\n".join(path.read_text()[-800:] for path in self.state.glob("*.log"))


def campaign(
    shape: trials.Shape,
    lives: int,
    seed: int,
    folder: Path,
    timeout: float,
    mortal: frozenset[str] = frozenset(),
) -> dict[str, int]:
    """Kills by role of a campaign that came to the models of the undisturbed run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    state = folder / "state"
    state.mkdir()
    with MosquittoBroker("127.0.0.1", port, folder / "mosquitto"):
        mortals = Mortals(shape, f"mqtt://127.0.0.1:{port}", state, lives, random.Random(seed), mortal)
        mortals.start()
        mortals.finish(timeout)
    hashes, _, _ = trials.undisturbed(shape)
    store = Store(state / "cloud.sqlite")
    ended = msgspec.msgpack.decode(store.read("machine") or b"", type=CloudState)
    assert {name: ref.hash for name, ref in sorted(ended.parts.items())} == hashes
    for role in trials.federation_of(shape).gateways:
        accepted = [(line.round, line.subject) for line in Store(state / f"{role}.sqlite").ledger("accepted")]
        assert len(accepted) == len(set(accepted)) > 0
    return mortals.killed


def test_every_role_is_killed_several_times(tmp_path: Path) -> None:
    killed = campaign((1, 1, 2, "int8"), lives=4, seed=1, folder=tmp_path, timeout=150)
    assert min(killed.values()) >= 1, killed
    assert sum(killed.values()) >= 5, killed


def test_a_device_without_labels_is_killed_in_its_rounds(tmp_path: Path) -> None:
    """HASSLE: d11 has labels only, d12 none at all, d13 both; their parts are averages of their own."""
    shape: trials.Shape = (1, 3, 3, "int8", "hassle")
    killed = campaign(shape, lives=5, seed=2, folder=tmp_path, timeout=150, mortal=frozenset({"d12"}))
    assert killed["d12"] >= 2, killed


@pytest.mark.soak
def test_every_role_is_killed_while_residuals_and_duals_take_turns(tmp_path: Path) -> None:
    """HASSLE with the paper's pairing: which roles an update has depends on the round."""
    shape: trials.Shape = (1, 3, 4, "int8", "hassle/paper")
    killed = campaign(shape, lives=5, seed=2, folder=tmp_path, timeout=300)
    assert min(killed.values()) >= 1, killed


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_hundreds_of_kills(tmp_path: Path, seed: int, record: Callable[[str], None]) -> None:
    began = time.monotonic()
    killed = campaign((2, 2, 3, "int8"), lives=16, seed=seed, folder=tmp_path, timeout=900)
    record(f"kill -9 at write points, seed {seed}: {killed}, {time.monotonic() - began:.0f} s")
    assert sum(killed.values()) >= 30, killed
