"""Devices without labels among others: each kind of sample has its own parts, averages and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from fedbac_edge.lab.fleet.faults import NONE, Faults
from fedbac_edge.methods import method
from fedbac_edge.parts.part import Part, unpack
from fedbac_edge.protocol.cloud.generations import of_view
from fedbac_edge.protocol.gateway import gate
from fedbac_edge.settings.federation import Federation

Build = Callable[..., Any]
BAD_DAY = Faults(drop=0.02, duplicate=0.1, delay_s=3, cut=0.01, crash=0.05, restart_s=3)
HASSLE = '[method]\nname = "hassle"\ncloud_weight = "participants"\n[selection]\nparticipation = 1.0'
DEVICES = {"d1": (40, 0), "d2": (30, 70), "d3": (0, 100), "d4": (0, 50)}
"""Labelled and unlabelled samples: nobody at gw2 has a label."""
DUALS, RESIDUALS = ("supervised", "unsupervised"), ("residual-s", "residual-u")


def fleet_of(build: Build, federation: Federation, faults: Faults = NONE, seed: int = 0) -> Any:
    fleet = build(federation, faults, seed, without=tuple(DEVICES))
    for gateway, devices in federation.gateways.items():
        for device in devices:
            labelled, unlabelled = DEVICES[device]
            holdout = 10 if labelled else 0
            fleet.add_device(
                gateway, device, samples=labelled + unlabelled, unlabelled=unlabelled, holdout=holdout
            )
    return fleet


@pytest.fixture(scope="module")
def federation(settings: Build) -> Federation:
    found: Federation = settings(rounds=3, more=HASSLE, head="seed = 3")
    return found


@pytest.fixture(scope="module")
def undisturbed(build: Build, federation: Federation) -> Any:
    fleet = fleet_of(build, federation)
    assert fleet.run()
    return fleet


def parts_of(fleet: Any, refs: Mapping[str, Any]) -> dict[str, Part]:
    blobs, schemas = fleet.world.processes["cloud"].store.blobs, gate.schemas(fleet.federation)
    return {role: unpack(blobs[refs[role].hash], schemas[role]) for role in schemas}


def test_round_one_trains_residuals_only_and_the_duals_stay(build: Build, federation: Federation) -> None:
    fleet = fleet_of(build, federation)
    assert fleet.run_to_round(1)
    before = fleet.hashes()
    assert fleet.run_to_round(2)
    after = fleet.hashes()
    assert {role for role in before if before[role] != after[role]} == set(RESIDUALS)
    assert fleet.run_to_round(3)
    assert all(fleet.hashes()[role] != after[role] for role in before)


@pytest.fixture(scope="module")
def paper(settings: Build) -> Federation:
    found: Federation = settings(rounds=4, more=f'{HASSLE}\n[hassle]\npairing = "paper"', head="seed = 3")
    return found


@pytest.fixture(scope="module")
def undisturbed_paper(build: Build, paper: Federation) -> Any:
    fleet = fleet_of(build, paper)
    assert fleet.run()
    return fleet


def test_with_the_papers_pairing_rounds_take_turns_and_views_pair_what_was_trained_together(
    build: Build, paper: Federation
) -> None:
    """SM and UM after each round: the duals that the newest residuals learned beside, and these."""
    fleet, used = fleet_of(build, paper), method(paper)
    assert fleet.run_to_round(1)
    after = [fleet.hashes()]
    for ended, then in (
        (1, (2, "training")),
        (2, (3, "training")),
        (3, (4, "training")),
        (4, (4, "evaluating")),
    ):
        assert fleet.run_to_round(*then)
        newest, cloud = fleet.hashes(), fleet.cloud
        after.append(newest)
        changed = {role for role in newest if newest[role] != after[ended - 1][role]}
        assert changed == (set(RESIDUALS) if ended % 2 else set(DUALS))
        beside = after[(ended - 1) // 2 * 2]  # with these duals the newest residuals were trained
        for view in used.views:
            served = of_view(used, view, cloud.parts, cloud.previous, 0)
            for role, ref in served.items():
                assert ref.hash == (newest if role in RESIDUALS else beside)[role], (ended, view.name, role)
                assert ref.hash in fleet.world.processes["cloud"].store.blobs


def test_with_the_papers_pairing_a_void_round_serves_what_is_newest(build: Build, settings: Build) -> None:
    """Nobody answers in round 3: the duals of round 2 have no residuals of their own yet, and are served."""
    more = f'{HASSLE}\n[hassle]\npairing = "paper"'
    federation = settings(
        rounds=4,
        more=more,
        deadlines="deadline_min_s = 100\ndeadline_max_s = 100\ngather_s = 50\nevaluation_deadline_s = 100",
    )
    fleet = fleet_of(build, federation)
    assert fleet.run_to_round(3)
    newest = fleet.hashes()
    for name in DEVICES:
        fleet.world.crash(name, restart_s=1e6)
    assert fleet.world.run(lambda: fleet.cloud.void, limit_s=fleet.world.now + 1000)
    used, cloud = method(federation), fleet.cloud
    served = of_view(used, used.served_view, cloud.parts, cloud.previous, 0)
    assert {role: ref.hash for role, ref in served.items()} == newest


@pytest.mark.parametrize("seed", range(2))
def test_faults_do_not_change_a_bit_with_the_papers_pairing(
    build: Build, paper: Federation, undisturbed_paper: Any, seed: int
) -> None:
    fleet = fleet_of(build, paper, BAD_DAY, seed)
    assert fleet.run()
    assert fleet.hashes() == undisturbed_paper.hashes()


def test_every_device_counts_in_every_round_and_trains_its_kinds(undisturbed: Any) -> None:
    for round in (1, 2, 3):
        assert undisturbed.subjects("gw1", "accepted", round) in (["d1", "d2"], ["d2", "d1"])
        assert sorted(undisturbed.subjects("gw2", "accepted", round)) == ["d3", "d4"]
    assert undisturbed.ledger("gw2", "declined") == []
    assert undisturbed.gateway("gw2").norms.keys() == {"unsupervised", "residual-u"}
    assert undisturbed.gateway("gw1").norms.keys() == {*DUALS, *RESIDUALS}


def test_averages_weigh_each_role_by_its_own_kind(build: Build, federation: Federation) -> None:
    """Per coordinate the cloud's new part is the mean over devices by their counts of the role's kind."""
    seen: dict[str, tuple[int, int, dict[str, Part]]] = {}
    fleet = fleet_of(build, federation)
    assert fleet.run_to_round(2)
    base = parts_of(fleet, fleet.cloud.parts)

    def collect() -> bool:
        for gateway in federation.gateways:
            store, state = fleet.world.processes[gateway].store, fleet.gateway(gateway)
            for device, answer in state.answers.items():
                if (
                    state.task is not None
                    and state.task.round == 2
                    and set(answer.parts.values()) <= set(store.blobs)
                ):
                    schemas = gate.schemas(federation)
                    parts = {r: unpack(store.blobs[h], schemas[r]) for r, h in answer.parts.items()}
                    seen[device] = (answer.samples - answer.unlabelled, answer.unlabelled, parts)
        return (fleet.cloud.round, fleet.cloud.phase) == (3, "training")

    assert fleet.world.run(collect)
    assert {device: set(parts) for device, (_, _, parts) in seen.items()} == {
        "d1": {"supervised", "residual-s"},
        "d2": {*DUALS, *RESIDUALS},
        "d3": {"unsupervised", "residual-u"},
        "d4": {"unsupervised", "residual-u"},
    }
    fresh = parts_of(fleet, fleet.cloud.parts)
    for role in base:
        of_labels = role in ("supervised", "residual-s")
        holders = [
            (labelled if of_labels else unlabelled, parts[role])
            for labelled, unlabelled, parts in seen.values()
            if role in parts
        ]
        total = sum(weight for weight, _ in holders)
        for name in fresh[role]:
            mean = sum([weight * part[name].astype(np.float64) for weight, part in holders]) / total
            np.testing.assert_allclose(fresh[role][name], mean, rtol=1e-5, atol=1e-6)


def test_only_the_parts_that_its_data_need_travel_to_a_device(undisturbed: Any) -> None:
    """A device without unlabelled data never fetches the residual of the unlabelled."""
    fetched = {
        name: {ref.name for ref in undisturbed.device(name).served.values()}
        & {
            name_
            for name_, ref in undisturbed.cloud.previous.items()
            if ref.hash in undisturbed.world.processes[name].store.blobs
        }
        for name in DEVICES
    }
    assert "residual-u" not in fetched["d1"]
    machine = undisturbed.world.processes["d1"].node.machine
    assert set(machine.method.needed(3, 40, 0)) == {*DUALS, "residual-s"}


def test_the_served_model_mixes_generations(undisturbed: Any) -> None:
    cloud = undisturbed.cloud
    machine = undisturbed.world.processes["cloud"].node.machine
    served = of_view(machine.method, machine.method.served_view, cloud.parts, cloud.previous, 0)
    for role in DUALS:
        assert served[role] == cloud.previous[role] != cloud.parts[role]
    for role in RESIDUALS:
        assert served[role] == cloud.parts[role]
    assert {ref.hash for ref in served.values()} <= set(undisturbed.world.processes["cloud"].store.blobs)


@pytest.mark.parametrize("seed", range(4))
def test_faults_do_not_change_a_bit(
    build: Build, federation: Federation, undisturbed: Any, seed: int
) -> None:
    fleet = fleet_of(build, federation, BAD_DAY, seed)
    assert fleet.run()
    assert fleet.hashes() == undisturbed.hashes()


@pytest.mark.parametrize("seed", range(2))
def test_arrival_in_another_order(build: Build, federation: Federation, undisturbed: Any, seed: int) -> None:
    fleet = fleet_of(build, federation, Faults(delay_s=30.0), seed)
    assert fleet.run()
    assert fleet.hashes() == undisturbed.hashes()


def test_a_round_in_which_nobody_has_labels_keeps_the_labelled_parts(build: Build, settings: Build) -> None:
    federation = settings(rounds=2, more=HASSLE, gateways={"gw1": ("d3", "d4")})
    fleet = fleet_of(build, federation)
    assert fleet.run_to_round(1)
    before = fleet.hashes()
    assert fleet.run()
    kept = {role for role, hash in fleet.hashes().items() if hash == before[role]}
    assert kept == {"supervised", "residual-s"}
    assert fleet.ledger("cloud", "kept") == []
    (closed, *_) = fleet.ledger("gw1", "closed")
    assert closed.detail["void"] == ""


@pytest.mark.parametrize("encoding", ["float16", "int8"])
def test_encoded_updates_of_some_roles(build: Build, settings: Build, encoding: str) -> None:
    """One device a site and round: what a site reports changes from round to round."""
    more = f'{HASSLE.replace("1.0", "0.5")}\nmethod = "random"\n[wire]\nencoding = "{encoding}"'
    federation = settings(rounds=4, more=more, head="seed = 2")
    hashes = []
    for faults, seed in ((NONE, 0), (BAD_DAY, 1)):
        fleet = fleet_of(build, federation, faults, seed)
        assert fleet.run()
        hashes.append(fleet.hashes())
        assert fleet.ledger("cloud", "refused") == []
    assert hashes[0] == hashes[1]
    assert {line.subject for line in fleet.ledger("gw1", "accepted")} == {"d1", "d2"}


def test_a_robust_rule_keeps_the_kind_that_has_too_few_updates(build: Build, settings: Build) -> None:
    """median needs three updates: of labelled samples there are two, of unlabelled ones three."""
    federation = settings(
        rounds=2, more=f'{HASSLE}\n[robust]\nedge = "median"', gateways={"gw1": tuple(DEVICES)}
    )
    fleet = fleet_of(build, federation)
    assert fleet.run_to_round(1)
    before = fleet.hashes()
    assert fleet.run()
    changed = {role for role, hash in fleet.hashes().items() if hash != before[role]}
    assert changed == {"unsupervised", "residual-u"}
    kept = fleet.ledger("gw1", "kept", 2)
    assert {line.subject for line in kept} == {"supervised", "residual-s"}
    assert "median needs 3 updates" in kept[0].detail["why"]
