"""Ports at which MQTT 5 is not spoken, and what is said of them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker import certificates
from broker.bus import Disconnected
from broker.mosquitto import MosquittoBroker, Tls

Answers = Callable[[bytes], bytes]


@pytest.fixture
def listener() -> Iterator[Callable[[Answers], str]]:
    """A server that answers the first packet of each connection in some way, and hangs up then."""
    open_: list[socket.socket] = []

    def serve(answers: Answers) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        open_.append(server)

        def run() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = server.accept()
                    with link:
                        link.sendall(answers(link.recv(4096)))

        threading.Thread(target=run, daemon=True).start()
        return f"mqtt://127.0.0.1:{server.getsockname()[1]}"

    yield serve
    for server in open_:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def older(packet: bytes) -> bytes:
    """A broker of MQTT 3.1.1, which hangs up on other versions, as RabbitMQ 3.10 does."""
    level = packet[packet.index(b"MQTT") + 4] if b"MQTT" in packet else 0
    return b"\x20\x02\x00\x00" if level == 4 else b""


def older_that_says_so(packet: bytes) -> bytes:
    """A broker of MQTT 3.1.1 that answers "unacceptable protocol version"."""
    return older(packet) or b"\x20\x02\x00\x01"


@pytest.mark.parametrize("answers", [older, older_that_says_so])
def test_a_broker_of_mqtt_3_1_1(answers: Answers, listener: Any, client: Any) -> None:
    device = client(listener(answers), "device", wait=False)
    (told,) = device.inbox.wait(Disconnected, final=True)
    assert "MQTT 3.1.1" in told.reason
    assert "MQTT 5" in told.reason


def test_a_port_of_another_kind_is_none_of_both(listener: Any, client: Any) -> None:
    device = client(listener(lambda packet: b""), "device", wait=False)
    (told,) = device.inbox.wait(Disconnected)
    assert not told.final
    assert "closed the connection without an answer" in told.reason


@pytest.mark.parametrize("require_client", [False, True])
def test_plain_text_to_a_port_of_tls(
    require_client: bool, client: Any, free_port: int, tmp_path: Path
) -> None:
    certificates.create_authority(tmp_path, ["localhost", "127.0.0.1"])
    tls = Tls(tmp_path / "ca.pem", tmp_path / "server.pem", tmp_path / "server.key", require_client)
    with MosquittoBroker("127.0.0.1", free_port, tmp_path / "broker", tls=tls):
        device = client(f"mqtt://127.0.0.1:{free_port}", "device", wait=False)
        (told,) = device.inbox.wait(Disconnected, final=True)
    assert f"mqtts://127.0.0.1:{free_port}" in told.reason
