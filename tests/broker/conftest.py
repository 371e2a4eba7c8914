"""Real brokers on free ports, a TCP proxy that hurts the link, and an inbox that can be asked."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from broker.bus import BusEvent, Will
from broker.embedded import EmbeddedBroker
from broker.mosquitto import MosquittoBroker
from broker.mqtt import MqttBus
from broker.url import BrokerUrl

E = TypeVar("E")


def find_free_port() -> int:
    """A TCP port of the loopback address that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def free_port() -> int:
    """A TCP port for the test's own broker."""
    return find_free_port()


class Inbox:
    """Keeps every event and waits for the ones a test wants. Acknowledges nothing by itself."""

    def __init__(self) -> None:
        self.events: list[BusEvent] = []
        self._changed = threading.Condition()

    def put(self, event: BusEvent, /) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def of(self, kind: type[E], **fields: object) -> list[E]:
        """The events of one kind so far whose fields have these values."""
        with self._changed:
            return [
                e
                for e in self.events
                if isinstance(e, kind) and all(getattr(e, k) == v for k, v in fields.items())
            ]

    def wait(self, kind: type[E], count: int = 1, timeout: float = 10.0, **fields: object) -> list[E]:
        """Wait until `count` such events are there; fails the test when they do not come."""
        end = time.monotonic() + timeout
        with self._changed:
            while len(found := self.of(kind, **fields)) < count:
                left = end - time.monotonic()
                if left <= 0:
                    pytest.fail(
                        f"{len(found)} of {count} {kind.__name__} {fields} came; all: {self.events[-20:]}"
                    )
                self._changed.wait(left)
            return found


@dataclass
class Client:
    """A bus and its inbox."""

    bus: MqttBus
    inbox: Inbox


MakeClient = Callable[..., Client]


@pytest.fixture
def client() -> Iterator[MakeClient]:
    """Makes clients, connected unless told otherwise, that come back fast; closes them at the end."""
    made: list[Client] = []

    def make(
        url: str | BrokerUrl, name: str, will: Will | None = None, *, wait: bool = True, **options: Any
    ) -> Client:
        from broker.bus import Connected

        settings: dict[str, Any] = {"back_off": 0.05, "back_off_cap": 0.5, "connect_timeout": 3.0, **options}
        inbox = Inbox()
        address = url if isinstance(url, BrokerUrl) else BrokerUrl.parse(url)
        bus = MqttBus(address, name, inbox, will, **settings)
        made.append(Client(bus, inbox))
        bus.start()
        if wait:
            inbox.wait(Connected)
        return made[-1]

    yield make
    for each in made:
        each.bus.close(0.5)


@dataclass
class Running:
    """A broker under test."""

    kind: str
    port: int
    process: MosquittoBroker | EmbeddedBroker

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Running]:
    """Mosquitto without persistence."""
    port = find_free_port()
    with MosquittoBroker("127.0.0.1", port, tmp_path / "mosquitto") as process:
        yield Running("mosquitto", port, process)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Running]:
    """The embedded broker."""
    port = find_free_port()
    with EmbeddedBroker("127.0.0.1", port, tmp_path / "embedded") as process:
        yield Running("embedded", port, process)


@pytest.fixture(params=["mosquitto", "embedded"])
def any_broker(request: pytest.FixtureRequest) -> Running:
    """Each broker in turn."""
    running: Running = request.getfixturevalue(request.param)
    return running


@dataclass
class Proxy:
    """A TCP proxy in front of a broker.

    `rate` limits each direction (bytes per second), `delay` holds each piece back (seconds), `cut` resets all
    connections, `stalled` swallows everything while the connections stay open, `idle` is the silence in
    seconds after which a connection is reset, as a load balancer does.
    """

    target: int
    rate: float | None = None
    delay: float = 0.0
    port: int = 0
    accepted: int = 0
    stalled: bool = False
    idle: float | None = None
    _listener: socket.socket | None = None
    _open: list[socket.socket] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        listener = socket.socket()
        # Small buffers: what the proxy holds, the two ends believe delivered.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen()
        listener.settimeout(0.1)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._run(self._accept, listener)

    def cut(self) -> None:
        """Reset every connection."""
        open_, self._open = self._open, []
        for sock in open_:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def stop(self) -> None:
        self._ended.set()
        self.cut()
        for thread in self._threads:
            thread.join()
        if self._listener is not None:
            self._listener.close()
        self.cut()  # what was accepted in between

    def restart(self) -> None:
        """Listen again on the same port after `stop`."""
        self._ended.clear()
        self.start()

    def _run(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name="tcp proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._ended.is_set():
            try:
                near, _ = listener.accept()
            except TimeoutError:
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target), timeout=1.0)
            except OSError:
                near.close()
                continue
            for sock in (near, far):
                sock.settimeout(0.1)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            self.accepted += 1
            self._open += [near, far]
            latest = [time.monotonic()]
            self._run(self._pump, near, far, latest)
            self._run(self._pump, far, near, latest)

    def _pump(self, source: socket.socket, sink: socket.socket, latest: list[float]) -> None:
        while not self._ended.is_set():
            try:
                data = source.recv(2048)
                latest[0] = time.monotonic()
            except TimeoutError:
                if self.idle is None or time.monotonic() - latest[0] < self.idle:
                    continue
                for sock in (source, sink):
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)
                    sock.close()
                return
            except OSError:
                return
            if self.delay:
                self._ended.wait(self.delay)
            if self.rate:
                self._ended.wait(len(data) / self.rate)
            while self.stalled and not self._ended.is_set():
                self._ended.wait(0.02)
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.settimeout(10.0)
                sink.sendall(data)
                sink.settimeout(0.1)
            except OSError:
                return


@pytest.fixture
def proxy() -> Iterator[Callable[[Running], Proxy]]:
    """Puts a proxy in front of a broker."""
    made: list[Proxy] = []

    def make(broker: Running, **options: Any) -> Proxy:
        made.append(Proxy(broker.port, **options))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def events() -> queue.SimpleQueue[BusEvent]:
    """A plain queue, as a tier uses it."""
    return queue.SimpleQueue()
