"""Brokers that prescribe the name of a client: Mosquitto with `clientid_prefixes`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from broker.bus import Disconnected
from broker.mosquitto import MosquittoBroker


def test_a_broker_that_prescribes_client_names(free_port: int, tmp_path: Path) -> None:
    """Every short connection takes the name that was given, too, and not one of its own."""
    broker = MosquittoBroker("127.0.0.1", free_port, tmp_path / "broker")
    with broker.configuration.open("a") as configuration:
        configuration.write("clientid_prefixes plant-7-\n")
    url = f"mqtt://127.0.0.1:{free_port}"
    doctor = [sys.executable, "-m", "fedbac_edge.cli", "doctor", "--broker", url, "--state", str(tmp_path)]
    join = [sys.executable, "-m", "device_agent", "join", "--edge", "gw1", "--data", str(tmp_path)]
    join += ["--broker", url, "--state", str(tmp_path / "device")]
    with broker:
        refused = subprocess.run(doctor, capture_output=True, text=True, timeout=200)
        taken = subprocess.run(
            [*doctor, "--client-id", "plant-7-a"], capture_output=True, text=True, timeout=200
        )
        assert refused.returncode == 1, refused.stdout
        assert "lets us in" not in refused.stdout
        assert "lets us in" in taken.stdout, taken.stdout
        for names, waits in (([], False), (["--client-id", "plant-7-b"], True)):
            process = subprocess.Popen(
                [*join, *names], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            assert process.stdout is not None
            said = ""
            for line in process.stdout:
                said += line
                if "no federation" in line:
                    break
            process.terminate()
            process.wait(60)
            assert ("no federation" in said) == waits, said


def test_a_broker_that_prescribes_the_keep_alive(free_port: int, tmp_path: Path, client: Any) -> None:
    """It says 10 s in its CONNACK (`max_keepalive`) and closes after 15: the client obeys and stays."""
    broker = MosquittoBroker("127.0.0.1", free_port, tmp_path / "broker")
    with broker.configuration.open("a") as configuration:
        configuration.write("max_keepalive 10\n")
    with broker:
        device = client(f"mqtt://127.0.0.1:{free_port}", "device", keep_alive=60)
        time.sleep(20.0)
        assert device.inbox.of(Disconnected) == []
