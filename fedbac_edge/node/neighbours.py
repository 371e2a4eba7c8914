"""The other federations of a broker: one that lives takes over from one that died.

A gateway that was started without a name joins what is there. Where that federation is over, its description
and the last word of its cloud stay on the broker, "training" included when the broker died first. So only
what is heard live counts as life: every cloud says its status at least once a minute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from broker import topics, wire
from broker.bus import BusEvent, Connected, Delivery, Disconnected
from fedbac_edge.protocol.messages import CloudStatus, Spec
from fedbac_edge.settings.federation import Federation

GRACE_S = 30.0
"""So long a cloud that said goodbye may be starting again."""
SILENCE_S = 150.0
"""A cloud that was not heard for two and a half of its hellos is dead, whatever is retained of it."""


class Neighbours:
    """What is heard of all federations on the broker. Times are monotonic seconds.

    `missing` says why the caller has no place in a federation ("" when it has one).
    """

    filters = (f"{topics.ROOT}/+/spec", f"{topics.ROOT}/+/cloud/status")
    """What its owner has to listen to, beside its own topics."""

    def __init__(self, own: str, missing: Callable[[Federation], str]) -> None:
        self._own, self._missing = own, missing
        self._places: set[str] = set()
        self._alive: dict[str, float] = {}
        """Federation -> when its cloud was heard last, in this connection."""
        self._left: float | None = None
        """When our own cloud was first known to be gone."""
        self._listening: float | None = None

    def take(self, event: BusEvent, now: float) -> None:
        """Note what concerns another federation, or the life of our own."""
        match event:
            case Connected():
                self._listening, self._left = now, None
                self._alive.clear()
            case Disconnected():
                self._listening = None
            case Delivery(topic, payload, retained):
                address = topics.parse(topic)
                if address is None or address.gateway is not None:
                    return
                if address.kind == "spec":
                    self._description(address.federation, payload)
                elif address.kind == "status":
                    self._status(address.federation, payload, retained, now)

    def _description(self, name: str, payload: bytes) -> None:
        self._places.discard(name)
        with contextlib.suppress(wire.WireError):
            described = wire.decode(payload, Spec).federation
            if described.name == name and not self._missing(described):
                self._places.add(name)

    def _status(self, name: str, payload: bytes, retained: bool, now: float) -> None:
        try:
            offline = wire.decode(payload, CloudStatus).state == "offline"
        except wire.WireError:
            offline = True  # cleared, or unreadable: it says nothing of life
        if name == self._own:
            self._left = None if not offline else now if self._left is None else self._left
        if offline:
            self._alive.pop(name, None)
        elif not retained:
            self._alive[name] = now

    def due(self) -> float | None:
        """When our own cloud will count as dead, or None while no client is connected."""
        if self._listening is None:
            return None
        silent = self._alive.get(self._own, self._listening) + SILENCE_S
        return silent if self._left is None else min(silent, self._left + GRACE_S)

    def successor(self, now: float) -> str | None:
        """A living federation with a place for us, once our own is dead; None: stay."""
        due = self.due()
        if due is None or now < due:
            return None
        living = (
            name for name in self._places - {self._own} if now - self._alive.get(name, -1e9) < SILENCE_S
        )
        return min(living, default=None)
