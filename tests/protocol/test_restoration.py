"""An old copy of the cloud notices that the fleet is ahead of it, and begins a new generation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fedbac_edge.protocol.cloud.machine import Cloud
from fedbac_edge.protocol.cloud.restoration import is_kin, next_instance
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.collecting import FIRST_FACTOR, PATIENCE, adaptive
from fedbac_edge.protocol.events import Log, Settle, Started, TimerFired
from fedbac_edge.protocol.gateway.machine import Gateway
from fedbac_edge.protocol.gateway.state import GatewayState
from fedbac_edge.protocol.messages import (
    GatewayEvaluation,
    GatewayStatus,
    GatewayTask,
    GatewayUpdate,
    Spec,
    Taken,
    Traffic,
)
from fedbac_edge.vocabulary.terms import Score

INSTANCE = "0badcafe"


class Copy:
    """A cloud that was started from a copy of a store: gw1 and gw2 are ready, round 1 is open."""

    def __init__(self, federation: Any, bench: Any) -> None:
        blobs: dict[str, bytes] = {}
        self.federation = federation
        self.bench = bench(Cloud(federation, blobs, CloudState(instance=INSTANCE)), blobs)
        self.bench.do(Started())
        for gateway in ("gw1", "gw2"):
            self.bench.receive(GatewayStatus(state="online", session=1, ready=True), "status", gateway)

    @property
    def state(self) -> CloudState:
        found: CloudState = self.bench.machine.state
        return found

    def hears(self, round: int, kind: str = "train", instance: str | None = INSTANCE) -> list[str]:
        """gw1 says that it has this task; the kinds of lines that come of it."""
        self.bench.receive(Taken(kind=kind, round=round, instance=instance), "reply", "gw1")
        return [action.kind for action in self.bench.actions if isinstance(action, Log)]


@pytest.fixture
def copy(federation_of: Any, bench: Any) -> Copy:
    return Copy(federation_of(), bench)


def test_a_gateway_that_is_ahead_makes_a_new_generation(copy: Copy) -> None:
    parts = dict(copy.state.parts)
    assert copy.hears(120) == ["restored", "round"]
    state = copy.state
    assert is_kin(state.instance, INSTANCE)
    assert (state.round, state.phase, state.parts) == (1, "training", parts), "from where the backup was"
    (spec,) = copy.bench.said(Spec)
    assert spec.instance == state.instance
    tasks = copy.bench.said(GatewayTask)
    assert [(task.instance, task.round) for task in tasks] == [(state.instance, 1)] * 2
    assert {a.key for a in copy.bench.actions if isinstance(a, Settle)} == {"task:gw1", "task:gw2"}
    assert copy.hears(120) == [], "what the other gateways said of the old instance tells nothing new"


@pytest.mark.parametrize(
    ("round", "kind", "instance"),
    [
        (120, "train", None),
        (120, "train", "0badbeef"),
        (1, "train", INSTANCE),
        (0, "evaluate", INSTANCE),
    ],
)
def test_what_proves_nothing(copy: Copy, round: int, kind: str, instance: str | None) -> None:
    assert copy.hears(round, kind, instance) == []
    assert copy.state.instance == INSTANCE


def test_the_evaluation_of_the_open_round_is_ahead_of_its_training(copy: Copy) -> None:
    assert copy.hears(1, "evaluate") == ["restored", "round"]


def test_who_has_reported_to_this_process_is_not_believed(copy: Copy) -> None:
    """Else a gateway could have the federation begin anew whenever it liked."""
    void = GatewayUpdate(
        instance=INSTANCE,
        round=1,
        parts={},
        samples=0,
        data=100,
        holdout=Score(0, 0, 0.0),
        asked=1,
        answered=0,
        refused=0,
        traffic=Traffic(),
        seconds=1.0,
        waited=0.0,
        void="nobody",
    )
    copy.bench.receive(void, "update", "gw1")
    assert copy.hears(120) == []
    copy.bench.do(Started())
    assert copy.hears(120) == ["restored", "round"], "another process, which may be of another copy"


def test_a_later_generation_on_the_broker_is_followed_by_a_third(copy: Copy) -> None:
    later = next_instance(INSTANCE, "restored before")
    copy.bench.receive(Spec(federation=copy.federation, instance=later, software=""), "spec")
    third = copy.state.instance
    assert is_kin(third, INSTANCE)
    assert third != later
    copy.bench.receive(Spec(federation=copy.federation, instance=INSTANCE, software=""), "spec")
    assert copy.state.instance == third, "its own specification of before was still on its way"


def test_another_cloud_is_no_later_generation(copy: Copy) -> None:
    copy.bench.receive(Spec(federation=copy.federation, instance="12345678", software=""), "spec")
    assert copy.state.instance == INSTANCE


def test_the_mark_of_the_command_is_taken_once(federation_of: Any, bench: Any) -> None:
    blobs: dict[str, bytes] = {}
    state = CloudState(instance=INSTANCE, phase="gathering", restored="4711")
    made = bench(Cloud(federation_of(), blobs, state), blobs)
    made.do(Started())
    first = made.machine.state.instance
    assert is_kin(first, INSTANCE)
    made.do(Started())
    assert made.machine.state.instance == first


def test_a_gateway_says_what_it_has_and_follows(
    federation_of: Any, bench: Any, store_part: Any, part_of: Any
) -> None:
    federation, blobs = federation_of(), dict[str, bytes]()
    site = bench(Gateway("gw1", blobs, GatewayState()), blobs)
    site.do(Started())
    site.receive(Spec(federation=federation, instance=INSTANCE, software=""), "spec")
    parts = {"global": store_part(blobs, "global", part_of(federation, 0.0))}
    task = GatewayEvaluation(instance=INSTANCE, round=120, candidates={0: parts}, deadline_s=9.0)
    site.receive(task, "task", "gw1")
    site.receive(msgspec.structs.replace(task, round=22), "task", "gw1")
    assert site.said(Taken) == [Taken(kind="evaluate", round=120, instance=INSTANCE)]
    known = {"d1": object()}
    site.machine.state.posteriors = known
    later = next_instance(INSTANCE, "x")
    site.receive(Spec(federation=federation, instance=later, software=""), "spec")
    assert site.machine.state.posteriors == known, "what it knows of its devices stays"
    assert [a.kind for a in site.actions if isinstance(a, Log)] == ["restored"]
    site.receive(msgspec.structs.replace(task, round=22, instance=later), "task", "gw1")
    assert site.said(Taken) == [Taken(kind="evaluate", round=22)]


# --- deadlines ------------------------------------------------------------------------------------


def test_void_rounds_do_not_feed_the_deadline(make_void: Callable[[int], list[float]]) -> None:
    assert make_void(PATIENCE - 1) == [200.0] * (PATIENCE - 1), "not doubled, and doubled again"


def test_a_fleet_that_has_become_slower_gets_its_time() -> None:
    """Bounded, and only while nothing counts."""
    assert adaptive([10.0], 5.0, 3600.0) == 20.0
    assert adaptive([10.0], 5.0, 3600.0, PATIENCE - 1) == 20.0
    assert adaptive([10.0], 5.0, 3600.0, PATIENCE) == FIRST_FACTOR * 5.0
    assert adaptive([10.0], 5.0, 3600.0, 100) == FIRST_FACTOR * 5.0
    assert adaptive([1000.0], 5.0, 3600.0, 100) == 2000.0, "never less than without void rounds"


@pytest.fixture
def make_void(federation_of: Any, bench: Any) -> Callable[[int], list[float]]:
    """The deadlines of void rounds, from a cloud that knows what a round takes: 100 s."""

    def make(rounds: int) -> list[float]:
        copy = Copy(federation_of(), bench)
        copy.state.seconds, copy.state.round = [100.0], 1
        limits = []
        for _ in range(rounds):
            copy.bench.now += 1.0
            copy.bench.do(TimerFired("deadline"))
            for gateway in ("gw1", "gw2"):
                for ready in (False, True):
                    status = GatewayStatus(state="online", session=1, ready=ready)
                    copy.bench.receive(status, "status", gateway)
            assert copy.state.phase == "training"
            limits.append(copy.bench.machine.timers()["deadline"] - copy.bench.now)
            copy.bench.now += limits[-1]
        return limits

    return make
