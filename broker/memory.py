"""A broker in memory with MQTT's rules: sessions, retained messages, wills, QoS 1 until acknowledged.

It has no clock and no threads: its caller decides when things happen. The simulation puts delays, losses
and duplicates between it and its clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from broker.bus import Delivery, Will
from broker.subscriptions import SubscriptionTree
from broker.topics import matches

Deliver = Callable[[Delivery], None]


@dataclass
class _Session:
    deliver: Deliver | None = None
    will: Will | None = None
    pending: dict[int, Delivery] = field(default_factory=dict)
    """Not acknowledged yet, in the order of arrival; sent again after a reconnect."""
    last: int = 0


class MemoryBroker:
    """One broker for all clients of a simulation."""

    def __init__(self) -> None:
        self.retained: dict[str, bytes] = {}
        self._sessions: dict[str, _Session] = {}
        self._tree = SubscriptionTree()

    def connect(self, client: str, will: Will | None, deliver: Deliver) -> bool:
        """Connect or take over; True when a session of this client was there."""
        present = client in self._sessions
        session = self._sessions.setdefault(client, _Session())
        session.deliver, session.will = deliver, will
        for delivery in list(session.pending.values()):
            deliver(delivery)
        return present

    def disconnect(self, client: str, clean: bool = False) -> None:
        """The client is gone; without a goodbye its will is published."""
        session = self._sessions.get(client)
        if session is None or session.deliver is None:
            return
        session.deliver = None
        if not clean and session.will is not None:
            self.publish(session.will.topic, session.will.payload, retain=True)

    def publish(self, topic: str, payload: bytes, retain: bool) -> None:
        """Fan out to every session that asked for the topic; an empty retained payload clears it."""
        if retain and payload:
            self.retained[topic] = payload
        elif retain:
            self.retained.pop(topic, None)
        for client in sorted(self._tree.subscribers(topic)):
            self._deliver(self._sessions[client], topic, payload, retain=False)

    def subscribe(self, client: str, filter: str) -> None:
        """Remember the filter and deliver what is retained there."""
        session = self._sessions[client]
        self._tree.add(client, filter)
        literal = filter.partition("+")[0].partition("#")[0]
        asked = [t for t in self.retained if t.startswith(literal) and matches(filter, t)]
        for topic in sorted(asked):
            self._deliver(session, topic, self.retained[topic], retain=True)

    def unsubscribe(self, client: str, filter: str) -> None:
        """Forget the filter."""
        self._tree.remove(client, filter)

    def acknowledge(self, client: str, ticket: int) -> None:
        """The client has stored this delivery."""
        if client in self._sessions:
            self._sessions[client].pending.pop(ticket, None)

    def lose_memory(self) -> list[str]:
        """A broker that comes back empty; returns the clients that were connected."""
        connected = [client for client, session in self._sessions.items() if session.deliver is not None]
        self._sessions, self.retained, self._tree = {}, {}, SubscriptionTree()
        return connected

    @staticmethod
    def _deliver(session: _Session, topic: str, payload: bytes, retain: bool) -> None:
        session.last += 1
        delivery = Delivery(topic, payload, retain, session.last)
        session.pending[session.last] = delivery
        if session.deliver is not None:
            session.deliver(delivery)
