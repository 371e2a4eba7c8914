"""What is under way to and from a broker, across connections. Plain tables: no socket, no clock, no lock."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from broker.bus import Answering


@dataclass(frozen=True)
class Message:
    """A QoS 1 message to send; `token` 0: no caller waits for its acknowledgement."""

    topic: str
    payload: bytes
    retain: bool = False
    token: int = 0
    answering: Answering | None = None

    @property
    def certain(self) -> bool:
        """False for an answer with QoS 0: it is not sent a second time."""
        return self.answering is None or self.answering.certain

    @property
    def packet_size(self) -> int:
        """Bytes of the PUBLISH packet: header and length (5), topic, packet id, properties."""
        properties = 1
        if self.answering is not None:  # a length of up to 4 bytes; 3 bytes before each property's data
            data = self.answering.correlation_data or b""
            properties = 4 + 3 + len(data) + 3 + len(self.answering.content_type.encode())
        return 5 + 2 + len(self.topic.encode()) + 2 + properties + len(self.payload)


class Outgoing:
    """Messages waiting, and messages handed to a connection that the broker has not acknowledged.

    Args:
        most_messages, most_bytes: what may be unacknowledged at once. A message larger than `most_bytes`
            goes alone.

    """

    def __init__(self, most_messages: int, most_bytes: int) -> None:
        self.most_messages = most_messages
        self._most_bytes = most_bytes
        self._serial = itertools.count()
        self._waiting: OrderedDict[Hashable, Message] = OrderedDict()
        self._in_flight: OrderedDict[int, Message] = OrderedDict()
        self._tokens_in_flight: set[Hashable] = set()
        self._bytes_in_flight = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    @property
    def size(self) -> int:
        """Payload bytes waiting or unacknowledged."""
        return sum(len(m.payload) for m in (*self._waiting.values(), *self._in_flight.values()))

    def add(self, message: Message) -> None:
        """Append, unless the same is under way.

        The same is: the same token for the same topic. A retained message without a token replaces one that
        waits for the same topic: of a status only the last matters.
        """
        key = self._key(message)
        if message.token and (key in self._waiting or key in self._tokens_in_flight):
            return
        self._waiting.pop(key, None)
        self._waiting[key] = message

    def next(self) -> Message | None:
        """Take the oldest waiting message, if the windows have room; follow with `sent` or drop it."""
        if not self._waiting or len(self._in_flight) >= self.most_messages:
            return None
        key, message = next(iter(self._waiting.items()))
        if self._in_flight and self._bytes_in_flight + message.packet_size > self._most_bytes:
            return None
        del self._waiting[key]
        return message

    def sent(self, packet_id: int, message: Message) -> None:
        """Note that the connection has the message, under this packet id."""
        self._in_flight[packet_id] = message
        self._bytes_in_flight += message.packet_size
        if message.token:
            self._tokens_in_flight.add(self._key(message))

    def acknowledged(self, packet_id: int) -> Message | None:
        """Take out what the broker answered for; None when it was answered before."""
        message = self._in_flight.pop(packet_id, None)
        if message is not None:
            self._bytes_in_flight -= message.packet_size
            self._tokens_in_flight.discard(self._key(message))
        return message

    @property
    def largest(self) -> int:
        """Bytes of the largest packet that the broker has not answered for; 0: it has answered for all."""
        return max((message.packet_size for message in self._in_flight.values()), default=0)

    def take_larger(self, size: int) -> list[Message]:
        """Take out every message whose packet is larger than `size` bytes, sent already or waiting."""
        sent = [number for number, message in self._in_flight.items() if message.packet_size > size]
        waiting = [key for key, message in self._waiting.items() if message.packet_size > size]
        taken = [message for number in sent if (message := self.acknowledged(number)) is not None]
        return [*taken, *(self._waiting.pop(key) for key in waiting)]

    def connection_lost(self) -> None:
        """Put the unacknowledged back in front, in their order; a newer status of the same topic wins.

        What was sent with QoS 0 is not sent again.
        """
        waiting = self._waiting
        self._waiting = OrderedDict()
        for message in self._in_flight.values():
            key = self._key(message)
            if message.certain and key not in waiting:
                self._waiting[key] = message
        self._waiting.update(waiting)
        self._in_flight.clear()
        self._tokens_in_flight.clear()
        self._bytes_in_flight = 0

    def _key(self, message: Message) -> Hashable:
        if message.token:
            return message.topic, message.token
        return message.topic if message.retain else next(self._serial)


class Incoming:
    """Deliveries of the present connection that the broker waits for, as tickets.

    MQTT wants acknowledgements in the order of arrival, and rumqttd closes the connection otherwise, so an
    early one is held until its predecessors are acknowledged too.
    """

    def __init__(self) -> None:
        self._serial = itertools.count(1)
        self._open: OrderedDict[int, int] = OrderedDict()  # ticket -> packet id
        self._done: set[int] = set()

    def arrived(self, packet_id: int) -> int:
        """Give the delivery a ticket, never used before."""
        ticket = next(self._serial)
        self._open[ticket] = packet_id
        return ticket

    def acknowledge(self, ticket: int) -> None:
        """Note that the delivery is stored; a ticket of a lost connection is ignored."""
        if ticket in self._open:
            self._done.add(ticket)

    def due(self) -> list[int]:
        """Take the packet ids to acknowledge now, in order."""
        due = []
        while self._open:
            ticket = next(iter(self._open))
            if ticket not in self._done:
                break
            self._done.discard(ticket)
            due.append(self._open.pop(ticket))
        return due

    def connection_lost(self) -> None:
        """Forget all: the broker delivers again."""
        self._open.clear()
        self._done.clear()
