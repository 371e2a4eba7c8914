"""A load balancer between every role and the broker that cuts links on which nothing moves."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.mosquitto import MosquittoBroker
from tests.broker.conftest import Proxy
from tests.field.conftest import Fleet

IDLE_S = 2.0
NAMED = "cuts links on which nothing moves"


@pytest.fixture
def balancer(tmp_path: Path) -> Iterator[Proxy]:
    """The proxy in front of a Mosquitto."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with MosquittoBroker("127.0.0.1", port, tmp_path / "mosquitto"):
        proxy = Proxy(port, idle=IDLE_S)
        proxy.start()
        try:
            yield proxy
        finally:
            proxy.stop()


def test_cloud_gateway_and_agent_live_with_it(balancer: Proxy, tmp_path: Path) -> None:
    """They wait for each other and are cut; they name it, none ends, and rounds go on."""
    fleet = Fleet(tmp_path, balancer.url)
    try:
        fleet.start("gw1")
        fleet.start("dev")
        fleet.wait_until(lambda: balancer.accepted >= 8, "cuts before there is a cloud")
        fleet.start("cloud")
        fleet.wait_until(lambda: fleet.counted() >= 1, "a round")
        fleet.processes["dev"].send_signal(signal.SIGTERM)
        assert fleet.processes.pop("dev").wait(30) == 0
        for name in ("cloud", "gw1"):
            fleet.wait_for(name, NAMED)
        then = fleet.counted()
        fleet.start("dev")
        fleet.wait_until(lambda: fleet.counted() > then, "a round after the cuts")
        for name, process in fleet.processes.items():
            assert process.poll() is None, fleet.log(name)
            assert "another process is connected" not in fleet.log(name)
    finally:
        for process in fleet.processes.values():
            process.kill()
            process.wait()
