"""Is there another cloud of this federation on the broker? Asked before a cloud says its first word.

Two clouds of one name would take gateways and devices from each other, round by round.
"""

from __future__ import annotations

import queue
import secrets
import time

from broker import topics, wire
from broker.bus import BusEvent, Connected, Delivery
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.host.signals import POLL_S, Stop
from fedbac_edge.protocol.messages import CloudStatus, Message, Spec

REACH_S = 3.0
"""A broker that does not answer for this long is waited for later; then no cloud rules there."""
SETTLE_S = 0.5
"""After the connection what is retained comes at once."""


def find(url: BrokerUrl, federation: str, instance: str, stop: Stop) -> str | None:
    """The instance of another cloud that is online in `federation`, or None.

    Blocks for up to REACH_S seconds when the broker is not there, or until `stop()` is true.
    """
    inbox: queue.SimpleQueue[BusEvent] = queue.SimpleQueue()
    bus = MqttBus(url, f"fedbac:{federation}:newcomer:{secrets.token_hex(4)}", inbox, session_expiry=0)
    bus.subscribe(topics.spec(federation))
    bus.subscribe(topics.cloud_status(federation))
    found: dict[str, Message] = {}
    end = time.monotonic() + REACH_S
    bus.start()
    try:
        while (left := end - time.monotonic()) > 0 and not stop():
            try:
                event = inbox.get(timeout=min(left, POLL_S))
            except queue.Empty:
                continue
            match event:
                case Connected():
                    end = time.monotonic() + SETTLE_S
                case Delivery(topic, payload, _, ticket):
                    bus.acknowledge(ticket)
                    try:
                        found[topic] = wire.decode(payload, Spec, CloudStatus)
                    except wire.WireError:
                        continue
    finally:
        bus.close(1.0)
    spec, status = found.get(topics.spec(federation)), found.get(topics.cloud_status(federation))
    online = isinstance(status, CloudStatus) and status.state != "offline"
    if online and isinstance(spec, Spec) and spec.instance != instance:
        return spec.instance
    return None
