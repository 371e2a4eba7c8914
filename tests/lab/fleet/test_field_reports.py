"""Situations from public reports of fleets, in virtual time; the numbers are those of the reports."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from broker.bus import Will
from fedbac_edge.lab.fleet.faults import Faults
from fedbac_edge.node.node import AWAY_MOST_S
from fedbac_edge.node.outgoing import WINDOW
from fedbac_edge.parts.part import pack
from fedbac_edge.protocol.events import Event, Trained
from fedbac_edge.vocabulary.terms import Score

Build = Callable[..., Any]
EVERYONE = "[selection]\nparticipation = 1.0"
NEVER = 1e9
TWO_DAYS = 172_800.0


def deadline(seconds: float) -> str:
    return f"deadline_min_s = {seconds}\ndeadline_max_s = {seconds}\nevaluation_deadline_s = {seconds}"


def asked(fleet: Any, gateway: str) -> dict[int, list[str]]:
    return {line.round: line.detail["asked"] for line in fleet.ledger(gateway, "selected")}


def test_1_a_killed_agent_comes_back_with_its_history(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=4, more=EVERYONE))
    assert fleet.run_to_round(3)
    history = fleet.gateway("gw1").posteriors["d1"]
    assert history.a + history.b > 2
    fleet.world.crash("d1")
    fleet.go_on(0.001)
    assert fleet.gateway("gw1").posteriors["d1"] == history
    assert fleet.run()
    assert fleet.device("d1").session == 2
    assert [line.round for line in fleet.ledger("gw1", "accepted") if line.subject == "d1"] == [1, 2, 3, 4]


def test_2_the_deadline_alone_closes_a_round_with_one_update_less(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=3, deadlines=deadline(1000), more=EVERYONE))
    assert fleet.world.run(lambda: fleet.device("d1").phase == "working")
    fleet.world.crash("d1", restart_s=NEVER)
    assert fleet.run_to_round(2)
    assert fleet.world.now == pytest.approx(0.9 * 1000, abs=1), "the gateway's share of the deadline"
    assert fleet.subjects("gw1", "silent") == ["d1"]
    assert fleet.subjects("gw1", "accepted", 1) == ["d2"]
    assert sorted(fleet.subjects("cloud", "reported", 1)) == ["gw1", "gw2"]
    assert fleet.run()


def test_2_a_device_that_is_gone_does_not_draw_out_the_rounds_of_the_others(
    build: Build, settings: Build
) -> None:
    fleet = build(settings(rounds=6, deadlines="deadline_min_s = 60\ndeadline_max_s = 3600", more=EVERYONE))
    assert fleet.world.run(lambda: fleet.device("d1").phase == "working")
    fleet.world.crash("d1", restart_s=NEVER)
    assert fleet.run()
    limits = [line.detail["deadline"] for line in fleet.ledger("cloud", "round")]
    assert limits == [600, 60, 60, 60, 60, 60]


def test_3_training_takes_fifteen_minutes_and_the_link_stays_up(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=1, deadlines=deadline(3600), more=EVERYONE), without=("d1",))
    fleet.add_device("gw1", "d1", seconds=900.0)
    said, publish = Counter[str](), fleet.world.broker.publish

    def count(topic: str, payload: bytes, retain: bool) -> None:
        said[topic] += 1
        publish(topic, payload, retain)

    fleet.world.broker.publish = count
    assert fleet.run()
    assert fleet.subjects("gw1", "accepted", 1) == ["d2", "d1"]
    assert fleet.world.now > 900
    assert said["fedbac/v1/t/edge/gw1/device/d1/status"] >= 15, "it says every minute that it is there"


def test_4_a_killed_cloud_resumes_with_identical_posteriors(build: Build, settings: Build) -> None:
    federation = settings(rounds=4, more=EVERYONE + "\n[assignment]\nevery = 2")
    whole, killed = build(federation), build(federation)
    assert whole.run()
    for round in (2, 3):
        assert killed.run_to_round(round)
        killed.world.crash("cloud")
    assert killed.run()
    assert killed.cloud.clustering == whole.cloud.clustering
    assert killed.cloud.session == 3
    for gateway in federation.gateways:
        assert killed.gateway(gateway).posteriors == whole.gateway(gateway).posteriors
        assert asked(killed, gateway) == asked(whole, gateway)


def spoil_when(round: int, change: Callable[[Trained], Event]) -> Callable[[Trained], Event]:
    return lambda trained: change(trained) if trained.job == f"train-{round}" else trained


def test_6_a_round_of_zero_samples_is_void_and_the_model_stays(build: Build, settings: Build) -> None:
    devices = {"d1": "gw1", "d2": "gw1", "d3": "gw2", "d4": "gw2"}
    fleet = build(settings(rounds=3, deadlines=deadline(600), more=EVERYONE), without=tuple(devices))
    for name, gateway in devices.items():
        fleet.add_device(
            gateway, name, spoil=spoil_when(2, lambda trained: dataclasses.replace(trained, samples=0))
        )
    assert fleet.run_to_round(2)
    before = fleet.hashes()
    assert fleet.run_to_round(2, "gathering"), "a void round is followed by a pause"
    assert fleet.hashes() == before
    assert sorted(fleet.subjects("gw1", "refused", 2)) == ["d1", "d2"]
    assert [line.detail["void"] for line in fleet.ledger("cloud", "aggregated")] == [False, True]
    assert fleet.run()
    assert fleet.hashes() != before


def nan_part(trained: Trained) -> Event:
    data = bytearray(trained.parts["global"])
    data[-4:] = np.float32("nan").tobytes()
    return dataclasses.replace(trained, parts={**trained.parts, "global": bytes(data)})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (nan_part, "not finite"),
        (lambda t: dataclasses.replace(t, loss=float("nan")), "loss of nan"),
        (lambda t: dataclasses.replace(t, holdout=Score(10, 1, float("nan"))), "score that cannot be"),
        (lambda t: dataclasses.replace(t, holdout=Score(10, 11, 1.0)), "score that cannot be"),
        (lambda t: dataclasses.replace(t, parts={"global": t.parts["global"]}), "expected the roles"),
        (lambda t: dataclasses.replace(t, parts=dict.fromkeys(t.parts, b"")), "bytes of weights"),
        (lambda t: dataclasses.replace(t, samples=101, data=100), "101 samples of 100"),
        (lambda t: dataclasses.replace(t, parts=dict.fromkeys(t.parts, pack({}))), "bytes of weights"),
    ],
)
def test_7_a_bad_update_is_refused_with_a_receipt_and_the_round_goes_on(
    build: Build, settings: Build, change: Callable[[Trained], Event], why: str
) -> None:
    fleet = build(settings(rounds=2, more=EVERYONE), without=("d1",))
    fleet.add_device("gw1", "d1", spoil=spoil_when(1, change))
    assert fleet.run()
    refusal = fleet.ledger("gw1", "refused")
    assert [(line.subject, line.round) for line in refusal] == [("d1", 1)]
    assert why in refusal[0].detail["why"]
    receipts = [
        (r.round, r.detail["accepted"]) for r in fleet.ledger("d1", "receipt") if r.subject == "train"
    ]
    assert receipts == [(1, False), (2, True)]
    assert fleet.subjects("gw1", "accepted", 1) == ["d2"]
    assert fleet.world.now < 60, "nobody waited for a deadline"


def test_9_roles_start_in_any_order(build: Build, settings: Build) -> None:
    federation = settings(rounds=2, more=EVERYONE)
    whole = build(federation)
    assert whole.run()
    for order in itertools.permutations(("cloud", "gateways", "devices")):
        fleet = build(federation, without=("cloud", "gw1", "gw2", "d1", "d2", "d3", "d4"))
        for position, what in enumerate(order):
            at = 100.3 * position
            if what == "cloud":
                fleet.add_cloud(at)
            elif what == "gateways":
                fleet.add_gateway("gw1", at)
                fleet.add_gateway("gw2", at + 7.7)
            else:
                for i, (gateway, name) in enumerate(
                    (g, d) for g, ds in federation.gateways.items() for d in ds
                ):
                    fleet.add_device(gateway, name, at + 3.1 * i)
        assert fleet.run(), order
        assert fleet.hashes() == whole.hashes(), order


@pytest.mark.parametrize("seed", range(3))
def test_10_who_is_chosen_does_its_task_once_and_nobody_else_does_any(
    build: Build, settings: Build, seed: int
) -> None:
    gateways = {"gw1": tuple(f"d{i}" for i in range(8))}
    fleet = build(
        settings(rounds=3, gateways=gateways, more="[selection]\nparticipation = 0.5"),
        Faults(drop=0.05, duplicate=0.3, delay_s=2, cut=0.02),
        seed,
    )
    assert fleet.run()
    chosen = {(name, f"train-{round}") for round, names in asked(fleet, "gw1").items() for name in names}
    assert len(chosen) == 12
    assert {key: n for key, n in fleet.jobs.items() if key[1].startswith("train")} == dict.fromkeys(chosen, 1)


def test_11_a_stale_update_is_refused_and_not_fatal(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=6, deadlines=deadline(60), more=EVERYONE))
    assert fleet.world.run(lambda: fleet.device("d1").phase == "answered")
    fleet.world.crash("d1", restart_s=70.0)  # its update of round 1 leaves in a later round
    assert fleet.run()
    stale = fleet.ledger("gw1", "refused")
    assert [(line.subject, line.round) for line in stale] == [("d1", 1)]
    assert "round 1 is not open" in stale[0].detail["why"]
    assert "d1" in fleet.subjects("gw1", "accepted", 6)


def test_15_an_empty_client_is_never_chosen_and_never_averaged(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=3, more=EVERYONE), without=("d1",))
    fleet.add_device("gw1", "d1", samples=0, holdout=0)
    assert fleet.run()
    assert set(itertools.chain(*asked(fleet, "gw1").values())) == {"d2"}
    assert not [key for key in fleet.jobs if key[0] == "d1"]
    assert [line.detail["weight"] for line in fleet.ledger("cloud", "reported", 1)] == [100, 200]


def test_17_the_link_is_cut_three_times_in_a_round(build: Build, settings: Build) -> None:
    federation = settings(rounds=2, more=EVERYONE)
    whole, cut = build(federation), build(federation)
    assert whole.run()
    for at in (1.5, 3.0, 5.06):
        for name in ("cloud", "gw1", "d1", "d2"):
            cut.world.at(at, lambda name=name: cut.world.cut(name))
    assert cut.run()
    assert cut.hashes() == whole.hashes()
    for name, process in cut.world.processes.items():
        lines = Counter((line.kind, line.subject, line.round) for line in process.store.ledger())
        assert lines == Counter(
            (line.kind, line.subject, line.round) for line in whole.world.processes[name].store.ledger()
        ), name
        assert cut.filters[name] == set(process.node.subscriptions()), name


def test_18_more_in_flight_than_the_window(build: Build, settings: Build) -> None:
    federation = settings(rounds=2, more=EVERYONE)
    whole = build(federation)
    assert whole.run()
    fleet = build(federation, Faults(drop=0.01, delay_s=1.0), seed=4)
    fleet.world.maximum_packet = 4_000  # eleven chunks for a part, twenty-one for an update
    most = 0

    def finished() -> bool:
        nonlocal most
        outgoing = [p.node._outgoing for p in fleet.world.processes.values() if p.node is not None]
        most = max([most, *(len(each._in_flight) for each in outgoing)])
        return bool(fleet.phase() == "finished")

    assert fleet.world.run(finished)
    assert most == WINDOW
    assert fleet.hashes() == whole.hashes()


def test_21_a_broker_that_lost_everything_gets_the_retained_topics_back(
    build: Build, settings: Build
) -> None:
    fleet = build(settings(rounds=3, more=EVERYONE))
    assert fleet.run_to_round(2)
    assert fleet.world.run(lambda: fleet.device("d1").phase == "working")
    before = dict(fleet.world.broker.retained)
    fleet.world.lose_broker_memory()
    assert not fleet.world.broker.retained
    fleet.go_on(3.0)
    after = fleet.world.broker.retained
    assert set(after) == set(before)
    assert all(after[topic] == before[topic] for topic in before if "status" not in topic)


def test_24_a_namesake_takes_the_session_over_and_nothing_counts_twice(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=2, more=EVERYONE))
    assert fleet.run_to_round(1)
    fleet.go_on(1.0)
    # A second client with d1's name: the broker drops the first one's deliveries, its will is not published.
    will = Will("fedbac/v1/t/edge/gw1/device/d1/status", b"")
    assert fleet.world.broker.connect("d1", will, lambda delivery: None)
    fleet.go_on(5.0)
    fleet.world.cut("d1")  # the first one comes back and takes over in turn
    assert fleet.run()
    accepted = Counter((line.subject, line.round) for line in fleet.ledger("gw1", "accepted"))
    assert accepted == Counter({("d1", 1): 1, ("d1", 2): 1, ("d2", 1): 1, ("d2", 2): 1})


def test_26_a_clock_that_jumps_by_two_days_moves_no_deadline(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=1, deadlines=deadline(5000), more=EVERYONE))
    assert fleet.world.run(lambda: fleet.device("d1").phase == "working")
    fleet.world.crash("d1", restart_s=NEVER)
    fleet.wall += TWO_DAYS
    fleet.go_on(100)
    assert fleet.gateway("gw1").phase == "training"
    for name in ("gw1", "cloud"):  # once more while nobody is there to see it
        fleet.world.crash(name, restart_s=10.0)
        fleet.wall += TWO_DAYS
    fleet.go_on(100)
    fleet.world.crash("gw1", restart_s=10.0)
    fleet.wall -= 2 * TWO_DAYS
    assert fleet.world.run(lambda: fleet.gateway("gw1").phase == "reported")
    assert 0.9 * 5000 - AWAY_MOST_S - 1 < fleet.world.now < 0.9 * 5000 + AWAY_MOST_S + 1
    assert fleet.run()
