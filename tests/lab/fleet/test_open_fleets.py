"""eligibility = "online": whoever is there takes part; devices and sites come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedbac_edge.lab.fleet.faults import Faults
from fedbac_edge.node import assemble
from fedbac_edge.protocol.events import JobFailed

Build = Callable[..., Any]
LIMITS = "deadline_min_s = 100\ndeadline_max_s = 100\nevaluation_deadline_s = 100\ngather_s = 200"
NEVER = 1e9


def open_fleet(settings: Build, **how: Any) -> Any:
    how = {"deadlines": LIMITS, "eligibility": "online", "gateways": {}, "rounds": 6, **how}
    return settings(more="[selection]\nparticipation = 1.0\n[method]\nclusters = 2", **how)


def test_devices_come_and_go(build: Build, settings: Build) -> None:
    fleet = build(open_fleet(settings))
    fleet.add_gateway("gw1")
    fleet.add_device("gw1", "d1")
    assert fleet.run_to_round(2)
    fleet.add_device("gw1", "d2", at=fleet.world.now)
    assert fleet.run_to_round(4)
    fleet.world.crash("d1", restart_s=NEVER)
    assert fleet.run()
    asked = [line.detail["asked"] for line in fleet.ledger("gw1", "selected")]
    assert asked[0] == ["d1"]
    assert ["d1", "d2"] in asked
    assert asked[-1] == ["d2"]


def test_a_site_joins_in_the_middle_at_the_progress_of_now(build: Build, settings: Build) -> None:
    fleet = build(open_fleet(settings))
    fleet.add_gateway("gw1")
    fleet.add_device("gw1", "d1")
    assert fleet.run_to_round(3)
    fleet.add_gateway("gw2", at=fleet.world.now)
    fleet.add_device("gw2", "d2", at=fleet.world.now + 0.5)
    assert fleet.run()
    rounds = {line.round: line.detail["asked"] for line in fleet.ledger("cloud", "round")}
    assert rounds[3] == ["gw1"]
    assert rounds[6] == ["gw1", "gw2"]
    joined = next(line for line in fleet.ledger("cloud", "assigned") if line.subject == "gw2")
    window = fleet.cloud.clustering.windows["gw2"]
    assert window.context[3] == (joined.round - 1) / 6 > 0
    assert window.cluster == 1


def test_nobody_is_there_and_the_cloud_waits_without_spinning(build: Build, settings: Build) -> None:
    fleet = build(open_fleet(settings))
    fleet.add_gateway("gw1")
    fleet.add_device("gw1", "d1")
    assert fleet.run_to_round(3)
    fleet.world.crash("d1", restart_s=20_000.0)
    fleet.world.crash("gw1", restart_s=20_000.0)
    before = len(fleet.world.processes["cloud"].store.ledger())
    fleet.go_on(19_000)
    assert fleet.phase() == "gathering"
    assert fleet.cloud.round <= 4, "rounds are not burnt while nobody is there"
    assert len(fleet.world.processes["cloud"].store.ledger()) - before < 120
    assert fleet.run()
    assert fleet.ledger("cloud", "finished")


def test_a_listed_site_that_never_comes_holds_nobody_up(build: Build, settings: Build) -> None:
    fleet = build(open_fleet(settings, gateways={"gw1": ("d1",), "gw2": ("d2",)}), without=("gw2", "d2"))
    assert fleet.run(5_000)
    missing = fleet.ledger("cloud", "missing")
    assert missing[0].detail == {"gateways": ["gw2"]}


def test_a_cloud_without_its_broker_does_not_burn_its_rounds(build: Build, settings: Build) -> None:
    fleet = build(
        open_fleet(settings, rounds=8, deadlines="deadline_min_s = 10\ndeadline_max_s = 10"), seed=2
    )
    fleet.add_gateway("gw1")
    fleet.add_device("gw1", "d1")
    assert fleet.run_to_round(3)
    fleet.world.faults = Faults(reconnect_s=1_000)
    fleet.world.cut("cloud")
    fleet.go_on(200)
    assert not fleet.world.processes["cloud"].connected
    assert fleet.cloud.round == 3
    assert fleet.phase() == "gathering"
    assert len(fleet.world.processes["cloud"].store.outbox()) < 60
    assert fleet.run()


def test_workers_that_all_fail_do_not_burn_the_rounds(build: Build, settings: Build) -> None:
    fleet = build(open_fleet(settings, rounds=50))
    fleet.add_gateway("gw1")
    fleet.add_device("gw1", "d1", spoil=lambda trained: JobFailed(trained.job, "no memory"))
    fleet.run(1_000)
    assert 3 <= fleet.cloud.round <= 11
    why = [line.detail["why"] for line in fleet.ledger("gw1", "declined")]
    assert set(why) == {"no memory"}


def test_a_federation_that_starts_anew_resets_devices_and_gateways(build: Build, settings: Build) -> None:
    federation = settings(rounds=3)
    fleet, fresh = build(federation), build(federation)
    assert fresh.run()
    assert fleet.run_to_round(2)
    assert fleet.world.run(lambda: fleet.gateway("gw1").phase == "reported")
    cloud = fleet.world.processes["cloud"]
    fleet.world.crash("cloud", restart_s=30.0)
    cloud.store = type(cloud.store)(None)
    cloud.make = lambda store: assemble.cloud(federation, "feedf00d", store, fleet.clock)
    assert fleet.world.run(lambda: fleet.phase() == "training" and fleet.cloud.instance == "feedf00d")
    assert fleet.run()
    assert fleet.hashes() == fresh.hashes(), "nothing of the old federation counts in the new one"
    for gateway in federation.gateways:
        assert fleet.gateway(gateway).spec.instance == "feedf00d"
        assert fleet.gateway(gateway).posteriors == fresh.gateway(gateway).posteriors
    for device in ("d1", "d2", "d3", "d4"):
        assert fleet.device(device).instance == "feedf00d"


def test_a_device_with_a_new_disk_is_heard_under_its_old_name(build: Build, settings: Build) -> None:
    fleet = build(open_fleet(settings, rounds=6))
    fleet.add_gateway("gw1")
    fleet.add_device("gw1", "d1")
    for _ in range(5):
        fleet.go_on(1.0)
        fleet.world.crash("d1", restart_s=0.1)
    assert fleet.run_to_round(2)
    assert fleet.gateway("gw1").members["d1"].session > 3
    for name in ("d1", "gw1"):
        process = fleet.world.processes[name]
        fleet.world.crash(name, restart_s=1.0)
        process.store = type(process.store)(None)
    fleet.go_on(5.0)
    assert fleet.gateway("gw1").members["d1"].session == 1
    assert fleet.run(5_000)


def test_min_updates_makes_a_round_void(build: Build, settings: Build) -> None:
    fleet = build(
        settings(
            rounds=2,
            deadlines="deadline_min_s = 100\ndeadline_max_s = 100\nmin_updates = 2",
            more="[selection]\nparticipation = 1.0",
        )
    )
    assert fleet.run_to_round(1)
    fleet.world.crash("d1", restart_s=NEVER)
    assert fleet.run()
    voids = {line.subject: line.detail["void"] for line in fleet.ledger("cloud", "reported", 1)}
    assert voids == {"gw1": "1 updates of 2 asked, 2 needed", "gw2": ""}
    summary = next(line for line in fleet.ledger("cloud", "summary", 1))
    assert summary.detail["sites"]["gw1"]["samples"] == 0
