"""Life of a bus: limits, threads, what its callbacks may do, and that it tells no secrets."""

from __future__ import annotations

import ast
import inspect
import logging
import socket
import textwrap
import threading
import time
from typing import Any

import pytest

from broker import link
from broker.bus import Connected, Delivery, Disconnected, Published, Subscribed
from broker.mqtt import MqttBus
from broker.url import BrokerUrl


def test_callbacks_only_append() -> None:
    """A callback that published or waited could deadlock paho: each is one `self.facts.append(...)`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(link.Link)))
    callbacks = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("_on_")]
    assert len(callbacks) == 6
    for callback in callbacks:
        (statement,) = callback.body
        assert isinstance(statement, ast.Expr)
        assert ast.unparse(statement).startswith("self.facts.append(")
        called = {ast.unparse(n.func) for n in ast.walk(statement) if isinstance(n, ast.Call)}
        assert called <= {"self.facts.append", "Answer", "Answered", "Arrived", "Down", "str"}


def test_every_paho_callback_is_one_of_those() -> None:
    source = inspect.getsource(link)
    assigned = {line.split("=")[0].strip() for line in source.splitlines() if "client.on_" in line}
    names = ("connect", "disconnect", "message", "publish", "subscribe", "unsubscribe")
    assert assigned == {f"client.on_{name}" for name in names}


def test_one_thread_that_ends(any_broker: Any, client: Any) -> None:
    before = set(threading.enumerate())
    short = client(any_broker.url, "short")
    started = set(threading.enumerate()) - before
    assert [t.name for t in started] == ["mqtt short"]
    short.bus.close()
    assert set(threading.enumerate()) <= before
    short.bus.close()
    short.bus.publish("x", b"")
    short.bus.subscribe("x")
    short.bus.acknowledge(1)


def test_closing_while_nothing_answers(client: Any, free_port: int) -> None:
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", free_port)):
        mute = client(f"mqtt://127.0.0.1:{free_port}", "mute", wait=False)
        mute.bus.publish("x", b"never")
        time.sleep(0.1)
        mute.bus.close(0.3)
    assert set(threading.enumerate()) <= before


def test_closing_sends_what_is_queued(any_broker: Any, client: Any) -> None:
    receiver = client(any_broker.url, "receiver")
    receiver.bus.subscribe("x")
    receiver.inbox.wait(Subscribed)
    sender = client(any_broker.url, "sender", wait=False)
    for n in range(5):
        sender.bus.publish("x", b"%d" % n, token=n + 1)
    sender.bus.close()
    assert len(sender.inbox.of(Published)) == 5
    receiver.inbox.wait(Delivery, 5)


def test_the_packet_limit_of_the_broker(mosquitto: Any, client: Any) -> None:
    sender = client(mosquitto.url, "sender")
    assert sender.inbox.of(Connected)[0].maximum_packet == 131_072
    topic = "t" * 20
    fits = 131_072 - 5 - 2 - len(topic) - 2 - 1
    sender.bus.publish(topic, bytes(fits), token=1)
    sender.bus.publish(topic, bytes(fits + 1), token=2)
    sender.bus.publish(topic, b"small", token=3)
    sender.inbox.wait(Published, token=3, refused="")
    (one,) = sender.inbox.of(Published, token=1)
    (two,) = sender.inbox.of(Published, token=2)
    assert one.refused == ""
    assert "131072" in two.refused
    assert "131073" in two.refused
    assert sender.inbox.of(Disconnected) == []


def test_large_packets_of_the_embedded_broker(embedded: Any, client: Any) -> None:
    both = client(embedded.url, "both")
    both.bus.subscribe("x")
    both.inbox.wait(Subscribed)
    both.bus.publish("x", bytes(500_000), token=1)
    assert len(both.inbox.wait(Delivery)[0].payload) == 500_000
    assert len(embedded.process.process.last_words(100_000)) < 100, "a line per packet in the log"


def test_a_token_under_way_is_not_sent_twice(any_broker: Any, client: Any) -> None:
    any_broker.process.stop()
    sender = client(any_broker.url, "sender", wait=False)
    for _ in range(3):
        sender.bus.publish("x", b"same", token=9)
        sender.bus.publish("y", b"state", retain=True)
    assert sender.bus.backlog == len(b"same") + len(b"state")
    any_broker.process.start()
    sender.inbox.wait(Published, token=9)
    sender.bus.publish("x", b"same", token=9)
    sender.inbox.wait(Published, 2, token=9)
    assert sender.bus.backlog == 0


def test_unsubscribing_and_retained_again(any_broker: Any, client: Any) -> None:
    """Subscribing anew after unsubscribing brings the retained message again, on both brokers."""
    both = client(any_broker.url, "both")
    both.bus.publish("x", b"kept", retain=True, token=1)
    both.inbox.wait(Published)
    both.bus.subscribe("x")
    both.bus.acknowledge(both.inbox.wait(Delivery)[0].ticket)
    both.bus.unsubscribe("x")
    both.bus.subscribe("x")
    both.bus.acknowledge(both.inbox.wait(Delivery, 2)[1].ticket)
    both.bus.unsubscribe("x")
    both.bus.publish("x", b"unheard", token=2)
    both.inbox.wait(Published, token=2)
    both.bus.publish("y", b"", token=3)
    both.inbox.wait(Published, token=3)
    assert len(both.inbox.of(Delivery)) == 2


def test_retained_again_after_a_cut(any_broker: Any, client: Any, proxy: Any) -> None:
    """A retained message that a cut swallowed on its way can be fetched by unsubscribing and subscribing."""
    relay = proxy(any_broker)
    fetching = client(relay.url, "fetching")
    fetching.bus.publish("x/1", b"kept", retain=True, token=1)
    fetching.inbox.wait(Published)
    fetching.bus.subscribe("x/+")
    fetching.inbox.wait(Delivery)  # and not acknowledged
    relay.cut()
    fetching.inbox.wait(Connected, 2)
    fetching.bus.unsubscribe("x/+")
    fetching.bus.subscribe("x/+")
    fetching.inbox.wait(Subscribed, 2)
    found = fetching.inbox.wait(Delivery, 2 if any_broker.kind == "embedded" else 3)
    assert found[-1].payload == b"kept"
    assert found[-1].retain


def test_filters_change_while_the_link_is_down(any_broker: Any, client: Any, proxy: Any) -> None:
    relay = proxy(any_broker)
    changing = client(relay.url, "changing")
    changing.bus.subscribe("old")
    changing.inbox.wait(Subscribed, filter="old")
    relay.stop()
    changing.inbox.wait(Disconnected)
    changing.bus.unsubscribe("old")
    changing.bus.subscribe("new")
    relay.restart()
    changing.inbox.wait(Subscribed, filter="new")
    other = client(any_broker.url, "other")
    other.bus.publish("old", b"", token=1)
    other.bus.publish("new", b"", token=2)
    other.inbox.wait(Published, 2)
    assert [d.topic for d in changing.inbox.wait(Delivery)] == ["new"]
    assert len(changing.inbox.of(Subscribed)) == 2


def test_no_secret_is_told(
    mosquitto: Any, client: Any, caplog: pytest.LogCaptureFixture, free_port: int
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "pa55-w0rd"
    speaking = client(f"mqtt://cam:{secret}@127.0.0.1:{mosquitto.port}", "speaking")
    absent = client(f"mqtt://cam:{secret}@127.0.0.1:{free_port}", "absent", wait=False)
    absent.inbox.wait(Disconnected)
    mosquitto.process.kill()
    speaking.inbox.wait(Disconnected)
    told = caplog.text + repr(speaking.inbox.events + absent.inbox.events) + repr(vars(speaking.bus))
    assert "speaking" in told
    assert secret not in told


def test_forty_agents_come_back(mosquitto: Any) -> None:
    """After a broker restart everybody is back within a few caps of the back-off, spread by the jitter."""
    events: list[tuple[int, float]] = []
    lock = threading.Lock()

    class Box:
        def __init__(self, number: int) -> None:
            self.number = number

        def put(self, event: object, /) -> None:
            if isinstance(event, Connected):
                with lock:
                    events.append((self.number, time.monotonic()))

    def wait_for(count: int) -> None:
        end = time.monotonic() + 20.0
        while len(events) < count:
            assert time.monotonic() < end, f"{len(events)} of {count} connections"
            time.sleep(0.02)

    agents = [
        MqttBus(BrokerUrl.parse(mosquitto.url), f"agent-{n}", Box(n), back_off=0.1, back_off_cap=1.0)
        for n in range(40)
    ]
    try:
        for agent in agents:
            agent.start()
        wait_for(40)
        mosquitto.process.kill()
        time.sleep(0.3)
        mosquitto.process.start()
        wait_for(80)
        assert len({number for number, _ in events[40:]}) == 40
        times = sorted(when for _, when in events[40:])
        assert times[-1] - times[0] > 0.1, "all at once"
    finally:
        for agent in agents:
            agent.close(0.2)


def test_a_link_that_is_cut_for_being_idle(mosquitto: Any, client: Any, proxy: Any) -> None:
    """A load balancer's cut is no namesake: it is named, pings go out more often, and life goes on."""
    link = proxy(mosquitto, idle=1.5)
    device = client(link.url, "device", back_off=0.02, back_off_cap=10.0)
    told = device.inbox.wait(Disconnected, 3, timeout=60.0)
    assert "cuts links on which nothing moves for" in told[2].reason
    assert not any(event.final for event in told)
    device.inbox.wait(Connected, 4, timeout=30.0)
    time.sleep(6.0)
    assert len(device.inbox.of(Disconnected)) == 3, "it is cut no more"
    device.bus.publish("a", b"1", token=1)
    device.inbox.wait(Published, token=1)


def test_a_broker_that_closes_without_a_word_again_and_again(mosquitto: Any, client: Any, proxy: Any) -> None:
    """Five connections in a row, each accepted and closed at once: a namesake, and the client stays away."""
    link = proxy(mosquitto)
    device = client(link.url, "device", back_off=0.02, back_off_cap=10.0)
    for times in range(1, 6):
        device.inbox.wait(Connected, times)
        link.cut()
        device.inbox.wait(Disconnected, times)
    told = device.inbox.of(Disconnected)
    assert [event.final for event in told] == [False, False, False, False, True]
    assert all("closed the connection" in event.reason for event in told[:4])
    assert "most likely another process is connected as device" in told[4].reason
    time.sleep(0.5)
    assert len(device.inbox.of(Connected)) == 5, "it does not come back to throw the other one out"
