"""The assignment "merge" inside whole runs: what the ledger says is what the rule gives, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedbac_edge.lab.fleet.faults import Faults
from fedbac_edge.methods import merging
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import Score

Build = Callable[..., Any]
ROSTERS = {f"gw{m}": (f"d{m}",) for m in range(1, 5)}
# The trainers of this world score at random: with a tolerance like this some of them look alike.
EVIDENCE = '[assignment]\nmethod = "merge"\nevery = 1\ntolerance = 4.0\nconfidence = 3.0'
LOOSE = merging.Thresholds(3.0, 4.0)


@pytest.fixture(scope="module")
def federation(settings: Build) -> Federation:
    found: Federation = settings(rounds=5, gateways=ROSTERS, head="seed = 4", more=EVIDENCE)
    return found


@pytest.fixture(scope="module")
def undisturbed(build: Build, federation: Federation) -> Any:
    fleet = build(federation)
    assert fleet.run()
    return fleet


def test_every_sweep_can_be_repeated_from_the_ledger(undisturbed: Any) -> None:
    served = {line.round: line.detail["assignment"] for line in undisturbed.ledger("cloud", "round")}
    assert served[1] == {name: k for k, name in enumerate(ROSTERS)}
    for round in range(1, 5):
        lines = undisturbed.ledger("cloud", "sweep", round)
        scores = {
            line.subject: {
                k: Score(10, right, 10 * loss)
                for k, (right, loss) in enumerate(
                    zip(line.detail["right"], line.detail["losses"], strict=True)
                )
            }
            for line in lines
        }
        assert served[round + 1] == merging.regroup(served[round], scores, 4, LOOSE)
    assert any(len(set(places.values())) < 4 for places in served.values()), "this seed merges"


def test_losses_delays_and_crashes_change_nothing(
    build: Build, federation: Federation, undisturbed: Any
) -> None:
    for seed in range(3):
        faults = Faults(drop=0.02, duplicate=0.1, delay_s=3, cut=0.01, crash=0.05, restart_s=3)
        fleet = build(federation, faults, seed)
        assert fleet.run()
        assert fleet.hashes() == undisturbed.hashes()
        assert fleet.cloud.assignment == undisturbed.cloud.assignment


def test_a_site_that_does_not_answer_goes_with_its_cluster(build: Build, settings: Build) -> None:
    limits = "deadline_min_s = 100\ndeadline_max_s = 100\nevaluation_deadline_s = 100"
    fleet = build(settings(rounds=3, gateways=ROSTERS, head="seed = 4", deadlines=limits, more=EVIDENCE))
    assert fleet.run_to_round(1, "evaluating")
    before = fleet.cloud.assignment
    fleet.world.crash("gw2", restart_s=150.0)
    assert fleet.run_to_round(2)
    (silent,) = (line for line in fleet.ledger("cloud", "sweep", 1) if line.subject == "gw2")
    assert silent.detail["right"] == silent.detail["losses"] == []
    assert fleet.cloud.assignment["gw2"] == before["gw2"], "alone in its cluster, it stays there"
    assert fleet.run()
