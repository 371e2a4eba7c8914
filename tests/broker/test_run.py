"""Broker processes: how they start, refuse to start, and end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from broker.bus import Connected, Delivery, Published, Subscribed
from broker.embedded import EmbeddedBroker
from broker.mosquitto import MosquittoBroker, Tls, configuration, find_mosquitto
from broker.process import BrokerError
from broker.run import choose, run

RUN = """
import sys
from pathlib import Path
from broker.run import run
from fedbac_edge.host import signals
with signals.stopping() as stop:
    run(sys.argv[1], "127.0.0.1", int(sys.argv[2]), Path(sys.argv[3]), stop)
"""


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("mosquitto", signal.SIGTERM),
        ("embedded", signal.SIGINT),
        ("auto", signal.SIGKILL),
        ("embedded", signal.SIGKILL),
    ],
)
def test_in_the_foreground_until_a_signal(
    kind: str, number: signal.Signals, tmp_path: Path, free_port: int, client: Any
) -> None:
    command = [sys.executable, "-c", RUN, kind, str(free_port), str(tmp_path / "state")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(f"listening on mqtt://127.0.0.1:{free_port}")
            client(f"mqtt://127.0.0.1:{free_port}", "somebody")
        finally:
            process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(10) == (0 if number != signal.SIGKILL else -number)
    assert rest == ""
    for _ in range(100):  # killed: the kernel, or the pipe, ends the broker a moment later
        if is_free(free_port):
            break
        time.sleep(0.05)
    assert is_free(free_port), "the broker outlived its runner"


@pytest.mark.parametrize("make", [MosquittoBroker, EmbeddedBroker])
def test_a_taken_port_is_a_sentence(make: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BrokerError, match=f"{port} already"):
            make("127.0.0.1", port, tmp_path).start()


def test_a_broker_that_cannot_start_says_why(tmp_path: Path, free_port: int) -> None:
    broken = MosquittoBroker("127.0.0.1", free_port, tmp_path, password_file=tmp_path / "absent")
    with pytest.raises(BrokerError, match="absent"):
        broken.start()
    assert not broken.process.is_running


def test_open_brokers_are_refused(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "gateway.local", "::"):
        with pytest.raises(BrokerError, match="insecure"):
            run("auto", host, 1883, tmp_path, bool)
        with pytest.raises(BrokerError, match="insecure"):
            configuration(host, 1883)
    with pytest.raises(BrokerError, match="plain text"):
        run("mosquitto", "0.0.0.0", 1883, tmp_path, bool, password_file=tmp_path / "passwords")
    with pytest.raises(BrokerError, match="no password_file"):
        run("embedded", "127.0.0.1", 1883, tmp_path, bool, password_file=tmp_path / "passwords")
    assert "listener 1883 0.0.0.0" in configuration("0.0.0.0", 1883, insecure=True)
    tls = Tls(tmp_path / "ca", tmp_path / "c", tmp_path / "k", require_client=True)
    assert "require_certificate true" in configuration("0.0.0.0", 8883, tls=tls)


def test_every_block_of_the_configuration_is_explained(tmp_path: Path) -> None:
    text = configuration("127.0.0.1", 1883, persistence_dir=tmp_path, acl_file=tmp_path / "acl")
    assert text.count("#") >= 8
    assert f"persistence_location {tmp_path}/" in text
    assert "max_packet_size 131072" in text
    assert "allow_anonymous true" in text
    assert "allow_anonymous false" in configuration("127.0.0.1", 1883, password_file=tmp_path / "p")


def test_auto_takes_mosquitto_when_it_is_there() -> None:
    assert choose("auto") == ("mosquitto" if find_mosquitto() else "embedded")
    assert choose("embedded") == "embedded"


def test_what_survives_a_restart(tmp_path: Path, free_port: int, client: Any) -> None:
    """With a persistence directory Mosquitto keeps retained messages, sessions and their queues."""
    broker = MosquittoBroker("127.0.0.1", free_port, tmp_path, persistence_dir=tmp_path)
    url = f"mqtt://127.0.0.1:{free_port}"
    with broker:
        away = client(url, "away")
        away.bus.subscribe("task")
        away.inbox.wait(Subscribed)
        away.bus.close()
        sender = client(url, "sender")
        sender.bus.publish("task", b"later", token=1)
        sender.bus.publish("model", b"kept", retain=True, token=2)
        sender.inbox.wait(Published, 2)
    with broker:
        back = client(url, "away")
        assert back.inbox.of(Connected)[0].session_present
        assert back.inbox.wait(Delivery)[0].payload == b"later"
        back.bus.subscribe("model")
        assert back.inbox.wait(Delivery, 2)[1].payload == b"kept"
        back.bus.close(0.2)
        sender.bus.close(0.2)
