"""A campaign in which nothing counts: no release, and an exit code that says it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from broker.mosquitto import MosquittoBroker
from fedbac_edge.node.store import Store

FEDERATION = """
name = "void"
rounds = 3
eligibility = "roster"
[model]
classes = ["a", "b"]
input = [1, 16, 16]
[deadlines]
gather_s = 1.0
deadline_min_s = 1.0
deadline_max_s = 1.0
[gateways]
gw1 = ["d1"]
"""


@pytest.mark.timeout(180)
def test_it_ends_with_1_and_without_a_release(tmp_path: Path) -> None:
    """The only device never comes. Seen: three void rounds, "release 1", exit 0."""
    (tmp_path / "federation.toml").write_text(FEDERATION)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with MosquittoBroker("127.0.0.1", port, tmp_path / "mosquitto"):
        common = ["--broker", f"mqtt://127.0.0.1:{port}", "--state", str(tmp_path / "state")]
        python = [sys.executable, "-m", "fedbac_edge.cli"]
        gateway = subprocess.Popen([*python, "gateway", "run", "gw1", "--federation", "void", *common])
        try:
            cloud = subprocess.run(
                [*python, "cloud", "run", "--federation", str(tmp_path / "federation.toml"), *common],
                capture_output=True,
                text=True,
                timeout=150,
            )
        finally:
            gateway.terminate()
            gateway.wait(30)
    assert cloud.returncode == 1, cloud.stdout + cloud.stderr
    assert "no update has counted in 10 rounds in a row" in cloud.stderr
    assert "Traceback" not in cloud.stderr
    with contextlib.closing(Store(tmp_path / "state" / "cloud.sqlite", read_only=True)) as store:
        assert store.ledger("released") == []
        assert store.ledger("gave up")
