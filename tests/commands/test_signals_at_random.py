"""Ctrl-C and SIGTERM at any moment of a process's life: it ends, with its code, and leaves nobody behind."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from broker.mosquitto import MosquittoBroker, find_mosquitto

FASHION = Path("/usr/share/datasets/fashion-mnist")
LONGEST_S = 6.0
"""A signal comes at a moment up to so many seconds after the process could hear it."""
PATIENCE_S = 60.0
"""A hang is longer than this, on any machine."""
MARK = "FEDBAC_TEST_TRIAL"
FEDERATION = """
name = "{name}"
rounds = 100000
[model]
classes = ["a", "b"]
input = [1, 16, 16]
[deadlines]
gather_s = 1.0
[gateways]
gw1 = []
gw2 = []
"""
FEW = ["--servers", "2", "--clients", "2", "--set", "cut.samples=400", "--set", "cut.test_samples=100"]
ROLES = ("cloud", "gateway", "broker", "join", "serve")
LABORATORY = ("simulate", "semi")
FEDBAC = [sys.executable, "-m", "fedbac_edge"]
AGENT = [sys.executable, "-m", "device_agent"]

pytestmark = [
    pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not there"),
    pytest.mark.skipif(find_mosquitto() is None, reason="Mosquitto is not installed"),
]

Command = Callable[[str, int], list[str]]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """(name, number of the trial) -> arguments, with a broker and a living federation to talk to."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        other = probe.getsockname()[1]
    for name in ("lasting", "cloud"):
        (tmp_path / f"{name}.toml").write_text(FEDERATION.format(name=name))
    images = np.random.default_rng(1).integers(0, 256, (60, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", x=images, y=np.arange(60) % 2)
    to = ["--broker", f"mqtt://127.0.0.1:{port}", "--state"]
    lasting = ["--federation", "lasting"]

    def made(name: str, trial: int) -> list[str]:
        run = ["--workers", "2", "--out", str(tmp_path / f"{name}-{trial}")]
        cloud = [*FEDBAC, "cloud", "run", "--federation", str(tmp_path / f"{name}.toml"), *to]
        join = [*AGENT, "join", *lasting, "--edge", "gw1", "--name", "d1", *to]
        broker = [*FEDBAC, "broker", "run", "--port", str(other), "--state", str(tmp_path / "broker")]
        simulate = ["simulate", "paper/fashion-mnist-0.1", "--rounds", "900", "--allow-tiny", *FEW]
        return {
            "lasting": [*cloud, str(tmp_path / "state")],
            "cloud": [*cloud, str(tmp_path / "cloud")],
            "gw1": [*FEDBAC, "gateway", "run", "gw1", *lasting, *to, str(tmp_path / "state")],
            "gateway": [*FEDBAC, "gateway", "run", "gw2", *lasting, *to, str(tmp_path / "state")],
            "broker": broker,
            "join": [*join, str(tmp_path / "agent"), "--data", str(tmp_path / "data.npz")],
            "serve": [
                *AGENT,
                "serve",
                *lasting,
                "--edge",
                "gw1",
                "--name",
                "d2",
                *to,
                str(tmp_path / "serve"),
            ],
            "simulate": [*FEDBAC, *simulate, *run],
            "semi": [*FEDBAC, "semi", "fedavg", "--rounds", "900", "--samples", "400", *run],
        }[name]

    with MosquittoBroker("127.0.0.1", port, tmp_path / "mosquitto"), contextlib.ExitStack() as stack:
        for name in ("lasting", "gw1"):
            quiet = subprocess.DEVNULL
            process = stack.enter_context(subprocess.Popen(made(name, 0), stdout=quiet, stderr=quiet))
            stack.callback(process.kill)
        yield made


def hears_sigterm(pid: int) -> bool:
    """The process has a handler for SIGTERM: from then on it is asked, not killed."""
    caught = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")
    )
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def left_behind(mark: str) -> list[str]:
    """Command lines of the living processes that inherited this mark."""
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdigit() and f"{MARK}={mark}".encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def try_one(name: str, trial: int, arguments: list[str], folder: Path) -> None:
    """Start it, send a signal at a random moment, and look at what remains."""
    draws = random.Random(f"{name} {trial}")
    number = (signal.SIGINT, signal.SIGTERM)[trial % 2]
    # The first moments are tried more often than others: imports, discovery, starts of workers.
    delay = LONGEST_S * draws.random() ** 2
    mark = secrets.token_hex(8)
    log = folder / f"{name}-{trial}.log"
    told = f"{name}, trial {trial}, {number.name} after {delay:.2f} s"
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={**os.environ, MARK: mark, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    try:
        while not hears_sigterm(process.pid):
            time.sleep(0.002)
        time.sleep(delay)
        if draws.random() < 0.5:
            os.killpg(process.pid, number)  # as a terminal and a service manager do
        else:
            process.send_signal(number)
        code = process.wait(PATIENCE_S)
        end = time.monotonic() + PATIENCE_S
        while (left := left_behind(mark)) and time.monotonic() < end:
            time.sleep(0.02)
        said = log.read_text()
        assert left == [], f"{told}\n{said}"
        assert code == (0 if name in ROLES else 1), f"{told}: code {code}\n{said}"
        assert "Traceback" not in said, f"{told}\n{said}"
        assert name in ROLES or "stopped" in said, f"{told}\n{said}"
    finally:
        for place in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if f"{MARK}={mark}".encode() in (place / "environ").read_bytes():
                    os.kill(int(place.name), signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*ROLES, *LABORATORY])
def test_four_times(name: str, command: Command, tmp_path: Path) -> None:
    for trial in range(4):
        try_one(name, trial, command(name, trial), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("name", [*ROLES, *LABORATORY])
def test_two_hundred_times(name: str, command: Command, tmp_path: Path) -> None:
    for trial in range(4, 204):
        try_one(name, trial, command(name, trial), tmp_path)


DEAF = """
import multiprocessing, os, signal, time
from fedbac_edge.host import signals

def blocked():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("SigBlk")]
    return int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1

def work(connection):
    connection.send(blocked())

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    for _ in range(2):
        ours, theirs = context.Pipe()
        with signals.started_deaf():
            process = context.Process(target=work, args=(theirs,))
            process.start()
        print(ours.recv(), blocked())
        process.join()
"""


def test_workers_are_deaf_from_their_first_moment(tmp_path: Path) -> None:
    """The first one, too, with which multiprocessing starts its resource tracker and unblocks signals."""
    (tmp_path / "deaf.py").write_text(DEAF)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "deaf.py")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "0", "1", "0"]
