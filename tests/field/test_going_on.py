"""`fedbac cloud run --continue` as a process: campaigns of one round each, with a gateway and a device."""

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

from broker.mosquitto import MosquittoBroker
from fedbac_edge.federation_file.template import render
from fedbac_edge.lab.trials import trials
from fedbac_edge.node.store import Store, StoreError

SHAPE: trials.Shape = (1, 1, 1, "float32")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with MosquittoBroker("127.0.0.1", port, tmp_path / "mosquitto"):
        yield f"mqtt://127.0.0.1:{port}"


def campaigns(path: Path) -> list[int]:
    with contextlib.suppress(StoreError):
        store = Store(path, read_only=True)
        try:
            return [line.detail["number"] for line in store.ledger("campaign")]
        finally:
            store.close()
    return []


def test_campaign_after_campaign(broker: str, tmp_path: Path) -> None:
    """The device was of another federation of this name: it learns of this one by its first task."""
    (tmp_path / "federation.toml").write_text(render(trials.federation_of(SHAPE)))
    state = tmp_path / "state"
    (tmp_path / "device").mkdir()
    common = ["--broker", broker, "--state", str(state), "--ledger-rounds", "2"]
    fedbac = [sys.executable, "-m", "fedbac_edge.cli"]
    cloud = ["cloud", "run", "--continue", "--federation", str(tmp_path / "federation.toml")]
    device = [str(Path(__file__).with_name("dying_role.py")), "d11", broker, str(tmp_path / "device"), "0"]
    commands = [
        [*fedbac, *cloud, *common],
        [*fedbac, "gateway", "run", "gw1", "--federation", "trial", *common],
        [sys.executable, *device, *map(str, SHAPE)],
    ]
    log = (tmp_path / "log").open("wb")
    processes = [
        subprocess.Popen(each, stdout=log, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        for each in commands
    ]
    try:
        end = time.monotonic() + 90
        while max(campaigns(state / "cloud.sqlite"), default=0) < 5:
            assert time.monotonic() < end, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.1)
        for process, code in zip(processes, (0, 0, 0), strict=True):
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == code, (tmp_path / "log").read_text()[-3000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        log.close()
    for name in ("cloud", "gateway-gw1"):
        lines = Store(state / f"{name}.sqlite").ledger()
        assert len({line.round for line in lines if line.round}) <= 3, "two rounds, and the open one"
        assert max(line.round for line in lines) >= 5
