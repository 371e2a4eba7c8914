"""One MQTT 5 connection, from CONNECT to its end, on paho-mqtt driven by one thread.

paho's callbacks do one thing here: append what happened to `facts`. Its own threads, its reconnecting, its
resending and its keep-alive are not used, because they

- let any thread write to the socket, so that packets can interleave,
- judge the link by the answer to a ping. Over 10 KB/s that answer waits behind 120 KB packets, and a
  healthy link is cut. Here a link is alive while bytes move in either direction.

Everything in this file is called from the bus's thread, except `Waker.wake`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import ssl
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from broker.bus import Answering, Will
from broker.url import BrokerUrl

if sys.platform != "win32":
    import fcntl
    import termios

# Enough for full speed on a local network (at 32 KB the sender waits for delayed acknowledgements: 5 MB/s
# instead of 150), little enough that a slow link is not hidden behind a full kernel buffer.
SEND_BUFFER = 64 * 1024


@dataclass(frozen=True)
class LinkSettings:
    """What a CONNECT says, and how long to wait. Sizes in bytes, times in seconds."""

    url: BrokerUrl
    client_id: str
    will: Will | None = None
    keep_alive: int = 30
    session_expiry: int = 3600
    receive_maximum: int = 8
    maximum_packet: int = 1024 * 1024
    connect_timeout: float = 10.0
    ping_every: float | None = None
    """Seconds between pings where something on the way wants them more often than the broker."""


@dataclass(frozen=True)
class Answer:
    """CONNACK."""

    code: int
    name: str
    session_present: bool
    properties: Properties | None


@dataclass(frozen=True)
class Down:
    """The socket is closed; `code` is None unless the broker sent a DISCONNECT."""

    code: int | None
    name: str


@dataclass(frozen=True)
class Arrived:
    """PUBLISH from the broker."""

    message: paho.MQTTMessage


@dataclass(frozen=True)
class Answered:
    """The broker answered packet id `mid`; `code` >= 0x80 is a refusal."""

    what: Literal["publish", "subscribe", "unsubscribe"]
    mid: int
    code: int
    name: str


@dataclass(frozen=True)
class Complaint:
    """What paho logged as an error: the text of a socket or TLS error."""

    text: str


RetainedFirst: TypeAlias = Literal["always", "if new", "never"]
"""When the broker sends what is retained under a filter: "if new", when its session did not have it."""

_RETAIN_HANDLING: dict[RetainedFirst, int] = {
    "always": SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE,
    "if new": SubscribeOptions.RETAIN_SEND_IF_NEW_SUB,
    "never": SubscribeOptions.RETAIN_DO_NOT_SEND,
}

Fact: TypeAlias = Answer | Down | Arrived | Answered | Complaint


class Waker:
    """Lets other threads end the wait of `Link.step`."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """For a selector: readable when woken."""
        return self._reader.fileno()

    def wake(self) -> None:
        """From any thread; returns at once."""
        # Full means that a wake-up is waiting already; closed means that no thread waits any more.
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def clear(self) -> None:
        """Forget all wake-ups so far."""
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass

    def close(self) -> None:
        """Free the descriptors; `wake` does nothing from now on."""
        self._reader.close()
        self._writer.close()


class Link:
    """A connection in the making or made. `facts` holds what happened, for the owner to take."""

    def __init__(self, settings: LinkSettings, context: ssl.SSLContext | None, waker: Waker) -> None:
        self.facts: deque[Fact] = deque()
        self._settings = settings
        self._waker = waker
        self._keep_alive = float(settings.keep_alive)
        self.quiet = 0.0
        """Once the connection has ended: for how many seconds before that no byte had moved."""
        self._last_ping = self._last_progress = time.monotonic()
        self._selector = selectors.DefaultSelector()
        self._closed = False
        self._unacknowledged = 0
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=settings.client_id,
            protocol=paho.MQTTv5,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_unsubscribe = self._on_unsubscribe
        # A logger of its own, outside the tree: nothing that paho formats reaches a log file by itself.
        quiet = logging.Logger("paho", logging.ERROR)
        quiet.addHandler(_Complaints(self.facts))
        client.enable_logger(quiet)
        client.connect_timeout = settings.connect_timeout
        # The owner keeps to the window; paho must never hold back what it was given.
        client.max_inflight_messages_set(65535)
        if settings.url.user is not None:
            client.username_pw_set(settings.url.user, settings.url.password)
        if settings.will is not None:
            client.will_set(settings.will.topic, settings.will.payload, qos=1, retain=True)
        if context is not None:
            client.tls_set_context(context)
        self._client = client

    # Callbacks: one statement each, and that statement appends. A test holds them to it.

    def _on_connect(
        self,
        client: paho.Client,
        userdata: Any,
        flags: paho.ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self.facts.append(Answer(reason.value, str(reason), flags.session_present, properties))

    def _on_disconnect(
        self,
        client: paho.Client,
        userdata: Any,
        flags: paho.DisconnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self.facts.append(
            Down(reason.value if flags.is_disconnect_packet_from_server else None, str(reason)),
        )

    def _on_message(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        self.facts.append(Arrived(message))

    def _on_publish(
        self, client: paho.Client, userdata: Any, mid: int, reason: ReasonCode, properties: Properties | None
    ) -> None:
        self.facts.append(Answered("publish", mid, reason.value, str(reason)))

    def _on_subscribe(
        self,
        client: paho.Client,
        userdata: Any,
        mid: int,
        codes: list[ReasonCode],
        properties: Properties | None,
    ) -> None:
        self.facts.append(Answered("subscribe", mid, codes[0].value, str(codes[0])))

    def _on_unsubscribe(
        self,
        client: paho.Client,
        userdata: Any,
        mid: int,
        codes: list[ReasonCode],
        properties: Properties | None,
    ) -> None:
        self.facts.append(Answered("unsubscribe", mid, 0, ""))

    # What the owner calls.

    @property
    def is_open(self) -> bool:
        """False once the socket is closed, by either side."""
        return not self._closed and self._client.socket() is not None

    def open(self) -> None:
        """Connect TCP (and TLS) and send CONNECT; the broker's answer arrives as an `Answer`.

        Raises OSError (ssl errors among them) or ValueError; waits up to `connect_timeout` per address.
        """
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self._settings.session_expiry
        properties.ReceiveMaximum = self._settings.receive_maximum
        properties.MaximumPacketSize = self._settings.maximum_packet
        url = self._settings.url
        self._client.connect(
            url.host, url.port, self._settings.keep_alive, clean_start=False, properties=properties
        )
        sock = self._socket()
        if sock is None:
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._selector.register(sock, selectors.EVENT_READ)
        self._selector.register(self._waker, selectors.EVENT_READ)
        self._last_ping = self._last_progress = time.monotonic()

    def use_keep_alive(self, seconds: int) -> None:
        """Obey the keep-alive that the broker asked for in CONNACK (0: it does not mind)."""
        if seconds > 0:
            self._keep_alive = min(self._keep_alive, float(seconds))

    def publish(self, topic: str, payload: bytes, retain: bool, answering: Answering | None = None) -> int:
        """Hand a message to the socket (QoS 1 but for uncertain answers); returns its packet id."""
        if answering is None:
            return self._client.publish(topic, payload, qos=1, retain=retain).mid
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType = answering.content_type
        if answering.correlation_data is not None:
            properties.CorrelationData = answering.correlation_data
        qos = 1 if answering.certain else 0
        return self._client.publish(topic, payload, qos=qos, retain=retain, properties=properties).mid

    def subscribe(self, filter: str, retained: RetainedFirst = "always") -> int:
        """Send SUBSCRIBE (QoS 1); returns its packet id. `retained`: whether the retained messages come."""
        options = SubscribeOptions(qos=1, retainHandling=_RETAIN_HANDLING[retained])
        return self._client.subscribe(filter, options=options)[1] or 0

    def unsubscribe(self, filter: str) -> int:
        """Send UNSUBSCRIBE; returns its packet id."""
        return self._client.unsubscribe(filter)[1] or 0

    def acknowledge(self, mid: int) -> None:
        """Send PUBACK for a delivery."""
        self._client.ack(mid, 1)

    def step(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the socket or the waker, move bytes, keep the link alive."""
        sock = self._socket()
        if sock is None:
            return
        blocked = self._client.want_write()
        self._selector.modify(sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if blocked else 0))
        # TLS decrypts whole records: what it holds already, the selector cannot see.
        held = isinstance(sock, ssl.SSLSocket) and sock.pending() > 0
        wait = 0.0 if held else max(0.0, min(timeout, self._until_ping()))
        readable, writable = held, False
        for key, mask in self._selector.select(wait):
            if key.fileobj is self._waker:
                self._waker.clear()
                continue
            readable = readable or bool(mask & selectors.EVENT_READ)
            writable = writable or bool(mask & selectors.EVENT_WRITE)
        unacknowledged = _unacknowledged(sock)
        before = self._last_progress
        if readable or (writable if unacknowledged is None else unacknowledged < self._unacknowledged):
            self._last_progress = time.monotonic()
        if readable:
            self._client.loop_read()
        if writable and self.is_open:
            self._client.loop_write()
        if self.is_open:
            self._unacknowledged = _unacknowledged(sock) or 0
            self._keep()
        if not self.is_open:  # that it ended could be read, too, but is no byte of it
            self.quiet = time.monotonic() - before

    def goodbye(self, timeout: float) -> None:
        """Send what is queued and DISCONNECT (the broker drops the will), wait for the broker to close."""
        sock = self._socket()
        if sock is None:
            return
        # A second descriptor: paho closes its own right after the last byte, and closing a socket that has
        # unread input resets the connection, which can overtake the DISCONNECT and set the will off.
        with socket.socket(sock.family, sock.type, sock.proto, fileno=os.dup(sock.fileno())) as keeper:
            end = time.monotonic() + timeout
            self._client.disconnect()
            while self.is_open and time.monotonic() < end:
                self.step(end - time.monotonic())
            with contextlib.suppress(OSError):
                keeper.settimeout(max(0.1, min(1.0, end - time.monotonic())))
                keeper.shutdown(socket.SHUT_WR)
                while keeper.recv(65536):
                    pass

    def close(self) -> None:
        """Let go of the socket. Without `goodbye` before, the broker will publish the will."""
        sock, self._closed = self._socket(), True
        self._selector.close()
        if sock is not None:
            sock.close()

    def _socket(self) -> socket.socket | None:
        return cast("socket.socket | None", self._client.socket())

    def _until_ping(self) -> float:
        wait = self._keep_alive / 2
        if self._settings.ping_every is not None:
            wait = min(wait, self._settings.ping_every)
        return self._last_ping + wait - time.monotonic()

    def _keep(self) -> None:
        """Ping twice per keep-alive or more; give up after one and a half without a byte, as brokers do."""
        now = time.monotonic()
        if now - self._last_progress > 1.5 * self._keep_alive:
            self.facts.append(Complaint(f"no byte moved for {1.5 * self._keep_alive:.0f} s"))
            self.close()
            return
        if self._until_ping() <= 0:
            self._last_ping = now
            # While output waits, the broker sees bytes of ours anyway, and a ping would come after them.
            if not self._client.want_write():
                self._client._send_pingreq()


def _unacknowledged(sock: socket.socket) -> int | None:
    """Bytes written that the other side's kernel has not confirmed; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)


class _Complaints(logging.Handler):
    def __init__(self, facts: deque[Fact]) -> None:
        super().__init__(logging.ERROR)
        self._facts = facts

    def emit(self, record: logging.LogRecord) -> None:
        self._facts.append(Complaint(record.getMessage()))
