"""What brokers may answer and none of ours does: a peer that speaks from a script."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.bus import Connected, Delivery, Disconnected, Published, Subscribed

ACCEPT = bytes([0x20, 3, 0, 0, 0])
Script = Callable[[int, bytes], bytes]  # (packet type, body) -> what to send


def _read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise ConnectionError
        data += piece
    return data


def _packets(sock: socket.socket) -> Iterator[tuple[int, bytes]]:
    while True:
        kind = _read(sock, 1)[0]
        length, shift = 0, 0
        while True:
            byte = _read(sock, 1)[0]
            length |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                break
        yield kind >> 4, _read(sock, length)


class Peer:
    """Accepts connections one after another and answers each packet by the script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self._ended = threading.Event()
        self.url = f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ended.is_set():
            try:
                sock, _ = self._listener.accept()
            except TimeoutError:
                continue
            self.connections += 1
            sock.settimeout(5.0)
            with sock:
                try:
                    for kind, body in _packets(sock):
                        sock.sendall(self._script(kind, body))
                        if kind == 14:
                            break
                except OSError:
                    continue

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def peer() -> Iterator[Callable[[Script], Peer]]:
    made: list[Peer] = []

    def make(script: Script) -> Peer:
        made.append(Peer(script))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.mark.parametrize(
    ("connack", "final", "word"),
    [
        ([3, 0, 0x84, 0], True, "MQTT 5"),
        ([3, 0, 0x85, 0], True, "scripted"),
        ([3, 0, 0x86, 0], True, "password"),
        ([3, 0, 0x8A, 0], True, "banned"),
        ([3, 0, 0x88, 0], False, "unavailable"),
        ([3, 0, 0x9F, 0], False, "rate"),
        ([5, 0, 0, 2, 0x25, 0], True, "retained"),  # Retain Available 0
        ([5, 0, 0, 2, 0x24, 0], True, "QoS 1"),  # Maximum QoS 0
    ],
)
def test_connack(
    peer: Callable[[Script], Peer], client: Any, connack: list[int], final: bool, word: str
) -> None:
    broker = peer(lambda kind, body: bytes([0x20, *connack]))
    refused = client(broker.url, "scripted", wait=False)
    (why, *_) = refused.inbox.wait(Disconnected)
    assert why.final is final
    assert word in why.reason
    assert refused.inbox.of(Connected) == []


def test_session_taken_over_is_final(peer: Callable[[Script], Peer], client: Any) -> None:
    broker = peer(lambda kind, body: ACCEPT if kind == 1 else bytes([0xE0, 2, 0x8E, 0]))
    twin = client(broker.url, "twin")
    twin.bus.publish("x", b"")
    (why,) = twin.inbox.wait(Disconnected)
    assert why.final
    assert "twin" in why.reason
    twin.bus.close(0.2)
    assert broker.connections == 1


def test_a_refused_subscription(peer: Callable[[Script], Peer], client: Any) -> None:
    broker = peer(lambda kind, body: ACCEPT if kind == 1 else bytes([0x90, 4, *body[:2], 0, 0x87]))
    fenced = client(broker.url, "fenced")
    fenced.bus.subscribe("secret/#")
    assert fenced.inbox.wait(Subscribed) == [Subscribed("secret/#", False)]


def test_a_broker_asks_for_a_smaller_window(peer: Callable[[Script], Peer], client: Any) -> None:
    """Receive Maximum 2 in CONNACK: a third message waits for an acknowledgement."""
    seen: list[tuple[int, int]] = []  # (number of the connection, packet type)

    def script(kind: int, body: bytes) -> bytes:
        if kind == 1:
            return bytes([0x20, 6, 0, 0, 3, 0x21, 0, 2])
        seen.append((broker.connections, kind))
        return b""

    broker = peer(script)
    eager = client(broker.url, "eager", keep_alive=1)
    for n in range(5):
        eager.bus.publish("x", b"", token=n + 1)
    eager.inbox.wait(Disconnected)  # the script answers no ping; then the next connection sends them again
    assert seen.count((1, 3)) == 2
    assert eager.inbox.of(Published) == []


@pytest.mark.parametrize(
    "junk",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(64),
        bytes([0x20, 3, 0, 0, 9]),
        bytes([0x20, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]),
        ACCEPT + bytes([0x32, 3, 0, 9, 65]),  # PUBLISH whose topic is cut short
        ACCEPT + bytes([0x32, 6, 0, 1, 0xFF, 0, 1, 0]),  # PUBLISH whose topic is no UTF-8
        ACCEPT + bytes([0x40, 2, 0, 77]),  # PUBACK for nothing
        ACCEPT + bytes([0x90, 4, 0, 77, 0, 1]),  # SUBACK for nothing
    ],
)
def test_junk_never_ends_the_bus(peer: Callable[[Script], Peer], client: Any, junk: bytes) -> None:
    broker = peer(lambda kind, body: junk if broker.connections == 1 else ACCEPT)
    patient = client(broker.url, "patient", wait=False, keep_alive=1, connect_timeout=0.5)
    patient.inbox.wait(Connected, 2 if junk.startswith(ACCEPT) else 1)
    assert not patient.inbox.of(Disconnected, final=True)
    assert not any(d.topic for d in patient.inbox.of(Delivery))
