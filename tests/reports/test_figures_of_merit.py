"""Figures against a calculation of their own, from the plain JSON lines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbac_edge.reports import tables
from fedbac_edge.reports.grouping import benchmarks
from fedbac_edge.reports.merit import merit
from fedbac_edge.reports.pairs import pairs
from fedbac_edge.reports.reading import Run, read_run, read_runs


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def accuracies(folder: Path) -> np.ndarray:
    """Rounds by servers."""
    rows = [row for row in lines(folder) if row["phase"] == "train"]
    return np.array([[row["servers"][name]["accuracy"] for name in sorted(row["servers"])] for row in rows])


def read(folder: Path) -> Run:
    run = read_run(folder)
    assert run is not None
    return run


@pytest.mark.parametrize("name", ["fedbac-1", "fixed-1", "hierfavg-1"])
def test_merit_of_a_run(runs: Path, name: str) -> None:
    table = accuracies(runs / name)
    target = float(np.sort(table.mean(axis=1))[6])
    found = merit(read(runs / name), (target, 1.1))
    assert found.accuracy == pytest.approx(table[-1].mean())
    assert found.accuracy_last == pytest.approx(table[-10:].mean())
    assert found.sigma == pytest.approx(table[-1].std())
    assert (found.worst, found.best) == pytest.approx((table[-1].min(), table[-1].max()))
    assert found.holdout is None or 0 <= found.holdout <= 1
    rows = lines(runs / name)
    clusters = [
        [s["cluster"] for _, s in sorted(r["servers"].items())] for r in rows if r["phase"] == "train"
    ]
    assert found.moves == int((np.diff(np.array(clusters), axis=0) != 0).sum())
    assert found.active_clusters == len(set(clusters[-1]))

    first = next(i for i, row in enumerate(rows) if row["phase"] == "train" and row["accuracy"] >= target)
    reached = found.reached[target]
    assert reached is not None
    assert reached.round == rows[first]["round"]
    for rule in ("single", "sent", "published"):
        count = [row["traffic"][f"{rule}_up"] + row["traffic"][f"{rule}_down"] for row in rows]
        assert getattr(found.bytes, rule) == sum(count) > 0
        assert getattr(reached.bytes, rule) == sum(count[: first + 1])
    assert found.reached[1.1] is None


def test_the_tables_show_mean_and_deviation_over_seeds(runs: Path) -> None:
    (benchmark,) = benchmarks(read_runs([runs / "fedbac-1", runs / "fedbac-2", runs / "fixed-1"])[0])
    finals = [100 * accuracies(runs / name)[-1].mean() for name in ("fedbac-1", "fedbac-2")]
    lasts = [100 * accuracies(runs / name)[-10:].mean() for name in ("fedbac-1", "fedbac-2")]
    row = tables.accuracy(benchmark).rows[0]
    assert row[:4] == (
        benchmark.entries[0].label,
        "1, 2",
        f"{np.mean(finals):.2f} ± {np.std(finals, ddof=1):.2f}",
        f"{np.mean(lasts):.2f} ± {np.std(lasts, ddof=1):.2f}",
    )
    fixed = 100 * accuracies(runs / "fixed-1")
    assert tables.accuracy(benchmark).rows[1][2] == f"{fixed[-1].mean():.2f}"
    spread = tables.servers(benchmark).rows[1]
    assert spread[1:4] == tuple(
        f"{value:.2f}" for value in (fixed[-1].std(), fixed[-1].min(), fixed[-1].max())
    )
    assert spread[6:] == ("3", "0")
    target = tables.target(benchmark, 0.01).rows[1]
    first = lines(runs / "fixed-1")[0]["traffic"]
    assert target[1] == "1"
    assert target[3:5] == tuple(
        f"{(first[f'{rule}_up'] + first[f'{rule}_down']) / 1e6:,.1f}" for rule in ("single", "sent")
    )
    assert tables.target(benchmark, 1.0).rows[1][1:] == ("not reached", "-", "-", "-", "-")


def test_differences_are_taken_on_equal_partitions_alone(runs: Path) -> None:
    (benchmark,) = benchmarks(read_runs([runs / n for n in ("fedbac-1", "fedbac-2", "random-1")])[0])
    (pair,) = pairs(benchmark.entries)
    assert pair.seeds == (1,)
    ours, theirs = accuracies(runs / "fedbac-1"), accuracies(runs / "random-1")
    assert pair.accuracy == pytest.approx((ours[-1].mean() - theirs[-1].mean(),))
    assert pair.accuracy_last == pytest.approx((ours[-10:].mean() - theirs[-10:].mean(),))
    assert pair.sigma == pytest.approx((ours[-1].std() - theirs[-1].std(),))
    assert (pair.wins, pair.losses) == (
        int((ours[-1] > theirs[-1]).sum()),
        int((ours[-1] < theirs[-1]).sum()),
    )
    assert pair.question.startswith("Thompson")
    assert math.isfinite(pair.accuracy[0])
