"""The engine on a local Ray: equal bits, lost workers, what it leaves behind. Skipped where there is no Ray.

Ray is imported by the engine alone, since it reads its environment when it is imported.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedbac_edge import __version__
from fedbac_edge.lab.engine import PoolError, Reply
from fedbac_edge.lab.fleet import run
from fedbac_edge.lab.fleet.journal import Row
from fedbac_edge.lab.pool import Pool
from fedbac_edge.lab.ray_engine import Answer, OneKind, RayEngine
from fedbac_edge.lab.scenario import Cut, Scenario, roster
from fedbac_edge.settings.federation import Federation, ModelTable, SelectionTable, TrainingTable

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'fedbac-edge[ray]'"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "squares.npz"
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 240).astype(np.uint8)
    x = rng.integers(0, 100, (240, 16, 16, 1)) + 100 * y[:, None, None, None]
    np.savez(path, x=x.astype(np.uint8), y=y)
    return path


def scenario(rounds: int = 3) -> Scenario:
    federation = Federation(
        name="tiny",
        rounds=rounds,
        eligibility="roster",
        evaluation="test",
        model=ModelTable(classes=("dark", "bright"), input=(1, 16, 16)),
        training=TrainingTable(epochs=1, batch_size=16, learning_rate=0.05),
        selection=SelectionTable(participation=1.0),
        gateways=roster(2, 2),
    )
    return Scenario(method="fedbac", federation=federation, cut=Cut(data="squares", allow_tiny=True))


@pytest.fixture(scope="module")
def local(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, run.Result]:
    folder = tmp_path_factory.mktemp("local")
    with Pool(1) as pool:
        return folder, run.simulate(scenario(), folder, data, pool)


@pytest.fixture(scope="module")
def engine() -> Iterator[RayEngine]:
    with RayEngine(2) as engine:
        yield engine


@needs_ray
def test_the_same_bits_as_on_local_processes_and_no_shared_files(
    data: Path, engine: RayEngine, local: tuple[Path, run.Result], tmp_path: Path
) -> None:
    """Once a run has begun no worker reads a file of it: they are gone after the first round."""

    def remove(row: Row) -> None:
        for path in (tmp_path / "scratch").glob("*.npy"):
            path.unlink()

    assert engine.workers == 2
    assert run.simulate(scenario(), tmp_path, data, engine, tell=remove) == local[1]
    there, here = (
        msgspec.structs.replace(run.read_about(folder), began="", host="") for folder in (tmp_path, local[0])
    )
    assert there == here


@needs_ray
def test_a_lost_worker_is_begun_anew_with_its_job(
    data: Path, engine: RayEngine, local: tuple[Path, run.Result], tmp_path: Path
) -> None:
    killed: list[int] = []

    def kill(row: Row) -> None:
        if not killed:
            killed.extend(_workers())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    assert run.simulate(scenario(), tmp_path, data, engine, tell=kill) == local[1]
    assert len(killed) == 2


@needs_ray
def test_it_listens_on_the_loopback_address_and_reports_to_nobody(engine: RayEngine) -> None:
    ours = _descendants(os.getpid())
    assert any("raylet" in _command(pid) for pid in ours)
    assert not any(port == 8265 for _, port in _listening(ours)), "the dashboard's"
    hosts = {host for host, _ in _listening([*ours, os.getpid()])}
    assert hosts == {"0100007F", "0000000000000000FFFF00000100007F"}
    for pid in ours:
        if "raylet" in _command(pid):
            assert b"RAY_USAGE_STATS_ENABLED=0" in Path(f"/proc/{pid}/environ").read_bytes()


@needs_ray
def test_a_job_at_which_every_worker_ends_is_given_up(data: Path, engine: RayEngine, tmp_path: Path) -> None:
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.05):
            for pid in _workers():
                os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with pytest.raises(PoolError, match="3 times at the same job"):
            run.simulate(scenario(), tmp_path, data, engine)
    finally:
        over.set()
        thread.join()


@needs_ray
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_process_behind(data: Path, tmp_path: Path, kind: signal.Signals) -> None:
    file, out = tmp_path / "scenario.toml", tmp_path / "run"
    federation = msgspec.to_builtins(scenario(10_000).federation)
    file.write_text(
        "name = 'tiny'\nrounds = 10000\neligibility = 'roster'\nevaluation = 'test'\n"
        "[model]\nclasses = ['dark', 'bright']\ninput = [1, 16, 16]\n[training]\nepochs = 1\n[gateways]\n"
        + "".join(f"{name} = {list(devices)}\n" for name, devices in federation["gateways"].items())
    )
    command = [sys.executable, "-m", "fedbac_edge.cli", "simulate", str(file), "--data", str(data)]
    command += ["--allow-tiny", "--engine", "ray", "--workers", "1", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        deadline = time.monotonic() + 120
        while not (out / "metrics.jsonl").exists() or not (out / "metrics.jsonl").stat().st_size:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        started = _descendants(process.pid)
        assert any("raylet" in _command(pid) for pid in started)
        process.send_signal(kind)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert f"`fedbac simulate --resume --out {out}` goes on" in said
    deadline = time.monotonic() + 30
    while left := [pid for pid in started if _command(pid)]:
        assert time.monotonic() < deadline, [_command(pid) for pid in left]
        time.sleep(0.1)


def test_unlike_machines_are_refused_by_name() -> None:
    kinds, federation = OneKind(), b"one"

    def answer(node: str, **kind: str) -> Answer:
        usual = {"torch": "2.13.0", "processor": "A", "fedbac-edge": __version__}
        return Answer(reply=Reply(), node=node, kind={**usual, **kind})

    kinds.check(federation, answer("n1"))
    kinds.check(federation, answer("n2"))
    kinds.check(b"another", answer("n3", processor="B"))
    with pytest.raises(PoolError, match="n1 and n3: processor 'A' and 'B'"):
        kinds.check(federation, answer("n3", processor="B"))
    with pytest.raises(PoolError, match=r"n4 has fedbac-edge 0\.0\.0"):
        kinds.check(federation, answer("n4", **{"fedbac-edge": "0.0.0"}))


def _command(pid: int) -> str:
    """Of a process that runs, else ""."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(place.name))
    found, open_ = [], [pid]
    while open_:
        found += (more := children.get(open_.pop(), []))
        open_ += more
    return found


def _workers() -> list[int]:
    """The engine's actors among this process's descendants."""
    return [pid for pid in _descendants(os.getpid()) if _command(pid).startswith("ray::_Worker")]


def _listening(pids: list[int]) -> list[tuple[str, int]]:
    """(address as the kernel writes it, port) of each TCP socket on which these processes wait."""
    inodes = set()
    for pid in pids:
        for place in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(place).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                host, _, port = fields[1].partition(":")
                found.append((host, int(port, 16)))
    return found
