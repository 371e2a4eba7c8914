"""When a gateway leaves a federation that is over for one that lives, told by what it hears and when."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from broker import topics, wire
from broker.bus import Connected, Delivery, Disconnected
from fedbac_edge.federation_file import reading
from fedbac_edge.node.neighbours import GRACE_S, SILENCE_S, Neighbours
from fedbac_edge.protocol.messages import CloudStatus, Spec

PLACE: Mapping[str, tuple[str, ...]] = {"gw1": ()}


def described(name: str, gateways: Mapping[str, tuple[str, ...]] = PLACE) -> Delivery:
    federation = reading.parse(f'name = "{name}"\n[model]\nclasses = ["cat", "dog"]')
    federation = msgspec.structs.replace(federation, gateways=dict(gateways))
    spec = Spec(federation=federation, instance="11111111", software="test")
    return Delivery(topics.spec(name), wire.encode(spec), True, 1)


def said(name: str, state: str, *, retained: bool = False) -> Delivery:
    return Delivery(topics.cloud_status(name), wire.encode(CloudStatus(state=state, session=1)), retained, 1)


def listening(*events: Delivery) -> Neighbours:
    """A gateway with a list gw1, connected at 0 to `old`, which has heard `events` at once."""
    neighbours = Neighbours("old", lambda other: "" if "gw1" in other.gateways else "no place")
    neighbours.take(Connected(False, None), 0.0)
    for event in (described("old"), described("new"), *events):
        neighbours.take(event, 0.0)
    return neighbours


def test_a_cloud_that_only_the_brokers_memory_still_hears_is_dead() -> None:
    """Its broker died with it: "training" is retained for ever, and nothing live follows."""
    neighbours = listening(said("old", "training", retained=True))
    neighbours.take(said("new", "training"), SILENCE_S - 10)
    assert neighbours.successor(SILENCE_S - 1) is None
    assert neighbours.successor(SILENCE_S) == "new"


def test_a_cloud_that_says_hello_is_never_left() -> None:
    neighbours = listening(said("old", "training", retained=True))
    for minute in range(1, 20):
        neighbours.take(said("old", "finished"), 60.0 * minute)
        neighbours.take(said("new", "training"), 60.0 * minute)
        assert neighbours.successor(60.0 * minute + 59) is None


def test_one_that_said_goodbye_has_a_grace_to_come_back() -> None:
    neighbours = listening(said("old", "offline", retained=True), said("new", "training"))
    neighbours.take(said("old", "offline", retained=True), GRACE_S - 5)  # the same once more
    assert neighbours.successor(GRACE_S - 1) is None
    assert neighbours.successor(GRACE_S) == "new"
    neighbours.take(said("old", "gathering"), GRACE_S)
    assert neighbours.successor(GRACE_S + 60) is None


def test_only_a_living_one_with_a_place_is_moved_to() -> None:
    gone = said("old", "offline", retained=True)
    assert listening(gone, said("new", "training", retained=True)).successor(GRACE_S) is None
    assert listening(gone, said("new", "training"), said("new", "offline")).successor(GRACE_S) is None
    elsewhere = listening(gone, said("new", "training"), described("new", {"gw7": ()}))
    assert elsewhere.successor(GRACE_S) is None


def test_while_the_link_is_down_nobody_is_called_dead() -> None:
    neighbours = listening(said("old", "training"), said("new", "training"))
    neighbours.take(Disconnected("cut", False), 1.0)
    assert neighbours.due() is None
    assert neighbours.successor(10 * SILENCE_S) is None
    neighbours.take(Connected(True, None), 10 * SILENCE_S)
    assert neighbours.successor(11 * SILENCE_S - 1) is None
