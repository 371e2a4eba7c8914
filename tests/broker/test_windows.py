"""Tables of what is under way, against a broker that exists only as a rule: it may forget, never invent."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from broker.bus import Answering
from broker.mqtt import full_jitter
from broker.windows import Incoming, Message, Outgoing


def drain(outgoing: Outgoing, start: int) -> list[tuple[int, Message]]:
    """Send what the windows allow; packet ids from `start`."""
    sent = []
    while (message := outgoing.next()) is not None:
        outgoing.sent(start, message)
        sent.append((start, message))
        start += 1
    return sent


@given(
    st.lists(st.sampled_from(["add", "send", "ack", "ack again", "cut"]), max_size=60),
    st.integers(1, 4),
    st.randoms(),
)
def test_every_token_is_answered_once_whatever_the_link_does(
    steps: list[str], window: int, chance: random.Random
) -> None:
    outgoing = Outgoing(window, 50)
    token, packet_id = 0, 1
    in_flight: list[int] = []
    gone: list[int] = []
    answered: list[int] = []

    def acknowledge(which: int) -> None:
        message = outgoing.acknowledged(which)
        if message is not None:
            answered.append(message.token)

    for step in [*steps, "cut"]:
        if step == "add":
            token += 1
            outgoing.add(Message("t", bytes(chance.randrange(40)), token=token))
        elif step == "send":
            sent = drain(outgoing, packet_id)
            in_flight += [i for i, _ in sent]
            packet_id += len(sent)
            assert len(in_flight) <= window
        elif step == "ack" and in_flight:
            gone.append(in_flight.pop(chance.randrange(len(in_flight))))
            acknowledge(gone[-1])
        elif step == "ack again" and gone:
            acknowledge(gone[-1])
        elif step == "cut":
            outgoing.connection_lost()
            in_flight.clear()
    while outgoing:
        for i, _ in drain(outgoing, packet_id):
            acknowledge(i)
            packet_id = i + 1
    assert sorted(answered) == list(range(1, token + 1))
    assert outgoing.size == 0


def test_the_unacknowledged_go_first_after_a_cut() -> None:
    outgoing = Outgoing(2, 1000)
    for token in range(1, 5):
        outgoing.add(Message("t", b"", token=token))
    drain(outgoing, 1)
    outgoing.connection_lost()
    outgoing.add(Message("t", b"", token=5))
    order = []
    for start in (10, 20, 30):
        for i, message in drain(outgoing, start):
            order.append(message.token)
            outgoing.acknowledged(i)
    assert order == [1, 2, 3, 4, 5]


def test_an_answer_with_qos_0_is_not_sent_a_second_time() -> None:
    """It waits for its turn as everything else; once it was handed over it is gone with the connection."""
    outgoing = Outgoing(2, 1000)
    for name, certain in (("a", False), ("b", True), ("c", False)):
        outgoing.add(Message(name, b"x", answering=Answering(b"1", "application/json", certain)))
    assert [message.topic for _, message in drain(outgoing, 1)] == ["a", "b"]
    outgoing.connection_lost()
    assert [message.topic for _, message in drain(outgoing, 3)] == ["b", "c"]


def test_bytes_bound_what_is_in_flight_and_a_giant_goes_alone() -> None:
    outgoing = Outgoing(10, 300)
    for size in (100, 100, 100, 5000, 10):
        outgoing.add(Message("t", bytes(size)))
    assert [len(m.payload) for _, m in drain(outgoing, 1)] == [100, 100]
    outgoing.acknowledged(1)
    outgoing.acknowledged(2)
    assert [len(m.payload) for _, m in drain(outgoing, 3)] == [100]
    outgoing.acknowledged(3)
    assert [len(m.payload) for _, m in drain(outgoing, 4)] == [5000]
    outgoing.acknowledged(4)
    assert [len(m.payload) for _, m in drain(outgoing, 5)] == [10]


def test_of_a_status_only_the_last_is_kept() -> None:
    outgoing = Outgoing(1, 1000)
    for payload in (b"1", b"2"):
        outgoing.add(Message("status", payload, retain=True))
        outgoing.add(Message("event", payload))
    assert [m.payload for _, m in drain(outgoing, 1)] == [b"1"]  # event 1: status moved behind it
    outgoing.add(Message("status", b"3", retain=True))
    outgoing.acknowledged(1)
    assert [m.payload for _, m in drain(outgoing, 2)] == [b"2"]
    outgoing.acknowledged(2)
    ((_, status),) = drain(outgoing, 3)
    assert status.payload == b"3"
    outgoing.add(Message("status", b"4", retain=True))
    outgoing.connection_lost()
    assert [m.payload for _, m in drain(outgoing, 4)] == [b"4"]
    outgoing.acknowledged(4)
    assert not outgoing


@given(st.permutations(range(6)))
def test_acknowledgements_keep_the_order_of_arrival(order: list[int]) -> None:
    incoming = Incoming()
    tickets = [incoming.arrived(100 + n) for n in range(6)]
    told: list[int] = []
    for n in order:
        incoming.acknowledge(tickets[n])
        incoming.acknowledge(tickets[n])
        told += incoming.due()
    assert told == [100 + n for n in range(6)]


def test_tickets_of_a_lost_connection_are_ignored() -> None:
    incoming = Incoming()
    old = incoming.arrived(1)
    incoming.connection_lost()
    new = incoming.arrived(1)
    assert new != old
    incoming.acknowledge(old)
    assert incoming.due() == []
    incoming.acknowledge(new)
    assert incoming.due() == [1]


def test_the_wait_grows_to_its_cap_and_is_drawn_from_zero() -> None:
    ceilings = [full_jitter(n, 1.0, 30.0, lambda low, high: high) for n in (0, 1, 4, 5, 6, 10_000)]
    assert ceilings == [1.0, 2.0, 16.0, 30.0, 30.0, 30.0]
    assert full_jitter(3, 1.0, 30.0, lambda low, high: low) == 0.0
    drawn = [full_jitter(2, 1.0, 30.0) for _ in range(500)]
    assert min(drawn) < 1.0 < 3.0 < max(drawn) <= 4.0
