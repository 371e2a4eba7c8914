"""The demonstration with real processes over real brokers: what the bandits did, and that nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedbac_edge.cli import cli
from fedbac_edge.node.store import LedgerLine, Store, StoreError

SMALL = ["--samples", "2400", "--test-samples", "1500", "--rounds", "7", "--seed", "1"]


def _demo(out: Path, *options: str, **popen: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedbac_edge.cli", "demo", "--out", str(out), *SMALL, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **popen,
    )


def _ledger(path: Path, kind: str) -> list[LedgerLine]:
    store = Store(path, read_only=True)
    try:
        return store.ledger(kind=kind)
    finally:
        store.close()


def _descendants(pid: int) -> set[tuple[int, str]]:
    """(pid, start time) of every live process below `pid`."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents.setdefault(int(fields[1]), []).append((int(place.name), fields[19]))
    found: set[tuple[int, str]] = set()
    waiting = [pid]
    while waiting:
        for child in parents.get(waiting.pop(), []):
            found.add(child)
            waiting.append(child[0])
    return found


def _alive(processes: set[tuple[int, str]]) -> set[tuple[int, str]]:
    alive = set()
    for pid, started in processes:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z" and fields[19] == started:
                alive.add((pid, started))
    return alive


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A demonstration whose agents have begun to train."""
    process = _demo(tmp_path / "run")
    end = time.monotonic() + 60
    store = tmp_path / "run" / "state" / "gateway-gw1.sqlite"
    while not _has_begun(store):
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    yield process
    process.kill()
    process.communicate()


def _has_begun(store: Path) -> bool:
    with contextlib.suppress(StoreError):
        return bool(_ledger(store, "selected"))
    return False


def test_both_bandits_work_over_mosquitto(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = _demo(out, "--broker-kind", "mosquitto", "--json")
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    result = json.loads(stdout)

    selections = [
        line.detail
        for gw in ("gw1", "gw2")
        for line in _ledger(out / f"state/gateway-{gw}.sqlite", "selected")
    ]
    ranked = [selection for selection in selections if not selection["warm_up"]]
    assert len(ranked) == 2 * 5  # rounds 3 to 7
    for selection in ranked:  # the drawn posteriors decide, largest first
        best = sorted(selection["draws"], key=lambda name: -selection["draws"][name])[:3]
        assert sorted(selection["asked"]) == sorted(best)
    assert any(a + b > 2 for selection in ranked for a, b in selection["posteriors"].values())

    sweeps = _ledger(out / "state/cloud.sqlite", "sweep")
    assert {line.round for line in sweeps} == {3, 6}
    for line in sweeps:  # every cluster was weighed, and the best total won
        totals = [total for _, _, total in line.detail["scores"]]
        assert len(totals) == 2
        assert totals[line.detail["chosen"]] == max(totals)
        assert line.detail["reward"] is not None

    assert result["bandits"]["ranked_selections"] == len(ranked)
    assert result["bandits"]["placements_weighed"] == len(sweeps) == 4
    assert result["rounds"] == 7
    assert {site["name"] for site in result["sites"]} == {"gw1", "gw2"}
    assert result["test_accuracy"] > 0.5  # a guess would be right in 0.1
    assert result["worst"] <= result["test_accuracy"] <= result["best"]
    for part in ("federation.toml", "state/cloud.sqlite", "logs/dev-2-4.log", "data/gw1/test.npz"):
        assert (out / part).is_file()
    images = out / "data/gw1/examples.npy"
    model = next(path for path in result["models"])
    answers = subprocess.run(
        [sys.executable, "-m", "device_agent", "infer", "--model", model, str(images)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(answers.stdout.splitlines()) == 10
    status = CliRunner().invoke(cli, ["status", "--state", str(out / "state"), "--json"])
    assert status.exit_code == 0, status.output
    assert {item["tier"] for item in json.loads(status.output)} == {"cloud", "gateway", "device"}


def test_a_signal_ends_every_process(running: subprocess.Popen[str]) -> None:
    processes = _descendants(running.pid)
    assert len(processes) >= 12  # broker, cloud, gateways, agents and what they started
    running.send_signal(signal.SIGTERM)
    stdout, stderr = running.communicate(timeout=20)
    assert running.returncode == 128 + signal.SIGTERM
    assert "every process has been ended" in stderr
    assert _alive(processes) == set()
    assert "Traceback" not in stdout + stderr


def test_a_kill_leaves_nothing_either(running: subprocess.Popen[str]) -> None:
    processes = _descendants(running.pid)
    running.kill()
    running.communicate(timeout=20)
    end = time.monotonic() + 10
    while _alive(processes) and time.monotonic() < end:
        time.sleep(0.05)
    assert _alive(processes) == set()


def test_a_child_that_dies_is_reported(running: subprocess.Popen[str], tmp_path: Path) -> None:
    victim = next(
        pid
        for pid, _ in _descendants(running.pid)
        if "dev-1-2" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    )
    processes = _descendants(running.pid)
    os.kill(victim, signal.SIGKILL)
    _, stderr = running.communicate(timeout=20)
    assert running.returncode == 1
    assert "dev-1-2 ended with code -9" in stderr
    assert "joined demo as dev-1-2" in stderr  # the end of its log
    assert "Traceback" not in stderr
    assert _alive(processes) == set()
