"""The broker in memory keeps MQTT's rules, since the simulation's results stand on them."""

from __future__ import annotations

import pytest

from broker.bus import Delivery, Will
from broker.memory import MemoryBroker
from broker.topics import matches


class Client:
    def __init__(self, broker: MemoryBroker, name: str, will: Will | None = None) -> None:
        self.broker, self.name, self.will = broker, name, will
        self.got: list[Delivery] = []

    def connect(self) -> bool:
        return self.broker.connect(self.name, self.will, lambda delivery: self.got.append(delivery))

    def take(self) -> list[tuple[str, bytes, bool]]:
        taken, self.got = self.got, []
        for delivery in taken:
            self.broker.acknowledge(self.name, delivery.ticket)
        return [(d.topic, d.payload, d.retain) for d in taken]


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


def test_retained_messages_come_with_the_subscription_and_are_cleared_by_an_empty_one(
    broker: MemoryBroker,
) -> None:
    client = Client(broker, "a")
    client.connect()
    broker.publish("x/1", b"one", retain=True)
    broker.publish("x/2", b"two", retain=False)
    client.broker.subscribe("a", "x/+")
    assert client.take() == [("x/1", b"one", True)]
    broker.publish("x/1", b"", retain=True)
    assert client.take() == [("x/1", b"", False)]
    assert broker.retained == {}


def test_unacknowledged_deliveries_come_again_on_the_next_connection(broker: MemoryBroker) -> None:
    client = Client(broker, "a")
    assert not client.connect()
    broker.subscribe("a", "x")
    broker.publish("x", b"1", retain=False)
    client.got.clear()  # it crashed before it could store anything
    broker.disconnect("a")
    broker.publish("x", b"2", retain=False)
    assert client.connect()
    assert client.take() == [("x", b"1", False), ("x", b"2", False)]
    broker.disconnect("a")
    client.connect()
    assert client.take() == []


def test_a_will_is_published_for_who_vanishes_and_not_for_who_says_goodbye(broker: MemoryBroker) -> None:
    watcher, client = Client(broker, "w"), Client(broker, "a", Will("status/a", b"offline"))
    watcher.connect()
    broker.subscribe("w", "status/#")
    client.connect()
    broker.disconnect("a", clean=True)
    assert watcher.take() == []
    client.connect()
    broker.disconnect("a")
    broker.disconnect("a")
    assert watcher.take() == [("status/a", b"offline", False)]
    assert broker.retained == {"status/a": b"offline"}


def test_two_filters_deliver_once_and_unsubscribing_ends_it(broker: MemoryBroker) -> None:
    client = Client(broker, "a")
    client.connect()
    for filter in ("x/+", "x/1", "x/1"):
        broker.subscribe("a", filter)
    broker.publish("x/1", b"1", retain=False)
    assert len(client.take()) == 1
    broker.unsubscribe("a", "x/+")
    broker.publish("x/1", b"2", retain=False)
    broker.publish("x/2", b"3", retain=False)
    assert client.take() == [("x/1", b"2", False)]


def test_a_broker_that_lost_its_memory_knows_nobody(broker: MemoryBroker) -> None:
    client = Client(broker, "a")
    client.connect()
    broker.subscribe("a", "x")
    broker.publish("x", b"1", retain=True)
    assert broker.lose_memory() == ["a"]
    assert broker.retained == {}
    assert not client.connect()
    broker.publish("x", b"2", retain=False)
    assert [payload for _, payload, _ in client.take()] == [b"1"]


@pytest.mark.parametrize(
    ("filter", "topic", "expected"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/c", False),
        ("a/b", "a/b/c", False),
        ("a/+", "a/b", True),
        ("a/+", "a", False),
        ("a/+", "a/b/c", False),
        ("+/b", "a/b", True),
        ("a/+/c", "a//c", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("#", "a/b", True),
        ("a/+/#", "a", False),
    ],
)
def test_filters_match_as_mqtt_says(broker: MemoryBroker, filter: str, topic: str, expected: bool) -> None:
    client = Client(broker, "a")
    client.connect()
    broker.subscribe("a", filter)
    broker.publish(topic, b"1", retain=False)
    assert bool(client.take()) == expected
    assert matches(filter, topic) == expected
