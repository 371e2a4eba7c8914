"""The cloud's machine: two-phase aggregation against numbers worked out by hand, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from fedbac_edge.parts.part import pack, unpack
from fedbac_edge.protocol.cloud import releasing
from fedbac_edge.protocol.cloud.campaign import VOIDS_LEAST
from fedbac_edge.protocol.cloud.machine import Cloud
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.events import (
    Announce,
    Channel,
    Hello,
    Keep,
    Overwritten,
    Resend,
    Send,
    Settle,
    Started,
    Withdraw,
)
from fedbac_edge.protocol.gateway import gate
from fedbac_edge.protocol.messages import (
    CloudStatus,
    GatewayEvaluation,
    GatewayScores,
    GatewayStatus,
    GatewayTask,
    GatewayUpdate,
    Receipt,
    Spec,
    Taken,
    Traffic,
)
from fedbac_edge.vocabulary.terms import Score

INSTANCE = "0badcafe"


class Centre:
    """A cloud with its sites; parts of reports have one value everywhere."""

    def __init__(self, federation: Any, bench: Any, part_of: Any) -> None:
        self.federation, self.part_of = federation, part_of
        blobs: dict[str, bytes] = {}
        self.bench = bench(Cloud(federation, blobs, CloudState(instance=INSTANCE)), blobs)
        self.schema = gate.schemas(federation)["global"]
        self.founded = self.bench.do(Started())

    @property
    def state(self) -> CloudState:
        found: CloudState = self.bench.machine.state
        return found

    def status(self, gateway: str, state: str = "online", session: int = 1, ready: bool = True) -> Any:
        return self.bench.receive(GatewayStatus(state=state, session=session, ready=ready), "status", gateway)

    def begin(self) -> None:
        for gateway in self.federation.gateways:
            self.status(gateway)

    def an_update(self, values: dict[str, float], **change: Any) -> GatewayUpdate:
        update = GatewayUpdate(
            instance=INSTANCE,
            round=self.state.round,
            parts={role: pack(self.part_of(self.federation, value)) for role, value in values.items()},
            samples=50,
            data=100,
            holdout=Score(10, 5, 10.0),
            asked=2,
            answered=2,
            refused=0,
            traffic=Traffic(up=1_000, down=2_000),
            seconds=3.0,
            waited=0.0,
        )
        return msgspec.structs.replace(update, **change)

    def update(self, gateway: str, /, global_: float = 0.0, cluster: float = 0.0, **change: Any) -> Any:
        update = self.an_update({"global": global_, "cluster": cluster}, **change)
        return self.bench.receive(update, "update", gateway)

    def scores(self, gateway: str, /, **change: Any) -> Any:
        scores = GatewayScores(
            instance=INSTANCE,
            round=self.state.round,
            scores=dict.fromkeys(range(2), Score(10, 5, 10.0)),
            answered=2,
            traffic=Traffic(),
            seconds=1.0,
        )
        return self.bench.receive(msgspec.structs.replace(scores, **change), "update", gateway)

    def place(self, clusters: dict[str, int]) -> None:
        """Put the sites on these clusters, as a sweep would."""
        clustering = self.state.clustering
        assert clustering is not None
        windows = {
            name: msgspec.structs.replace(window, cluster=clusters[name])
            for name, window in clustering.windows.items()
        }
        self.state.clustering = msgspec.structs.replace(clustering, windows=windows)

    def values(self) -> dict[str, set[float]]:
        """Part -> the distinct numbers in it."""
        parts = {n: unpack(self.bench.blobs[r.hash], self.schema) for n, r in self.state.parts.items()}
        return {n: {float(x) for t in part.values() for x in np.unique(t)} for n, part in parts.items()}

    def answer(self) -> tuple[bool, str]:
        (receipt,) = self.bench.said(Receipt)
        return receipt.accepted, receipt.reason


@pytest.fixture
def make(federation_of: Any, bench: Any, part_of: Any) -> Callable[..., Centre]:
    return lambda **tables: Centre(federation_of(**tables), bench, part_of)


@pytest.fixture
def centre(make: Callable[..., Centre]) -> Centre:
    centre = make()
    centre.begin()
    return centre


def test_founding_publishes_the_specification_and_every_part(make: Callable[..., Centre]) -> None:
    centre = make()
    (spec,) = centre.bench.said(Spec)
    assert (spec.federation, spec.instance) == (centre.federation, INSTANCE)
    announced = {action.part.name: action.part.hash for action in centre.bench.of(Announce)}
    assert set(announced) == {"global", "cluster-0", "cluster-1"}
    assert announced["cluster-0"] == announced["cluster-1"] != announced["global"]
    assert centre.bench.machine.kept() == set(announced.values())
    assert centre.bench.do(Started()) == [], "a restart founds nothing"


def test_both_phases_against_a_hand_computation(make: Callable[..., Centre]) -> None:
    """Three sites of 100, 300 and 600 samples, the first two on cluster 0.

    G = (100*1 + 300*2 + 600*3) / 1000 = 2.5, K_0 = (100*10 + 300*20) / 400 = 17.5, K_1 = 30.
    """
    centre = make(method="clusters = 3")
    federation = msgspec.structs.replace(centre.federation, gateways={"a": ("x",), "b": ("y",), "c": ("z",)})
    centre = Centre(federation, type(centre.bench), centre.part_of)
    centre.begin()
    centre.place({"a": 0, "b": 0, "c": 1})
    untouched = centre.state.parts["cluster-2"]
    for gateway, data, value in (("c", 600, 3.0), ("a", 100, 1.0), ("b", 300, 2.0)):
        centre.update(gateway, value, 10 * value, data=data, samples=7)
    centre.bench.run_timers()
    values = centre.values()
    assert (values["global"], values["cluster-0"], values["cluster-1"]) == ({2.5}, {17.5}, {30.0})
    assert centre.state.parts["cluster-2"] == untouched
    assert centre.state.round == 2


def test_weights_can_be_those_of_the_participants(make: Callable[..., Centre]) -> None:
    centre = make(method='cloud_weight = "participants"')
    centre.begin()
    centre.update("gw1", 1.0, samples=30)
    centre.update("gw2", 5.0, samples=10)
    centre.bench.run_timers()
    assert centre.values()["global"] == {2.0}


def test_a_silent_site_is_left_out_and_its_cluster_keeps_its_network(centre: Centre) -> None:
    before = centre.state.parts["cluster-1"]
    centre.update("gw1", 4.0, 8.0)
    centre.bench.now = centre.bench.machine.timers()["deadline"]
    closed = centre.bench.run_timers()
    assert [line.subject for line in centre.bench.logged("silent", closed)] == ["gw2"]
    assert centre.values()["global"] == {4.0}
    assert centre.values()["cluster-0"] == {8.0}
    assert centre.state.parts["cluster-1"] == before
    summary = centre.state.last
    assert summary is not None
    assert summary.sites["gw2"].void == "no report"


def test_a_void_report_weighs_nothing(centre: Centre) -> None:
    centre.update("gw1", 4.0, 8.0)
    centre.update("gw2", void="0 updates of 2 asked, 1 needed", parts={}, samples=0)
    centre.bench.run_timers()
    assert centre.values()["global"] == {4.0}
    assert centre.state.round == 2


def test_a_round_without_any_update_changes_nothing_and_is_followed_by_a_pause(centre: Centre) -> None:
    before = centre.state.parts
    for gateway in ("gw1", "gw2"):
        centre.update(gateway, void="nobody", parts={}, samples=0)
    centre.bench.run_timers()
    assert centre.state.parts == before
    assert (centre.state.phase, centre.state.round) == ("gathering", 1)
    for gateway in ("gw1", "gw2"):
        centre.status(gateway)
    assert centre.state.phase == "gathering", "that sites are still ready is no news"
    centre.bench.now = centre.state.timers["gather"]
    centre.bench.run_timers()
    assert (centre.state.phase, centre.state.round) == ("training", 2)


def test_two_generations_are_kept_and_the_third_is_withdrawn(centre: Centre) -> None:
    generations = [{ref.hash for ref in centre.state.parts.values()}]
    withdrawn: list[set[str]] = []
    for round in (1, 2, 3):
        centre.update("gw1", float(round), 10.0 + round)
        centre.update("gw2", float(round), 20.0 + round)
        actions = centre.bench.run_timers()
        generations.append({ref.hash for ref in centre.state.parts.values()})
        withdrawn.append({action.hash for action in centre.bench.of(Withdraw, actions)})
        assert {action.hash for action in centre.bench.of(Keep, actions)} <= centre.bench.machine.kept()
        assert len(centre.bench.of(Announce, actions)) == 3
    assert withdrawn == [set(), generations[0], generations[1]]
    assert centre.bench.machine.kept() == generations[3] | generations[2]


def test_previous_is_what_the_site_served_and_empty_after_a_switch(centre: Centre) -> None:
    tasks = []
    for round in (1, 2):
        for gateway in ("gw1", "gw2"):
            centre.update(gateway, float(round), float(round))
        tasks.append(centre.bench.said(GatewayTask, centre.bench.run_timers())[0])
    assert [bool(task.previous) for task in tasks] == [True, True]
    assert tasks[1].previous == tasks[0].parts
    centre.place({"gw1": 1, "gw2": 1})
    for gateway in ("gw1", "gw2"):
        centre.update(gateway, 9.0, 9.0)
    first, second = centre.bench.said(GatewayTask, centre.bench.run_timers())
    assert (first.cluster, first.previous) == (1, {})
    assert second.previous == {"global": tasks[1].parts["global"], "cluster": second.previous["cluster"]}


GATE: dict[str, tuple[dict[str, Any], str]] = {
    "an earlier federation": ({"instance": "00000000"}, "another federation that had this name"),
    "a later round": ({"round": 2}, "round 2 is not open"),
    "no samples": ({"samples": 0}, "0 samples of 100"),
    "more samples than data": ({"samples": 101}, "101 samples of 100"),
    "hold-out inconsistent": ({"holdout": Score(1, 2, 1.0)}, "2 of 1 right"),
    "void, and a score that cannot be": ({"void": "x", "holdout": Score(1, 1, float("nan"))}, "loss nan"),
    "no parts": ({"parts": {}}, "found none"),
    "empty parts": ({"parts": {"global": b"", "cluster": b""}}, "bytes of weights"),
}


@pytest.mark.parametrize("name", GATE)
def test_the_gate(centre: Centre, name: str) -> None:
    change, why = GATE[name]
    centre.update("gw1", **change)
    accepted, reason = centre.answer()
    assert not accepted
    assert why in reason
    assert centre.bench.logged("refused")[0].subject == "gw1"
    assert centre.state.reports == {}
    assert centre.state.collecting.waiting == (("gw1", "gw2") if name == "a later round" else ("gw2",))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(centre.state), type=CloudState) == centre.state


def test_a_site_of_another_roster_is_refused(centre: Centre) -> None:
    centre.update("stranger", 1.0, 1.0)
    assert centre.answer() == (False, "round 1 is not open for this gateway")
    centre.scores("stranger")
    assert not centre.answer()[0]


def test_a_report_said_again_counts_once_and_gets_its_receipt(centre: Centre) -> None:
    centre.update("gw1", 1.0, 1.0)
    again = centre.an_update({"global": 1.0, "cluster": 1.0})
    for late in (False, True):
        if late:
            centre.update("gw2", 1.0, 1.0)
            centre.bench.run_timers()
        before = msgspec.msgpack.encode(centre.state)
        centre.bench.receive(again, "update", "gw1")
        assert centre.answer() == (True, "")
        assert msgspec.msgpack.encode(centre.state) == before


def test_tasks_are_sent_until_they_are_taken(centre: Centre) -> None:
    keys = {"task:gw1", "task:gw2"}
    assert {send.key for send in centre.bench.of(Send) if isinstance(send.message, GatewayTask)} == keys
    centre.bench.receive(Taken(kind="train", round=1), "reply", "gw1")
    assert centre.bench.actions == [Settle("task:gw1")]
    for other in (Taken(kind="evaluate", round=1), Taken(kind="train", round=0)):
        assert centre.bench.receive(other, "reply", "gw2") == []
    centre.status("gw2", session=2)
    assert centre.bench.of(Resend) == [Resend("task:gw2")]


def test_a_late_will_is_ignored_and_a_new_disk_is_not(centre: Centre) -> None:
    centre.status("gw1", session=7)
    centre.status("gw1", state="offline", session=6)
    assert centre.state.sites["gw1"].ready
    centre.status("gw1", session=1)
    assert centre.bench.of(Resend) == [Resend("task:gw1")]
    centre.status("gw1", state="offline", session=1)
    assert not centre.state.sites["gw1"].online


def test_the_roster_starts_with_who_is_there_after_the_wait(make: Callable[..., Centre]) -> None:
    centre = make(deadlines="gather_s = 10")
    centre.bench.now = 10.0
    centre.bench.run_timers()
    assert centre.bench.logged("nobody")
    centre.status("gw1", ready=False)
    assert centre.state.phase == "gathering"
    centre.bench.now = 20.0
    started = centre.bench.run_timers()
    assert centre.bench.logged("missing", started)[0].detail == {"gateways": ["gw1", "gw2"]}
    assert centre.state.collecting.asked == ("gw1", "gw2"), "with a roster presence changes nothing"


def test_after_the_last_round_every_site_is_asked_for_its_own_cluster_alone(centre: Centre) -> None:
    centre.state.round = centre.federation.rounds
    for gateway in ("gw1", "gw2"):
        centre.update(gateway, 1.0, 1.0)
    tasks = centre.bench.said(GatewayEvaluation, centre.bench.run_timers())
    assert [set(task.candidates) for task in tasks] == [{0}, {1}]
    centre.scores("gw1", scores={7: Score(1, 1, 1.0)})
    assert centre.answer() == (False, "scores of clusters that do not exist")
    centre.scores("gw2", scores={1: Score(10, 5, 10.0)})
    finished = centre.bench.run_timers()
    assert centre.state.phase == "finished"
    assert centre.bench.logged("finished", finished)
    assert centre.bench.said(CloudStatus, finished)[-1].state == "finished"
    assert centre.state.clustering is not None
    centre.update("gw1", 5.0, 5.0, round=3)
    assert centre.answer() == (False, "round 3 is not open for this gateway")
    assert centre.bench.machine.timers() == {}


def test_a_state_with_the_largest_claims_can_be_read_back(centre: Centre) -> None:
    """A site that claims absurd traffic must not brick the cloud at its next start."""
    most = 2**53
    for gateway in ("gw1", "gw2"):
        score = Score(10**12, 10**12, 1e300)
        traffic = Traffic(up=most, down=most)
        centre.update(gateway, 1.0, 1.0, data=most, samples=most, holdout=score, traffic=traffic)
        assert centre.answer() == (True, "")
    told = centre.bench.said(CloudStatus, centre.bench.run_timers())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(centre.state), type=CloudState) == centre.state
    for status in told:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(status), type=CloudStatus) == status
    assert centre.values()["global"] == {1.0}


def test_another_clouds_specification_is_put_right_without_a_shouting_match(
    federation_of: Any, bench: Any, part_of: Any
) -> None:
    """Whose federation it is stands on the broker again at once, but two clouds do not answer each other."""
    centre = Centre(federation_of(), bench, part_of)
    centre.begin()
    own = next(a.message for a in centre.founded if isinstance(a, Send) and isinstance(a.message, Spec))
    foreign = msgspec.structs.replace(own, instance="12345678")

    def said(actions: list[Any]) -> list[Any]:
        return [a.message for a in actions if isinstance(a, Send) and isinstance(a.message, Spec)]

    assert said(centre.bench.receive(own, "spec")) == []
    assert said(centre.bench.receive(foreign, "spec")) == [own]
    assert said(centre.bench.receive(foreign, "spec")) == []  # not again for a while
    centre.bench.now += 60
    assert said(centre.bench.do(Hello())) == [own]
    assert said(centre.bench.receive(own, "spec")) == []
    centre.bench.now += 60
    assert said(centre.bench.do(Hello())) == []  # it is ours again


def test_a_description_that_was_overwritten_is_put_back(centre: Centre) -> None:
    """Junk or nothing in the place of the specification: put right at once, then at most every 10 s."""
    centre.bench.now = 100.0
    for why in ("", "not MessagePack"):
        centre.bench.now += 10.0
        actions = centre.bench.do(Overwritten(Channel("spec"), why))
        (spec,) = centre.bench.said(Spec, actions)
        assert (spec.instance, spec.federation) == (INSTANCE, centre.federation)
        again = centre.bench.do(Overwritten(Channel("spec"), why))
        assert not centre.bench.said(Spec, again), "a moment later it would be a shouting match"
        due = centre.bench.machine.timers()["reclaim"]
        assert due == centre.bench.now + 10.0
        centre.bench.now = due
        assert len(centre.bench.said(Spec, centre.bench.run_timers())) == 1
        assert "reclaim" not in centre.bench.machine.timers()
    assert not centre.bench.do(Overwritten(Channel("status", "gw1"), ""))


def test_a_round_in_which_all_sites_take_long_steps_is_not_void(centre: Centre) -> None:
    """Seen: rounds 488 to 494 void, a minute each."""
    centre.state.norms = {"cluster+global": [0.01] * 200}
    for gateway in ("gw1", "gw2"):
        centre.update(gateway, 1.0, 1.0)
    closed = centre.bench.run_timers()
    (line,) = centre.bench.logged("aggregated", closed)
    assert line.detail["void"] is False


def test_a_gateway_that_vanished_in_an_open_fleet_costs_the_grace_and_not_the_deadline(
    make: Callable[..., Centre],
) -> None:
    centre = make(top='eligibility = "online"')
    centre.begin()
    centre.update("gw1", 1.0, 1.0)
    centre.bench.now = 1.0
    centre.status("gw2", "offline")
    due = centre.bench.machine.timers()
    assert due["gone gw2"] == 61.0 < due["deadline"]
    centre.bench.now = 61.0
    fired = centre.bench.run_timers() + centre.bench.run_timers()
    assert centre.bench.logged("gone", fired)
    (line,) = centre.bench.logged("aggregated", fired)
    assert line.detail["void"] is False


def phase(centre: Centre) -> str:
    return centre.state.phase


def void_round(centre: Centre) -> list[Any]:
    """Both sites report that nothing counted; what follows, until the next round has begun."""
    for gateway in ("gw1", "gw2"):
        centre.update(gateway, parts={}, samples=0, void="0 updates of 2 asked, 1 needed")
    actions = centre.bench.run_timers()
    if centre.state.phase == "gathering":
        centre.bench.now = centre.state.timers["gather"]
        actions += centre.bench.run_timers()
    return list(actions)


def test_void_rounds_do_not_use_up_a_campaign(centre: Centre) -> None:
    """Seen: three void rounds of three, and the campaign was over with a release of random weights."""
    for _ in range(centre.federation.rounds + 1):
        void_round(centre)
    assert (centre.state.phase, centre.state.round) == ("training", 6)
    assert centre.bench.machine.campaign.last_round == 9
    for _ in range(centre.federation.rounds):
        assert phase(centre) == "training"
        for gateway in ("gw1", "gw2"):
            centre.update(gateway, 1.0, 1.0)
        centre.bench.run_timers()
        while phase(centre) == "evaluating":
            for gateway in ("gw1", "gw2"):
                task = sorted(centre.state.assignment.items())
                centre.scores(gateway, scores={k: Score(10, 5, 10.0) for k in sorted({k for _, k in task})})
            centre.bench.run_timers()
    assert (centre.state.phase, centre.state.round) == ("finished", 9)
    assert not centre.bench.machine.campaign.has_given_up


def test_a_campaign_in_which_nothing_counts_is_given_up_and_can_go_on(centre: Centre) -> None:
    actions = [void_round(centre) for _ in range(VOIDS_LEAST)]
    assert phase(centre) == "finished"
    assert centre.bench.machine.campaign.has_given_up
    assert centre.bench.logged("gave up", actions[-1])[0].detail == {"void": VOIDS_LEAST}
    assert not any(centre.bench.logged("finished", each) for each in actions)
    assert not releasing.is_due(centre.state, centre.federation)
    centre.bench.do(Started())
    assert phase(centre) == "gathering", "started again, it goes on"
    assert not centre.bench.machine.campaign.has_given_up
