"""From nothing to a device that is joined over mutual TLS, with the three commands of the documentation."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

FEDERATION = """
name = "orchard"
[model]
classes = ["a", "b"]
input = [1, 16, 16]
[gateways]
gw1 = ["cam"]
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Starts a command in an empty folder; returns its log. All of them end with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def start(line: str) -> Path:
        program, *arguments = line.split()
        module = {"fedbac": "fedbac_edge.cli", "fedbac-agent": "device_agent"}[program]
        log = tmp_path / f"{len(running)}.log"
        with log.open("wb") as output:
            running.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *arguments], cwd=tmp_path, stdout=output, stderr=output
                )
            )
        return log

    yield start
    for process in reversed(running):
        process.send_signal(signal.SIGTERM)
    for process in reversed(running):
        process.wait(15)


def test_three_commands(tmp_path: Path, start: Callable[[str], Path]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "federation.toml").write_text(FEDERATION)
    rng = np.random.default_rng(1)
    np.savez(
        tmp_path / "photos.npz",
        x=rng.integers(0, 256, (40, 16, 16), dtype=np.uint8),
        y=np.arange(40, dtype=np.int64) % 2,
    )
    made = subprocess.run(
        [*(sys.executable, "-m", "fedbac_edge.cli", "keys", "init", "--federation", "federation.toml")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "fedbac broker run --federation federation.toml --keys keys" in made.stdout
    start(f"fedbac broker run --federation federation.toml --keys keys --port {port}")
    with_keys = (
        f"--broker mqtts://localhost:{port} --ca keys/ca.pem --cert keys/{{0}}.pem --key keys/{{0}}.key"
    )
    agent = start(
        "fedbac-agent join --edge gw1 --name cam --data photos.npz --state device "
        + with_keys.format("devices/gw1/cam")
    )
    cloud = start("fedbac cloud run " + with_keys.format("cloud"))
    gateway = start("fedbac gateway run gw1 " + with_keys.format("gateways/gw1"))
    end = time.monotonic() + 60
    while (
        "1 of 1 devices online" not in gateway.read_text() or "joined orchard as cam" not in agent.read_text()
    ):
        if time.monotonic() > end:
            pytest.fail("\n".join(log.read_text() for log in (agent, gateway, cloud)))
        time.sleep(0.1)
    assert "does not let" not in agent.read_text() + gateway.read_text() + cloud.read_text()
