"""The bus on real brokers: Mosquitto and the embedded one."""

from __future__ import annotations

import time
from typing import Any

from broker import topics
from broker.bus import Connected, Delivery, Disconnected, Published, Subscribed, Will

STATUS = topics.device("demo", "gw", "cam-1", "status")
UPDATE = topics.device("demo", "gw", "cam-1", "update")


def receive(client: Any, count: int, **fields: object) -> list[Delivery]:
    """Wait for deliveries and acknowledge all."""
    found: list[Delivery] = client.inbox.wait(Delivery, count, **fields)
    for delivery in found:
        client.bus.acknowledge(delivery.ticket)
    return found


def flush(client: Any) -> None:
    """Wait until the broker has read what the client sent so far: an answer to a later message says so."""
    before = len(client.inbox.of(Published))
    client.bus.publish("flush", b"", token=before + 1)
    client.inbox.wait(Published, before + 1)


def test_a_retained_message_reaches_who_subscribes_later(any_broker: Any, client: Any) -> None:
    sender = client(any_broker.url, "sender")
    sender.bus.publish(STATUS, b"online", retain=True, token=7)
    sender.inbox.wait(Published, token=7, refused="")
    receiver = client(any_broker.url, "receiver")
    receiver.bus.subscribe(topics.device_filter("demo", "gw", "status"))
    receiver.inbox.wait(Subscribed, granted=True)
    (delivery,) = receive(receiver, 1)
    assert (delivery.topic, delivery.payload, delivery.retain) == (STATUS, b"online", True)


def test_the_will_is_retained_when_a_client_vanishes(any_broker: Any, client: Any, proxy: Any) -> None:
    watcher = client(any_broker.url, "watcher")
    watcher.bus.subscribe(STATUS)
    watcher.inbox.wait(Subscribed)
    link = proxy(any_broker)
    client(link.url, "cam-1", Will(STATUS, b"gone"), back_off=60.0, back_off_cap=60.0)
    link.cut()
    assert receive(watcher, 1)[0].payload == b"gone"
    late = client(any_broker.url, "late")
    late.bus.subscribe(STATUS)
    assert receive(late, 1)[0].retain is True


def test_a_clean_close_leaves_no_will(any_broker: Any, client: Any) -> None:
    watcher = client(any_broker.url, "watcher")
    watcher.bus.subscribe("fedbac/v1/demo/edge/gw/device/+/status")
    watcher.inbox.wait(Subscribed)
    leaving = client(any_broker.url, "cam-1", Will(STATUS, b"gone"))
    leaving.bus.publish(STATUS, b"offline", retain=True)
    leaving.bus.close()
    other = client(any_broker.url, "other")
    other.bus.publish(topics.device("demo", "gw", "z", "status"), b"after")
    assert [d.payload for d in receive(watcher, 2)] == [b"offline", b"after"]


def test_what_was_not_acknowledged_comes_again(any_broker: Any, client: Any, proxy: Any) -> None:
    link = proxy(any_broker)
    receiver = client(link.url, "receiver")
    receiver.bus.subscribe(UPDATE)
    receiver.inbox.wait(Subscribed)
    sender = client(any_broker.url, "sender")
    for payload in (b"1", b"2", b"3"):
        sender.bus.publish(UPDATE, payload)
    first = receiver.inbox.wait(Delivery, 3)
    receiver.bus.acknowledge(first[0].ticket)
    flush(receiver)
    link.cut()
    receiver.inbox.wait(Connected, 2)
    again = receiver.inbox.wait(Delivery, 5)[3:]
    assert [d.payload for d in again] == [b"2", b"3"]
    receiver.bus.acknowledge(first[1].ticket)  # stale: of the connection that is gone
    for delivery in again:
        receiver.bus.acknowledge(delivery.ticket)
    flush(receiver)
    link.cut()
    receiver.inbox.wait(Connected, 3)
    sender.bus.publish(UPDATE, b"4")
    receiver.inbox.wait(Delivery, 1, payload=b"4")
    assert len(receiver.inbox.of(Delivery)) == 6


def test_acknowledgements_may_be_given_in_any_order(any_broker: Any, client: Any) -> None:
    receiver = client(any_broker.url, "receiver")
    receiver.bus.subscribe(UPDATE)
    receiver.inbox.wait(Subscribed)
    sender = client(any_broker.url, "sender")
    for n in range(6):
        sender.bus.publish(UPDATE, b"%d" % n)
    for delivery in reversed(receiver.inbox.wait(Delivery, 6)):
        receiver.bus.acknowledge(delivery.ticket)
    sender.bus.publish(UPDATE, b"last")
    receiver.inbox.wait(Delivery, payload=b"last")
    assert receiver.inbox.of(Disconnected) == []


