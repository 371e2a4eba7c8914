"""Who is there, as real processes and a real broker tell it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.gateway.state import GatewayState


def test_a_killed_device_and_a_killed_gateway_are_seen_as_gone(fleet: Callable[[str], Any]) -> None:
    """The broker speaks for them: the will carries the number of their session and is believed.

    Meanwhile a second cloud of the same federation is turned away before it says a word.
    """
    running = fleet("mosquitto")
    running.start_all()

    def member() -> bool:
        stored = running.state("gw1")
        state = None if stored is None else msgspec.msgpack.decode(stored, type=GatewayState)
        return state is not None and "dev-a" in state.members and state.members["dev-a"].online

    def site() -> bool:
        stored = running.state("cloud")
        state = None if stored is None else msgspec.msgpack.decode(stored, type=CloudState)
        return state is not None and "gw2" in state.sites and state.sites["gw2"].online

    running.wait_until(lambda: member() and site(), "a device at its gateway and a gateway at the cloud")
    command = [sys.executable, "-m", "fedbac_edge.cli", "cloud", "run", "--federation", str(running.file)]
    second = subprocess.run(
        [*command, "--state", str(running.root / "second"), "--broker", running.url],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode == 1
    assert "another cloud" in second.stderr
    assert "Traceback" not in second.stderr
    running.kill("dev-a")
    running.wait_until(lambda: not member(), "the gateway's notice of a killed device")
    running.kill("gw2")
    running.wait_until(lambda: not site(), "the cloud's notice of a killed gateway")
