"""Rules at work in whole rounds: what one hostile device of five can do, and rounds that protect nobody."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from fedbac_edge.lab.fleet.faults import Faults
from fedbac_edge.methods import method
from fedbac_edge.models.catalog import architecture
from fedbac_edge.parts.part import distance, pack, unpack
from fedbac_edge.protocol.events import Event, JobFailed, Trained

Build = Callable[..., Any]
ROSTER = {"gw1": ("a1", "a2", "a3", "a4", "a5"), "gw2": ("b1", "b2", "b3", "b4", "b5")}
RULES = ("clip", "trimmed-mean", "median", "multi-krum")


def federation(settings: Build, edge: str, rounds: int = 2, **more: str) -> Any:
    lines = f'[selection]\nparticipation = 1.0\n[method]\nname = "hierfavg"\n[robust]\nedge = "{edge}"\n'
    lines += "\n".join(f'{name} = "{value}"' for name, value in more.items() if name != "wire")
    if "wire" in more:
        lines += f'\n[wire]\nencoding = "{more["wire"]}"'
    return settings(rounds=rounds, gateways=ROSTER, more=lines, head="seed = 2")


def moved(fleet: Any) -> float:
    """How far the model has gone since the start, root mean square over its numbers."""
    model = fleet.federation.model
    described = architecture(model.architecture, model.input, len(model.classes))
    start = method(fleet.federation).initial(described, fleet.federation.seed)["global"]
    blobs = fleet.world.processes["cloud"].store.blobs
    end = unpack(blobs[fleet.hashes()["global"]], described.schema())
    count = sum(tensor.size for tensor in end.values())
    return distance(end, start) / math.sqrt(count)


def a_million_away(trained: Trained) -> Trained:
    far = {name: tensor + np.float32(1e6) for name, tensor in load(trained.parts["global"]).items()}
    return Trained(**{**vars(trained), "parts": {"global": pack(far)}})


@pytest.mark.parametrize("wire", ["float32", "int8"])
@pytest.mark.parametrize("edge", ["mean", *RULES])
def test_one_hostile_device_of_five(build: Build, settings: Build, edge: str, wire: str) -> None:
    """Honest steps have a size of 0.01 in each number; the mean goes away with the hostile one."""
    fleet = build(federation(settings, edge, wire=wire), without=("a1", "b4"))
    fleet.add_device("gw1", "a1", spoil=a_million_away)
    fleet.add_device("gw2", "b4", spoil=a_million_away)
    assert fleet.run()
    assert fleet.subjects("gw1", "accepted") == ["a1", "a2", "a3", "a4", "a5"] * 2  # the gate let it pass
    assert moved(fleet) > 1e4 if edge == "mean" else moved(fleet) < 0.05


@pytest.mark.parametrize("edge", RULES)
def test_the_same_hashes_through_faults(build: Build, settings: Build, edge: str) -> None:
    described = federation(settings, edge)
    calm = build(described)
    assert calm.run()
    stormy = build(described, Faults(drop=0.03, duplicate=0.1, delay_s=5, crash=0.05, restart_s=3), seed=4)
    assert stormy.run()
    assert stormy.hashes() == calm.hashes()


def test_a_round_that_its_answers_do_not_support_is_void_with_the_reason(
    build: Build, settings: Build
) -> None:
    """Four of five answer: a fifth of four is nobody to trim. The other site's round counts."""
    fleet = build(federation(settings, "trimmed-mean"), without=("a3",))

    def fail(trained: Trained) -> Event:
        return JobFailed(trained.job, "no power")

    fleet.add_device("gw1", "a3", spoil=fail)
    assert fleet.run()
    reason = "trimmed-mean with a hostile share of 0.2 leaves out none of 4 updates, it needs 5"
    assert [line.detail["void"] for line in fleet.ledger("gw1", "closed")] == [reason, reason]
    assert [line.detail["void"] for line in fleet.ledger("gw2", "closed")] == ["", ""]
    sites = fleet.ledger("cloud", "summary", 1)[0].detail["sites"]
    assert sites["gw1"]["void"] == reason
    assert moved(fleet) > 0.005


def test_at_the_cloud_too_few_sites_leave_the_part_as_it_is(build: Build, settings: Build) -> None:
    """Three sites support a median; when one is void the part stays, and the ledger says why."""
    roster = {"gw1": ("a1",), "gw2": ("b1",), "gw3": ("c1",)}
    more = '[method]\nname = "hierfavg"\n[robust]\ncloud = "median"'
    fleet = build(
        settings(rounds=2, gateways=roster, more=more, deadlines="deadline_min_s = 600"), without=("b1",)
    )

    def fail_once(trained: Trained) -> Event:
        return JobFailed(trained.job, "no power") if trained.job == "train-1" else trained

    fleet.add_device("gw2", "b1", spoil=fail_once)
    assert fleet.run()
    kept = fleet.ledger("cloud", "kept")
    assert [(line.subject, line.round) for line in kept] == [("global", 1)]
    assert kept[0].detail["why"] == "median needs 3 updates to have a majority, there are 2"
    assert moved(fleet) > 0.005


def test_with_an_evaluation_of_its_own_a_site_does_not_score_what_it_may_not_average(
    build: Build, settings: Build
) -> None:
    described = settings(
        rounds=2,
        evaluation="test",
        gateways=ROSTER,
        more='[selection]\nparticipation = 1.0\n[robust]\nedge = "multi-krum"',
    )
    fleet = build(described, without=("a3",))
    fleet.add_device("gw1", "a3", spoil=lambda trained: JobFailed(trained.job, "no power"))
    assert fleet.run()
    assert all(line.detail["void"].startswith("multi-krum") for line in fleet.ledger("gw1", "closed"))
    assert fleet.ledger("gw1", "job failed") == []
