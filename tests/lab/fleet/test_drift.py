"""Drift in mid-run: from one round on servers hold each other's data; same bits however it is run."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedbac_edge.lab.fleet import journal, run
from fedbac_edge.lab.fleet.drift import plan_at, round_of
from fedbac_edge.lab.fleet.grounds import Plan
from fedbac_edge.lab.pool import Pool
from fedbac_edge.lab.samples import Place
from fedbac_edge.lab.scenario import Cut, Scenario, ScenarioError, check, roster
from fedbac_edge.protocol.events import EvaluateJob
from fedbac_edge.settings.federation import Federation, MethodTable, ModelTable, SelectionTable, TrainingTable


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """IDX files of 16x16 images: class c has a bright square in corner c, on noise."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(3)
    for name, count in (("train", 360), ("t10k", 240)):
        labels = rng.integers(0, 4, count).astype(np.uint8)
        images = rng.integers(0, 120, (count, 16, 16)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            top, left = 8 * (label // 2), 8 * (label % 2)
            image[top : top + 8, left : left + 8] += 90
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (folder / f"{name}-{kind}-ubyte").write_bytes(header + array.tobytes())
    return folder


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as pool:
        yield pool


def scenario(**cut: object) -> Scenario:
    federation = Federation(
        name="drifting",
        seed=5,
        rounds=4,
        eligibility="roster",
        model=ModelTable(classes=("a", "b", "c", "d"), input=(1, 16, 16)),
        method=MethodTable(places={"gw01": 1, "gw02": 1}, clusters=3),
        training=TrainingTable(epochs=1, batch_size=16, learning_rate=0.05),
        selection=SelectionTable(method="random", participation=1.0),
        gateways=roster(4, 2),
    )
    federation = msgspec.structs.replace(
        federation, assignment=msgspec.structs.replace(federation.assignment, method="fixed")
    )
    planted = Cut(data="corners", form="planted", groups=2, allow_tiny=True)
    return Scenario(federation=federation, cut=msgspec.structs.replace(planted, **cut))


def test_the_first_servers_exchange_places_from_that_round_on() -> None:
    described = scenario(drift_round=3, drift_servers=3)
    names = sorted(described.federation.gateways)
    devices = [device for name in names for device in described.federation.gateways[name]]
    plan = Plan(
        train={device: Place("train", i, i + 1) for i, device in enumerate(devices)},
        holdout={device: Place("train", 50 + i, 51 + i) for i, device in enumerate(devices)},
        held={name: Place("train", 50 + 2 * m, 52 + 2 * m) for m, name in enumerate(names)},
        test={name: Place("test", m, m + 1) for m, name in enumerate(names)},
    )
    assert plan_at(plan, described.federation, described.cut, 2) == plan
    later = plan_at(plan, described.federation, described.cut, 3)
    assert later == plan_at(plan, described.federation, described.cut, 9)
    assert [place.start for place in later.test.values()] == [1, 2, 0, 3]
    assert [place.start for place in later.train.values()] == [2, 3, 4, 5, 0, 1, 6, 7]
    assert [place.start for place in later.holdout.values()] == [52, 53, 54, 55, 50, 51, 56, 57]
    assert [place.start for place in later.held.values()] == [52, 54, 50, 56]
    assert round_of(EvaluateJob("scoring-12", {})) == 12


def test_more_drifting_servers_than_there_are_is_refused() -> None:
    with pytest.raises(ScenarioError, match="4 servers"):
        check(scenario(drift_round=2, drift_servers=5))


def test_any_number_of_workers_gives_the_same_bits_and_the_test_sets_move(
    data: Path, pool: Pool, tmp_path: Path
) -> None:
    drifting = scenario(drift_round=3)
    both = run.simulate(drifting, tmp_path / "two", data, pool)
    with Pool(1) as one:
        assert run.simulate(drifting, tmp_path / "one", data, one) == both
    still = run.simulate(scenario(), tmp_path / "still", data, pool)
    assert still.hash != both.hash
    rows, undisturbed = (
        [row for row in journal.read(tmp_path / folder / "metrics.jsonl") if row.phase == "train"]
        for folder in ("two", "still")
    )
    sizes = [[server.test for server in row.servers.values()] for row in rows]
    assert sizes[:2] == [sizes[0]] * 2
    assert sizes[2:] == [[*sizes[0][1:], sizes[0][0]]] * 2
    assert [row.accuracy for row in rows[:2]] == [row.accuracy for row in undisturbed[:2]]
    assert [server.cluster for server in rows[-1].servers.values()] == [1, 1, 2, 0]  # where they were put


def test_a_run_stopped_on_either_side_of_the_drift_goes_on_to_the_same_end(
    data: Path, pool: Pool, tmp_path: Path
) -> None:
    whole = run.simulate(scenario(drift_round=3), tmp_path / "whole", data, pool)

    class Stopped(Exception):
        pass

    for at in (1, 2, 3):

        def stop(row: journal.Row, at: int = at) -> None:
            if row.round == at:
                raise Stopped

        folder = tmp_path / str(at)
        with pytest.raises(Stopped):
            run.simulate(scenario(drift_round=3), folder, data, pool, tell=stop)
        assert run.simulate(scenario(drift_round=3), folder, data, pool, resume=True) == whole