def test_a_namesake_stops_one_of_two(any_broker: Any, client: Any) -> None:
    one = client(any_broker.url, "twin", back_off=0.02, back_off_cap=0.3)
    two = client(any_broker.url, "twin", back_off=0.02, back_off_cap=0.3)
    end = time.monotonic() + 20.0
    while not (stopped := [c for c in (one, two) if c.inbox.of(Disconnected, final=True)]):
        assert time.monotonic() < end, "the two keep throwing each other out"
        time.sleep(0.05)
    assert len(stopped) == 1
    assert "twin" in stopped[0].inbox.of(Disconnected, final=True)[0].reason
    other = two if stopped[0] is one else one
    connections = len(other.inbox.wait(Connected))
    time.sleep(0.6)
    assert len(other.inbox.of(Connected)) <= connections + 1
    other.bus.publish(UPDATE, b"still here", token=1)
    other.inbox.wait(Published, token=1)


def test_publishing_before_the_broker_is_there(any_broker: Any, client: Any) -> None:
    any_broker.process.stop()
    sender = client(any_broker.url, "sender", wait=False)
    sender.bus.publish(STATUS, b"early", retain=True, token=1)
    sender.inbox.wait(Disconnected, final=False)
    assert sender.inbox.of(Connected) == []
    any_broker.process.start()
    sender.inbox.wait(Published, token=1)
    assert len(sender.inbox.of(Disconnected)) == 1, "one line for one long wait"


def test_a_broker_that_lost_its_memory(any_broker: Any, client: Any) -> None:
    receiver = client(any_broker.url, "receiver")
    receiver.bus.subscribe(UPDATE)
    receiver.inbox.wait(Subscribed)
    sender = client(any_broker.url, "sender")
    any_broker.process.kill()
    receiver.inbox.wait(Disconnected)
    sender.inbox.wait(Disconnected)
    any_broker.process.start()
    receiver.inbox.wait(Subscribed, 2)
    assert receiver.inbox.of(Connected)[-1].session_present is False
    sender.bus.publish(UPDATE, b"again", token=1)
    receive(receiver, 1)
    sender.inbox.wait(Published, token=1)
    sender.bus.publish(UPDATE, b"end")
    receiver.inbox.wait(Delivery, payload=b"end")
    assert len(receiver.inbox.of(Delivery, payload=b"again")) == 1, "subscribed twice"
    assert len(receiver.inbox.of(Subscribed)) == 2


def test_three_cuts_lose_nothing(any_broker: Any, client: Any, proxy: Any) -> None:
    link = proxy(any_broker, rate=300_000.0)
    receiver = client(link.url, "receiver", receive_maximum=4)
    receiver.bus.subscribe(UPDATE)
    receiver.inbox.wait(Subscribed)
    sender = client(link.url, "sender")
    count = 60
    for n in range(count):
        sender.bus.publish(UPDATE, b"%d:" % n + b"x" * 2500, token=n + 1)
    got: dict[bytes, int] = {}
    seen = 0
    cuts = [10, 25, 40]
    end = time.monotonic() + 20.0
    while len(got) < count:
        assert time.monotonic() < end, f"only {len(got)} of {count} came"
        fresh = receiver.inbox.of(Delivery)[seen:]
        for delivery in fresh:
            number = delivery.payload.split(b":")[0]
            got[number] = got.get(number, 0) + 1
            receiver.bus.acknowledge(delivery.ticket)
        seen += len(fresh)
        if cuts and len(got) >= cuts[0]:
            cuts.pop(0)
            link.cut()
        time.sleep(0.01)
    assert cuts == []
    published = sender.inbox.wait(Published, count)
    assert sorted(p.token for p in published) == list(range(1, count + 1))
    # The session was there each time: subscribed once in all.
    assert len(receiver.inbox.of(Subscribed)) == 1
    assert all(e.session_present for e in receiver.inbox.of(Connected)[1:])


def test_more_than_the_window(any_broker: Any, client: Any) -> None:
    receiver = client(any_broker.url, "receiver", receive_maximum=3)
    receiver.bus.subscribe(UPDATE)
    receiver.inbox.wait(Subscribed)
    sender = client(any_broker.url, "sender")
    count = 500
    for n in range(count):
        sender.bus.publish(UPDATE, b"%d" % n, token=n + 1)
    sender.inbox.wait(Published, count)
    payloads: list[bytes] = []
    while len(payloads) < count:
        for delivery in receiver.inbox.wait(Delivery, len(payloads) + 1)[len(payloads) :]:
            payloads.append(delivery.payload)
            receiver.bus.acknowledge(delivery.ticket)
    assert payloads == [b"%d" % n for n in range(count)]
    if any_broker.kind == "mosquitto":
        assert len(receiver.inbox.of(Connected)) == 1
