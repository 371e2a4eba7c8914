"""Collecting answers, by itself: each counts once or is refused, and the last one closes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from fedbac_edge.node import assemble
from fedbac_edge.node.store import Store
from fedbac_edge.protocol import collecting
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.gateway.state import GatewayState
from fedbac_edge.settings.federation import Federation

Step = tuple[Literal["count", "refuse", "decline"], str]
NAMES = ("d1", "d2", "d3", "d4")
KEY = ("0badcafe", 3)


@given(st.lists(st.tuples(st.sampled_from(["count", "refuse", "decline"]), st.sampled_from(NAMES))))
def test_whatever_the_order_everybody_is_settled_once_and_the_last_one_closes(steps: list[Step]) -> None:
    now = collecting.begin(collecting.Collecting(), 100.0, NAMES)
    first: dict[str, str] = {}
    for when, (step, name) in enumerate(steps):
        if name in now.waiting:
            first[name] = step
            match step:
                case "count":
                    now = collecting.count(now, "train", name, KEY)
                case "refuse":
                    now = collecting.refuse(now, name, "why")
                case "decline":
                    now = collecting.decline(now, name)
            now = collecting.close_when_done(now, float(when))
    counted = {name for name in NAMES if collecting.has_counted(now, "train", name, KEY)}
    assert counted == {name for name, step in first.items() if step == "count"}
    assert set(now.refused) == {name for name, step in first.items() if step == "refuse"}
    assert now.waiting == tuple(name for name in NAMES if name not in first)
    assert (now.deadline == 100.0) == bool(now.waiting)


def test_an_answer_that_counted_is_known_in_the_next_round_and_nothing_else_is() -> None:
    now = collecting.begin(collecting.Collecting(), 100.0, ("d1", "d2"))
    now = collecting.refuse(collecting.count(now, "train", "d1", KEY), "d2", "why")
    now = collecting.begin(collecting.end(now), 200.0)
    assert collecting.has_counted(now, "train", "d1", KEY)
    assert not collecting.has_counted(now, "evaluate", "d1", KEY)
    assert not collecting.has_counted(now, "train", "d1", ("0badcafe", 4))
    assert (now.asked, now.waiting, now.refused, now.deadline) == ((), (), {}, 200.0)


@pytest.mark.parametrize("kind", [CloudState, GatewayState])
def test_a_store_from_before_goes_on_in_the_middle_of_its_round(
    kind: type[Any], federation_of: Callable[..., Federation]
) -> None:
    """Until then asked, waiting, counted, refused and the deadline lay among the other fields."""
    old: dict[str, Any] = {
        "session": 4,
        "phase": "training",
        "asked": ["gw1", "gw2", "gw3"],
        "waiting": ["gw2"],
        "counted": {"train gw1": ["0badcafe", 7]},
        "refused": {"gw3": "why"},
        "timers": {"deadline": 12.5},
    }
    store = Store(None)
    with store.transaction():
        store.write("machine", msgspec.msgpack.encode({**old, "instance": "0badcafe"}))
    cloud = kind is CloudState
    node = (
        assemble.cloud(federation_of(), "0badcafe", store) if cloud else assemble.gateway("t", "gw1", store)
    )
    assert node.machine.timers() == {"deadline": 12.5}
    now = node.machine.state.collecting
    assert (now.asked, now.waiting, now.refused) == (("gw1", "gw2", "gw3"), ("gw2",), {"gw3": "why"})
    assert collecting.has_counted(now, "train", "gw1", ("0badcafe", 7))
