"""With a roster and patient deadlines nothing that link or machines do changes the result by a bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbac_edge.lab.fleet.faults import Faults
from fedbac_edge.settings.federation import Federation

Build = Callable[..., Any]
BAD_DAY = Faults(drop=0.02, duplicate=0.1, delay_s=3, cut=0.01, crash=0.05, restart_s=3)
METHOD = "[selection]\nwarm_up = 1\nparticipation = 0.5\n[assignment]\nevery = 2"
GATEWAYS = ("gw1", "gw2")
DEVICES = ("d1", "d2", "d3", "d4")
PROCESSES = ("cloud", *GATEWAYS, *DEVICES)


@pytest.fixture(scope="module")
def federation(settings: Build) -> Federation:
    """Both bandits at work: ranked selection from round 2 on, a sweep after round 2."""
    found: Federation = settings(rounds=3, more=METHOD, head="seed = 3")
    return found


@pytest.fixture(scope="module")
def undisturbed(build: Build, federation: Federation) -> tuple[dict[str, str], float]:
    """Final hashes, and how long the run takes in virtual seconds."""
    fleet = build(federation)
    assert fleet.run()
    assert len(set(fleet.hashes().values())) == 3
    assert fleet.ledger("cloud", "sweep")
    return fleet.hashes(), fleet.world.now


def assert_counted_once(fleet: Any) -> None:
    """Every device that was asked counts exactly once in its round, every site too, and all agree on it."""
    federation = fleet.federation
    sites = Counter((line.round, line.subject) for line in fleet.ledger("cloud", "reported"))
    assert sites == Counter((r, g) for r in range(1, federation.rounds + 1) for g in federation.gateways)
    for gateway in federation.gateways:
        asked = Counter(
            (line.round, name) for line in fleet.ledger(gateway, "selected") for name in line.detail["asked"]
        )
        counted = Counter((line.round, line.subject) for line in fleet.ledger(gateway, "accepted"))
        assert counted == asked
        assert max(counted.values()) == 1
        assert fleet.ledger(gateway, "refused") == []
    for device in (name for names in federation.gateways.values() for name in names):
        assert all(line.detail["accepted"] for line in fleet.ledger(device, "receipt"))


@pytest.mark.parametrize("seed", range(12))
def test_loss_doubles_delays_cuts_and_crashes(
    build: Build, federation: Federation, undisturbed: tuple[dict[str, str], float], seed: int
) -> None:
    fleet = build(federation, BAD_DAY, seed)
    assert fleet.run()
    assert fleet.hashes() == undisturbed[0]
    assert_counted_once(fleet)


@pytest.mark.parametrize("seed", range(3))
def test_arrival_in_another_order(
    build: Build, federation: Federation, undisturbed: tuple[dict[str, str], float], seed: int
) -> None:
    fleet = build(federation, Faults(delay_s=30.0), seed)
    assert fleet.run()
    assert fleet.hashes() == undisturbed[0]
    assert_counted_once(fleet)


def _some_device(fleet: Any, phase: str) -> bool:
    return any(fleet.is_up(name) and fleet.device(name).phase == phase for name in DEVICES)


def _some_gateway(fleet: Any, phase: str) -> bool:
    return any(fleet.is_up(name) and fleet.gateway(name).phase == phase for name in GATEWAYS)


MOMENTS: dict[str, Callable[[Any], bool]] = {
    "gathering": lambda f: f.phase() == "gathering" and f.world.now > 0.005,
    "fetching at a gateway": lambda f: _some_gateway(f, "fetching"),
    "training": lambda f: f.cloud.round == 2 and _some_gateway(f, "training"),
    "fetching at a device": lambda f: _some_device(f, "fetching"),
    "working": lambda f: _some_device(f, "working"),
    "answered": lambda f: _some_device(f, "answered"),
    "half of the updates": lambda f: f.cloud.round == 2 and len(f.cloud.reports) == 1,
    "reported": lambda f: _some_gateway(f, "reported"),
    "evaluating at a gateway": lambda f: _some_gateway(f, "evaluating"),
    "after the sweep": lambda f: f.cloud.round == 3 and f.phase() == "training",
    "the last evaluation": lambda f: f.phase() == "evaluating" and f.cloud.round == 3,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_crash_of_any_role_in_any_phase(
    build: Build, federation: Federation, undisturbed: tuple[dict[str, str], float], moment: str
) -> None:
    for victims in (("cloud",), (*GATEWAYS, *DEVICES), PROCESSES):
        fleet = build(federation)
        assert fleet.world.run(lambda fleet=fleet: MOMENTS[moment](fleet)), moment
        for name in victims:
            fleet.world.crash(name, restart_s=2.0)
        assert fleet.run(), (moment, victims)
        assert fleet.hashes() == undisturbed[0], (moment, victims)
        assert_counted_once(fleet)


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_broker_loses_its_memory(
    build: Build, federation: Federation, undisturbed: tuple[dict[str, str], float], moment: str
) -> None:
    fleet = build(federation)
    fleet.world.maximum_packet = 6_000  # a part travels in seven chunks
    assert fleet.world.run(lambda: MOMENTS[moment](fleet)), moment
    fleet.world.lose_broker_memory()
    assert fleet.run(), moment
    assert fleet.hashes() == undisturbed[0]
    assert_counted_once(fleet)


def test_the_broker_loses_its_memory_while_a_part_is_half_published(
    build: Build, federation: Federation, undisturbed: tuple[dict[str, str], float]
) -> None:
    for chunk in (1, 5, 6, 8, 13):
        fleet = build(federation)
        fleet.world.maximum_packet = 6_000
        retained = fleet.world.broker.retained
        assert fleet.run_to_round(1)

        def chunks_of_round_two(fleet: Any = fleet, retained: dict[str, bytes] = retained) -> int:
            fresh = {ref.hash for name, ref in fleet.cloud.parts.items() if fleet.cloud.round == 2}
            return sum("/blob/" in topic and topic.split("/")[-2] in fresh for topic in retained)

        assert fleet.world.run(lambda chunk=chunk: chunks_of_round_two() >= chunk)
        fleet.world.lose_broker_memory()
        assert fleet.run(1e5), chunk
        assert fleet.hashes() == undisturbed[0]


Plan = list[tuple[float, str, str]]
PLANS: st.SearchStrategy[Plan] = st.lists(
    st.tuples(
        st.floats(0, 1.2, allow_nan=False),
        st.sampled_from(("crash", "cut", "forget", "limit", "clock")),
        st.sampled_from(PROCESSES),
    ),
    max_size=8,
)


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=PLANS, seed=st.integers(0, 1000), packet=st.sampled_from((None, 6_000, 20_000)))
def test_any_plan_of_faults(
    build: Build,
    federation: Federation,
    undisturbed: tuple[dict[str, str], float],
    plan: Plan,
    seed: int,
    packet: int | None,
) -> None:
    """Crashes, cuts, an empty broker, other packet limits and clock jumps, over a link that reorders."""
    hashes, length = undisturbed
    fleet = build(federation, Faults(drop=0.01, duplicate=0.05, delay_s=0.5), seed)
    fleet.world.maximum_packet = packet

    def jump() -> None:
        fleet.wall += 172_800.0

    def limit() -> None:
        fleet.world.maximum_packet = 9_000 if fleet.world.maximum_packet != 9_000 else None
        fleet.world.lose_broker_memory()

    for share, what, name in plan:
        acts = {
            "crash": lambda name=name: fleet.world.crash(name, restart_s=1.0),
            "cut": lambda name=name: fleet.world.cut(name),
            "forget": fleet.world.lose_broker_memory,
            "limit": limit,
            "clock": jump,
        }
        fleet.world.at(share * length, acts[what])
    assert fleet.run()
    assert fleet.hashes() == hashes
    assert_counted_once(fleet)
