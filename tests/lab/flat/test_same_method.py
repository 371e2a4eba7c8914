"""HASSLE in the flat laboratory and on the fleet's machines: the same clients come to the same parts.

Both begin with the same parts and know the same samples; everybody takes part, at one gateway. A batch is all
that a client has of a kind, so that shuffles, each from a seed of its own, change the order of sums alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedbac_edge.datasets.annotation import Annotation
from fedbac_edge.datasets.sources import load
from fedbac_edge.lab.flat.hall import Hall, lay_out
from fedbac_edge.lab.flat.hassle import BEFORE, DUALS, RESIDUALS
from fedbac_edge.lab.flat.jobs import Workers
from fedbac_edge.lab.flat.method import State
from fedbac_edge.lab.flat.rows import Row
from fedbac_edge.lab.flat.server import one_round
from fedbac_edge.lab.flat.study import Study, Training
from fedbac_edge.lab.fleet import journal, run
from fedbac_edge.lab.pool import Pool
from fedbac_edge.lab.scenario import Cut, Scenario, check, roster
from fedbac_edge.methods import method
from fedbac_edge.parts.part import Part
from fedbac_edge.settings.federation import (
    Federation,
    HassleTable,
    MethodTable,
    SelectionTable,
    TrainingTable,
)
from fedbac_edge.settings.pictures import MODELS

Pairing = Literal["download", "paper"]
CLIENTS, SETTING = 6, "2/2/2"
ROUNDS: dict[Pairing, tuple[int, tuple[int, ...]]] = {"download": (3, (0, 1, 2)), "paper": (4, (1, 2))}
"""Pairing -> rounds of the federation, and those of the flat laboratory that do the same."""
HASSLE: dict[str, Any] = {
    "gamma": 0.01,
    "tau_s": 1.5,
    "tau_u": 1.2,
    "residual_steps": 20,
    "residual_weight_decay": 0.001,
}
TRAINING: dict[str, Any] = {
    "epochs": 3,
    "batch_size": 1000,
    "learning_rate": 0.03,
    "momentum": 0.9,
    "clip_norm": 1.0,
}
ATOL = 2e-4
"""Here they differ by 6e-8; a sum in another order may turn the choice of a pooling, which moves 4e-5. The
residuals of the wrong round move 1e-2."""


def federation(pairing: Pairing) -> Federation:
    return Federation(
        name="same",
        seed=4,
        rounds=ROUNDS[pairing][0],
        eligibility="roster",
        evaluation="test",
        model=MODELS["fashion-mnist"],
        method=MethodTable(name="hassle", cloud_weight="participants"),
        training=TrainingTable(**TRAINING, learning_rate_decay=1.0, weight_decay=0.0),
        selection=SelectionTable(method="random", participation=1.0),
        hassle=HassleTable(**HASSLE, residual_weight=0.8, pairing=pairing),
        gateways=roster(1, CLIENTS),
    )


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(1) as pool:
        yield pool


def on_the_fleet(
    described: Federation, data: Path, folder: Path, pool: Pool
) -> tuple[dict[str, Part], list[journal.Row]]:
    """(the parts after the last round, the rows of training)."""
    cut = Cut(data=str(data), form="annotation", annotation=SETTING, labelled=0.3, alpha_client=1.0)
    run.simulate(check(Scenario(method="hassle", federation=described, cut=cut)), folder, data, pool)
    parts = {role: load_file(folder / "models" / f"{role}.safetensors") for role in (*DUALS, *RESIDUALS)}
    return parts, [row for row in journal.read(folder / "metrics.jsonl") if row.phase == "train"]


def in_the_flat_laboratory(
    hall: Hall, start: State, rounds: tuple[int, ...]
) -> tuple[dict[str, Part], list[Row]]:
    state: State = {**start, **{dual + BEFORE: start[dual] for dual in DUALS}}
    rows = []
    with Pool(1) as engine:
        for number in rounds:
            state, row = one_round(hall, Workers(engine, hall), state, number)
            rows.append(row)
    return dict(state), rows


@pytest.mark.parametrize("pairing", ["download", "paper"])
def test_both_laboratories_come_to_the_same_parts(
    pairing: Pairing, data: Path, pool: Pool, tmp_path: Path
) -> None:
    described = federation(pairing)
    _, rounds = ROUNDS[pairing]
    fleet, fleet_rows = on_the_fleet(described, data, tmp_path / "fleet", pool)

    study = Study(
        method="hassle",
        clients=CLIENTS,
        selected=CLIENTS,
        training=Training(**TRAINING),
        options={**HASSLE, "lam": 0.8, "pairing": pairing},
    )
    about = MODELS[study.data]
    train, test = (
        load(data, classes=about.classes, input_shape=about.input, split=split) for split in ("train", "test")
    )
    split = Annotation.load(tmp_path / "fleet" / "annotation.npz")
    hall = lay_out(tmp_path / "hall", study, split, train, test)
    kinds = [(h.labelled > 0, h.unlabelled > 0) for h in hall.holdings]
    assert kinds == [(True, False)] * 2 + [(True, True)] * 2 + [(False, True)] * 2
    start = method(described).initial(hall.bench.model, described.seed)
    flat, flat_rows = in_the_flat_laboratory(hall, start, rounds)

    for role, part in fleet.items():
        for name, tensor in part.items():
            np.testing.assert_allclose(flat[role][name], tensor, atol=ATOL, err_msg=f"{role} {name}")
            assert np.abs(tensor - start[role][name]).max() > 5 * ATOL, f"{role} {name} hardly moves"
    halves = len(fleet_rows) // len(flat_rows)
    for number, row in enumerate(flat_rows):
        for same in fleet_rows[halves * number : halves * (number + 1)]:
            for view, score in row.views.items():  # the last bits may turn two of 200 pictures
                assert same.views[view] == pytest.approx(score.accuracy, abs=0.0101), (row.round, view)
