"""What a tier sees of MQTT: events out of an inbox, and six calls. Nothing here knows a client library.

A bus delivers at least once, in both directions. A receiver that counts must use keys of its own (federation,
round, device, kind), never by what a broker numbered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True)
class Will:
    """What the broker publishes, retained, when this client vanishes without saying goodbye."""

    topic: str
    payload: bytes


@dataclass(frozen=True)
class Connected:
    """The broker accepted us.

    Attributes:
        session_present: False when the broker has no memory of this client: it lost its state, or the
            session expired. Owners of retained topics should then check and repeat them.
        maximum_packet: the largest packet the broker takes, in bytes with framing; None: it named none.

    """

    session_present: bool
    maximum_packet: int | None


@dataclass(frozen=True)
class Disconnected:
    """The link is down, or could not be made.

    Attributes:
        reason: a sentence for people.
        final: True when trying again cannot help (wrong password, taken over by a namesake): the bus
            has stopped for good. False: the bus keeps trying by itself.

    """

    reason: str
    final: bool


@dataclass(frozen=True)
class Delivery:
    """A message arrived. Hand `ticket` to `acknowledge` once its effects are stored.

    Without that the broker sends it again on the next connection. Ticket 0 needs no acknowledgement: the
    message came with QoS 0. A request names the topic for its answer, and data that the answer must repeat.
    """

    topic: str
    payload: bytes
    retain: bool
    ticket: int
    response_topic: str = ""
    correlation_data: bytes | None = None


@dataclass(frozen=True)
class Answering:
    """What a message that answers a request carries besides its payload.

    Attributes:
        correlation_data: as in the request; None: it had none.
        content_type: of the payload, a MIME type.
        certain: QoS 1, as everything else; False for a request that came with QoS 0: the answer, too, may
            get lost with a connection.

    """

    correlation_data: bytes | None
    content_type: str
    certain: bool = True


@dataclass(frozen=True)
class Published:
    """The broker answered for the publish that carried `token`; said exactly once per publish.

    Attributes:
        token: what the caller passed to `publish`.
        refused: empty when the broker took the message, else why it did not ("Not authorized", larger
            than the broker's packets ...).
        code: MQTT's reason for that (0x80 and more); `reasons` says which of them pass by themselves.

    """

    token: int
    refused: str = ""
    code: int = 0


@dataclass(frozen=True)
class Subscribed:
    """The broker answered a subscription; `granted` is False when it (its ACL) refused the filter."""

    filter: str
    granted: bool


BusEvent: TypeAlias = Connected | Disconnected | Delivery | Published | Subscribed


class Bus(Protocol):
    """The calls a tier makes. All may be made from any thread, none waits for the network but `close`."""

    def start(self) -> None:
        """Begin to connect; returns at once. A broker that is not there yet is waited for."""

    def publish(
        self,
        topic: str,
        payload: bytes,
        retain: bool = False,
        token: int = 0,
        answering: Answering | None = None,
    ) -> None:
        """Queue a message (QoS 1). `Published(token)` follows when token is not 0."""

    def subscribe(self, filter: str) -> None:
        """Ask for a topic filter; remembered, and repeated on every connection.

        What is retained there comes when the filter is new to the broker's session.
        """

    def unsubscribe(self, filter: str) -> None:
        """Stop asking for a topic filter."""

    def acknowledge(self, ticket: int) -> None:
        """Tell the broker that a delivery is stored. Tickets of a connection that is gone are ignored."""

    def close(self, timeout: float = 5.0) -> None:
        """Send what is queued for up to `timeout` seconds, say goodbye (no will), stop."""
