"""What `fedbac broker forget` and `fedbac device forget` do: retained topics are read, then cleared."""

from __future__ import annotations

import queue
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from broker import topics, wire
from broker.bus import BusEvent, Connected, Delivery, Disconnected, Published, Subscribed
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.commands.failures import Failed
from fedbac_edge.protocol.messages import CloudStatus, DeviceStatus, GatewayStatus, ServingStatus

QUIET_S = 1.0
"""Retained messages come in one go: so long without one means that was all."""


@dataclass
class Remains:
    """What a broker keeps below a filter: its retained topics, and the clients that say they are online."""

    names: set[str] = field(default_factory=set)
    online: set[str] = field(default_factory=set)
    cloud: bool = False
    """The cloud is among them."""

    def take(self, topic: str, payload: bytes) -> None:
        """Note a retained message."""
        self.names.add(topic)
        place = topics.parse(topic)
        if place is None or place.kind not in ("status", "serving"):
            return
        try:
            said = wire.decode(payload, CloudStatus, GatewayStatus, DeviceStatus, ServingStatus)
        except wire.WireError:  # of other software, or damaged: no client to wait for
            return
        assert isinstance(said, (CloudStatus, GatewayStatus, DeviceStatus, ServingStatus))
        if said.state != "offline":
            self.online.add("/".join(name for name in (place.gateway, place.device) if name) or "the cloud")
            self.cloud = self.cloud or place.gateway is None


class Conversation:
    """A short connection on which what is retained below `filter` is read and then cleared."""

    def __init__(self, url: BrokerUrl, filter: str, timeout: float) -> None:
        self._url, self._root, self._timeout = url, filter, timeout
        self._inbox: queue.SimpleQueue[BusEvent] = queue.SimpleQueue()
        name = f"fedbac-forget-{secrets.token_hex(6)}"
        self._bus = MqttBus(url, name, self._inbox, session_expiry=0, receive_maximum=100)

    def __enter__(self) -> Conversation:
        self._bus.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bus.close(1.0)

    def remains(self) -> Remains:
        """What there is now. Raises Failed when the broker cannot be asked."""
        found = Remains()
        granted: list[bool] = []

        def take(event: BusEvent) -> None:
            if isinstance(event, Subscribed):
                granted.append(event.granted)
            elif isinstance(event, Delivery) and event.retain and event.payload:
                found.take(event.topic, event.payload)

        self._bus.subscribe(self._root)
        self._listen(take, lambda: bool(granted), QUIET_S)
        self._bus.unsubscribe(self._root)
        if granted != [True]:
            raise Failed(f"{self._url} does not let this client read {self._root}: check its access list")
        return found

    def clear(self, names: set[str]) -> None:
        """Clear these retained topics. Raises Failed with what the broker refused."""
        self._publish(names, b"", retain=True)

    def tell(self, topic: str, payload: bytes) -> None:
        """Say something that is not kept. Raises Failed with what the broker refused."""
        self._publish({topic}, payload, retain=False)

    def _publish(self, names: set[str], payload: bytes, *, retain: bool) -> None:
        waiting = dict(enumerate(sorted(names), start=1))
        refused: dict[str, str] = {}

        def take(event: BusEvent) -> None:
            if isinstance(event, Published):
                topic = waiting.pop(event.token, "")
                if event.refused:
                    refused[topic] = event.refused

        for token, topic in list(waiting.items()):
            self._bus.publish(topic, payload, retain=retain, token=token)
        self._listen(take, lambda: not waiting, 0.0)
        if refused:
            topic, why = min(refused.items())
            raise Failed(
                f"the broker refused {len(refused)} messages, on {topic} among them: {why}; "
                "connect as the cloud's user"
            )

    def _listen(self, take: Callable[[BusEvent], None], done: Callable[[], bool], quiet: float) -> None:
        """Hand on events until `done` and then `quiet` seconds have passed without one."""
        why, end = f"{self._url} does not answer", time.monotonic() + self._timeout
        while not done() or quiet:
            left = quiet if done() else end - time.monotonic()
            try:
                event = self._inbox.get(timeout=max(0.0, left))
            except queue.Empty:
                if done():
                    return
                raise Failed(why) from None
            match event:
                case Connected():
                    why = f"{self._url} did not answer in {self._timeout:g} s"
                case Disconnected(reason, final):
                    why = reason
                    if final:
                        raise Failed(why)
                case Delivery(ticket=ticket):
                    self._bus.acknowledge(ticket)
                    end = time.monotonic() + self._timeout
                case Published():
                    end = time.monotonic() + self._timeout
            take(event)
