"""Small real runs, made once: five methods and settings, two seeds of fedbac, on images of two corners."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedbac_edge.lab import presets
from fedbac_edge.lab.fleet import run
from fedbac_edge.lab.pool import Pool
from fedbac_edge.lab.scenario import Cut, Scenario, roster
from fedbac_edge.settings.federation import (
    AssignmentTable,
    Federation,
    MethodTable,
    ModelTable,
    SelectionTable,
    TrainingTable,
)

ROUNDS = 11


def scenario(method: str, seed: int, rounds: int = ROUNDS, participation: float | None = None) -> Scenario:
    federation = Federation(
        name="tiny",
        seed=seed,
        rounds=rounds,
        eligibility="roster",
        evaluation="test",
        model=ModelTable(classes=("dark", "bright"), input=(1, 16, 16)),
        method=MethodTable(initial="single"),
        training=TrainingTable(epochs=1, batch_size=16, learning_rate=0.02),
        selection=SelectionTable(participation=0.5, warm_up=1),
        assignment=AssignmentTable(every=4),
        gateways=roster(3, 2),
    )
    cut = Cut(data="corners", alpha_server=0.5, allow_tiny=True, seed=seed)
    made = presets.with_method(Scenario(federation=federation, cut=cut), method)
    if participation is None:
        return made
    selection = msgspec.structs.replace(made.federation.selection, participation=participation)
    return msgspec.structs.replace(
        made, federation=msgspec.structs.replace(made.federation, selection=selection)
    )


RUNS = {
    "fedbac-1": scenario("fedbac", 1),
    "fedbac-2": scenario("fedbac", 2),
    "fedbac-all": scenario("fedbac", 1, 2, 1.0),
    "random-1": scenario("random", 1),
    "fixed-1": scenario("fixed", 1),
    "hierfavg-1": scenario("hierfavg", 1),
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of finished runs, named as RUNS; not to be changed."""
    place = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 120).astype(np.uint8)
    x = rng.integers(0, 100, (120, 16, 16, 1)).astype(np.uint8)
    x[y == 1] += 60
    np.savez(place / "corners.npz", x=x, y=y)
    with Pool(1) as pool:
        for name, each in RUNS.items():
            run.simulate(each, place / name, place / "corners.npz", pool)
    return place


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A run's figures in a folder of the test's own, to be damaged."""

    def copy(name: str) -> Path:
        (tmp_path / name).mkdir()
        for file in ("run.json", "metrics.jsonl", "result.json"):
            shutil.copy(runs / name / file, tmp_path / name / file)
        return tmp_path / name

    return copy


@pytest.fixture
def unfinished(copied: Callable[[str], Path]) -> Callable[[str, int], Path]:
    """A run as a kill leaves it: so many lines, a torn one, no result."""

    def cut(name: str, lines: int) -> Path:
        folder = copied(name)
        (folder / "result.json").unlink()
        whole = (folder / "metrics.jsonl").read_bytes().split(b"\n")
        (folder / "metrics.jsonl").write_bytes(b"\n".join([*whole[:lines], whole[lines][:20]]))
        return folder

    return cut
