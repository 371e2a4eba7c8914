"""Gateway, cloud, broker and inference run where torch is not installed: nothing of theirs may import it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "scipy", "onnx", "matplotlib")
MODULES = {
    "the cloud and the gateway": "fedbac_edge.node.assemble, fedbac_edge.node.runtime, fedbac_edge.node.node",
    "the state machines": "fedbac_edge.protocol.cloud.machine, fedbac_edge.protocol.gateway.machine, "
    "fedbac_edge.protocol.device.machine",
    "methods, bandits, aggregation": "fedbac_edge.methods, fedbac_edge.bandits.linucb, "
    "fedbac_edge.bandits.thompson, fedbac_edge.parts.aggregation, fedbac_edge.federation_file.reading",
    "the broker": "broker.wire, broker.memory, broker.mqtt, broker.topics, broker.embedded, broker.mosquitto",
    "the simulation": "fedbac_edge.lab.fleet.world, fedbac_edge.lab.fleet.faults",
    "inference": "export.session",
    "a device that serves": "device_agent.serve",
    "what the cloud knows of releases": "fedbac_edge.releases.worker, fedbac_edge.signing.keys",
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
        "import sys; import fedbac_edge.node.assemble, fedbac_edge.lab.fleet.world;"
        "print([m for m in ('paho', 'iotcore', 'ssl', 'socket') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "paho" not in found.stdout
    assert "iotcore" not in found.stdout
