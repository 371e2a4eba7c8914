"""Gateway, cloud, broker and inference run where torch is not installed: nothing of theirs may import it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "scipy", "onnx", "matplotlib")
MODULES = {
    "the cloud and the gateway": "fedbac_edge.tiers, fedbac_edge.runtime, fedbac_edge.node",
    "the state machines": "fedbac_edge.protocol.cloud, fedbac_edge.protocol.gateway, "
    "fedbac_edge.protocol.device",
    "methods, bandits, aggregation": "fedbac_edge.methods, fedbac_edge.bandits.linucb, "
    "fedbac_edge.bandits.thompson, fedbac_edge.aggregation, fedbac_edge.config",
    "the broker": "broker.wire, broker.memory, broker.mqtt, broker.topics, broker.embedded, broker.mosquitto",
    "the simulation": "fedbac_edge.simulation.world, fedbac_edge.simulation.faults",
    "inference": "export.session",
    "a device that serves": "device_agent.serve",
    "what the cloud knows of releases": "fedbac_edge.releases.worker, fedbac_edge.releases.keys",
}


@pytest.mark.parametrize("what", MODULES)
def test_no_torch(what: str) -> None:
    program = f"import sys; import {MODULES[what]}; print([m for m in {HEAVY!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "[]"


def test_the_core_needs_neither_client_nor_broker() -> None:
    """The machines and the node are told of a bus; paho belongs to the one module that speaks MQTT."""
    program = (
        "import sys; import fedbac_edge.tiers, fedbac_edge.simulation.world;"
        "print([m for m in ('paho', 'iotcore', 'ssl', 'socket') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "paho" not in found.stdout
    assert "iotcore" not in found.stdout
