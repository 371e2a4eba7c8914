"""Output that cannot be written: a full disk, a closed descriptor, a reader that has gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fedbac_edge.node.store import Store, StoreError

FEDBAC = f"{sys.executable} -m fedbac_edge"
AGENT = f"{sys.executable} -m device_agent"
FASHION = Path("/usr/share/datasets/fashion-mnist")
FEDERATION = """
name = "mute"
rounds = 100000
[model]
classes = ["a", "b"]
input = [1, 16, 16]
[deadlines]
gather_s = 1.0
[gateways]
gw1 = []
"""
WAYS = {
    "full": ">/dev/full 2>&1",
    "closed": ">&- 2>&-",
    "a reader that has gone": "> >(head -c 1 >/dev/null) 2>&1",
}

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")

Start = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a command line of the shell, which becomes the command; what a test leaves is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(line: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=tmp_path, start_new_session=True))
        return started[-1]

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_round(place: Path) -> int:
    """The latest round in a store's ledger; 0 before there is one."""
    try:
        store = Store(place, read_only=True)
    except StoreError:
        return 0
    try:
        return max((line.round for line in store.ledger()), default=0)
    finally:
        store.close()


@pytest.mark.parametrize("way", WAYS)
def test_every_role_goes_on(way: str, start: Start, tmp_path: Path, mosquitto: str) -> None:
    (tmp_path / "federation.toml").write_text(FEDERATION)
    images = np.random.default_rng(1).integers(0, 256, (60, 16, 16), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", x=images, y=np.arange(60) % 2)
    to, out = f"--broker {mosquitto}", WAYS[way]
    roles = {
        "cloud": start(f"{FEDBAC} cloud run {to} --state state {out}"),
        "gateway": start(f"{FEDBAC} gateway run gw1 --federation mute {to} --state state {out}"),
        "join": start(f"{AGENT} join --edge gw1 --name d1 --data data.npz --state d1 {to} {out}"),
        "serve": start(f"{AGENT} serve --edge gw1 --name d2 --state d2 {to} {out}"),
    }
    end = time.monotonic() + 100
    while last_round(tmp_path / "state" / "cloud.sqlite") < 3:
        assert {name: process.poll() for name, process in roles.items()} == dict.fromkeys(roles)
        assert time.monotonic() < end, "no third round"
        time.sleep(0.2)
    for name in reversed(roles):
        roles[name].send_signal(signal.SIGTERM)
        assert roles[name].wait(30) == 0, name


@pytest.mark.parametrize("way", WAYS)
def test_a_broker_goes_on(way: str, start: Start, tmp_path: Path, free_port: int) -> None:
    import socket

    broker = start(f"{FEDBAC} broker run --port {free_port} --state broker {WAYS[way]}")
    end = time.monotonic() + 60
    while True:
        assert broker.poll() is None
        assert time.monotonic() < end
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", free_port)) == 0:
                break
        time.sleep(0.1)
    broker.send_signal(signal.SIGTERM)
    assert broker.wait(30) == 0


@pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not there")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("command", ["semi fedavg", "simulate paper/fashion-mnist-0.1"])
def test_a_run_of_the_laboratory_goes_on(command: str, way: str, start: Start, tmp_path: Path) -> None:
    few = "--samples 400 --test-samples 100"
    if command.startswith("simulate"):
        few = "--servers 2 --clients 2 --allow-tiny --set cut.samples=400 --set cut.test_samples=100"
    run = start(f"{FEDBAC} {command} --rounds 3 --workers 1 --out run {few} {WAYS[way]}")
    assert run.wait(200) == 0
    assert (tmp_path / "run" / "result.json").exists()


ANSWERS = {
    "status": f"{FEDBAC} status --state {{finished}}",
    "status, JSON": f"{FEDBAC} status --state {{finished}} --json",
    "data": f"{FEDBAC} data list",
    "help": f"{FEDBAC} --help",
    "help of a command": f"{FEDBAC} simulate --help",
    "version": f"{AGENT} --version",
    "configuration": f"{FEDBAC} broker config",
    "export": f"{FEDBAC} export --state {{finished}} --out models",
    "infer": f"{AGENT} infer --model {{finished}}/cluster-0.onnx {{finished}}/image.npy",
}


@pytest.fixture
def exported(finished: Path) -> Path:
    """A finished campaign with a model and a picture to ask it for."""
    if not (finished / "cluster-0.onnx").exists():
        line = [sys.executable, "-m", "fedbac_edge", "export", "--state", str(finished), "--out"]
        subprocess.run([*line, str(finished)], check=True, capture_output=True)
        np.save(finished / "image.npy", np.zeros((16, 16), np.uint8))
    return finished


@pytest.mark.parametrize("name", ANSWERS)
def test_a_command_that_is_there_for_its_output_says_so(name: str, exported: Path, tmp_path: Path) -> None:
    line = ANSWERS[name].format(finished=exported)

    def bash(rest: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", f"{line} {rest}"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False
        )
        return done.returncode, done.stderr

    code, said = bash(">/dev/full")
    assert said == "Error: standard output cannot be written: No space left on device\n"
    assert code == 1
    assert bash(">/dev/full 2>/dev/full")[0] == 1
    # Nothing was asked to be said.
    code, said = bash(">&-")
    assert (code, said) == (0, "")
    assert bash(">&- 2>&-")[0] == 0
    # Nobody reads on, as with `| head`: no word of it.
    code, said = bash("> >(true); sleep 0")
    assert "Traceback" not in said
    assert "Exception ignored" not in said


def test_what_was_opened_later_is_not_written_into(tmp_path: Path, exported: Path) -> None:
    """Without descriptors 1 and 2 a file that is opened later would get such a number, and what is said."""
    done = subprocess.run(
        ["bash", "-c", f"{FEDBAC} status --state {exported} >&- 2>&- <&-"], cwd=tmp_path, check=False
    )
    assert done.returncode == 0
    store = Store(exported / "cloud.sqlite", read_only=True)
    assert store.ledger()
    store.close()
