"""Keep-alives on links that are slow, and on links that are dead."""

from __future__ import annotations

import os
import time
from typing import Any

from broker.bus import Connected, Delivery, Disconnected, Published


def test_packets_slower_than_the_keep_alive(any_broker: Any, client: Any, proxy: Any) -> None:
    """60 KB at 25 KB/s take 2.4 s, up or down; the keep-alive is 1 s, and pings wait behind the packets.

    Mosquitto counts the bytes of an unfinished packet as life, rumqttd only whole packets.
    """
    pieces = 1 if any_broker.kind == "mosquitto" else 5
    down, up = os.urandom(60_000 // pieces), os.urandom(60_000 // pieces)
    source = client(any_broker.url, "source")
    for n in range(pieces):
        source.bus.publish(f"blob/{n}", down, retain=True, token=n + 1)
    source.inbox.wait(Published, pieces)
    link = proxy(any_broker, rate=25_000.0)
    fetching = client(link.url, "fetching", keep_alive=1)
    sending = client(link.url, "sending", keep_alive=1)
    fetching.bus.subscribe("blob/+")
    for n in range(pieces):
        sending.bus.publish("update", up, token=n + 1)
    sending.inbox.wait(Published, pieces, timeout=20.0)
    assert all(d.payload == down for d in fetching.inbox.wait(Delivery, pieces, timeout=20.0))
    assert sending.inbox.of(Disconnected) == fetching.inbox.of(Disconnected) == []
    assert link.accepted == 2


def test_an_idle_link_stays(any_broker: Any, client: Any) -> None:
    idle = client(any_broker.url, "idle", keep_alive=1)
    time.sleep(2.0)
    assert idle.inbox.of(Disconnected) == []


def test_a_dead_link_is_noticed(any_broker: Any, client: Any, proxy: Any) -> None:
    link = proxy(any_broker)
    client_ = client(link.url, "cut-off", keep_alive=1)
    link.stalled = True
    (lost,) = client_.inbox.wait(Disconnected, timeout=5.0)
    assert not lost.final
    assert "no byte" in lost.reason
    link.stalled = False
    client_.inbox.wait(Connected, 2)
