"""What is compared with what, and what a reader is told before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fedbac_edge.lab import presets
from fedbac_edge.lab.scenario import with_settings
from fedbac_edge.reports.grouping import Benchmark, benchmarks
from fedbac_edge.reports.reading import read_runs
from fedbac_edge.reports.tables import accuracy, overview, target

Copy = Callable[[str], Path]


def grouped(*folders: Path) -> list[Benchmark]:
    return benchmarks(read_runs(folders)[0])


def rewrite(folder: Path, change: Callable[[dict[str, object]], None]) -> Path:
    about = json.loads((folder / "run.json").read_text())
    change(about)
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def test_settings_that_differ_name_the_entry_and_shared_ones_the_benchmark(runs: Path) -> None:
    (found,) = grouped(runs / "fedbac-1", runs / "random-1")
    assert [entry.label for entry in found.entries] == ["fedbac", "random"]
    assert {"training.epochs=1", "selection.participation=0.5", "rounds=11"} <= set(found.shared)

    (found,) = grouped(runs / "fedbac-1", runs / "random-1", runs / "fedbac-all")
    assert [entry.label for entry in found.entries] == [
        "fedbac (rounds 11, participation 0.5)",
        "fedbac (rounds 2, participation 1)",
        "random (rounds 11, participation 0.5)",
    ]
    assert found.entries[1].differs == ("rounds=2", "selection.participation=1")
    assert "training.epochs=1" in found.shared


def test_a_method_is_known_by_its_settings(runs: Path, copied: Copy) -> None:
    """fedbac with a fixed assignment is what is called single, or fixed when it begins with round-robin."""

    def fix(about: dict[str, object]) -> None:
        scenario = about["scenario"]
        assert isinstance(scenario, dict)
        scenario["federation"]["assignment"]["method"] = "fixed"

    (found,) = grouped(runs / "fedbac-2", rewrite(copied("fedbac-1"), fix))
    assert [entry.label for entry in found.entries] == ["fedbac", "single"]


def test_a_setting_of_another_state_of_the_software_is_not_lost(runs: Path, copied: Copy) -> None:
    def add(about: dict[str, object]) -> None:
        scenario = about["scenario"]
        assert isinstance(scenario, dict)
        scenario["federation"]["assignment"]["courage"] = 2.5

    (found,) = grouped(runs / "fedbac-1", rewrite(copied("fedbac-1"), add))
    assert [entry.label for entry in found.entries] == ["fedbac", "fedbac (courage 2.5)"]


def test_settings_stand_above_a_single_entry(runs: Path) -> None:
    (found,) = grouped(runs / "fedbac-1")
    assert found.entries[0].label == "fedbac"
    assert "training.epochs=1" in found.shared
    assert not found.entries[0].plain


def test_seeds_of_one_setting_are_one_entry(runs: Path) -> None:
    (found,) = grouped(runs / "fedbac-2", runs / "fedbac-1")
    (entry,) = found.entries
    assert [run.seed for run in entry.runs] == [1, 2]
    assert found.remarks == ()


def test_means_over_other_partitions_are_not_compared_in_silence(runs: Path) -> None:
    (found,) = grouped(runs / "fedbac-1", runs / "fedbac-2", runs / "fixed-1")
    assert any("not over the same partitions" in remark and "1, 2" in remark for remark in found.remarks)


def test_another_partition_under_one_seed_is_told(runs: Path, copied: Copy) -> None:
    def recut(about: dict[str, object]) -> None:
        about["partition"] = "f" * 64

    other = rewrite(copied("fixed-1"), recut)
    (found,) = grouped(runs / "fedbac-1", other)
    told = next(remark for remark in found.remarks if "different partitions" in remark)
    assert "ffffffffffff: fixed-1" in told
    assert "fedbac-1" in told


def test_a_repeated_run_counts_once(runs: Path, copied: Copy) -> None:
    (found,) = grouped(runs / "fedbac-1", copied("fedbac-1"))
    assert len(found.entries[0].runs) == 1
    assert any("repeats the run" in remark for remark in found.remarks)


def test_a_finished_run_is_not_averaged_with_one_that_goes_on(
    runs: Path, unfinished: Callable[[str, int], Path]
) -> None:
    (found,) = grouped(runs / "fedbac-1", unfinished("fedbac-2", 5))
    assert [run.seed for run in found.entries[0].counted] == [1]
    (alone,) = grouped(unfinished("fixed-1", 5))
    assert "UNFINISHED, round 5 of 11" in accuracy(alone).rows[0][2]


def test_another_cut_is_another_benchmark(runs: Path, copied: Copy) -> None:
    def recut(about: dict[str, object]) -> None:
        scenario = about["scenario"]
        assert isinstance(scenario, dict)
        scenario["cut"]["form"] = "per-class"

    found = grouped(runs / "fedbac-1", rewrite(copied("fixed-1"), recut))
    assert [each.cut.form for each in found] == ["per-server", "per-class"]
    table = overview(found)
    assert [row[1] == "-" for row in table.rows] != [row[2] == "-" for row in table.rows]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((), ("86.6", "plain")),
        (("training.epochs=2",), ("-", "training.epochs=2")),
        (("rounds=12",), ("-", "rounds=12")),
        (("cut.form=planted", "cut.groups=2"), ("-", "plain")),
    ],
)
def test_the_papers_figure_stands_beside_runs_with_its_settings_alone(
    copied: Copy, settings: tuple[str, ...], expected: tuple[str, str]
) -> None:
    scenario = with_settings(presets.preset("paper/fashion-mnist-0.5"), settings)

    def retitle(about: dict[str, object]) -> None:
        about["scenario"] = msgspec.to_builtins(scenario)

    (found,) = grouped(rewrite(copied("fedbac-1"), retitle))
    row = accuracy(found).rows[0]
    assert row[5] == expected[0]
    assert (row[6] == "-") == (expected[0] == "-")
    assert found.shared == (() if expected[1] == "plain" else (expected[1],))


def test_the_papers_rounds_belong_to_their_target(copied: Copy) -> None:
    def retitle(about: dict[str, object]) -> None:
        about["scenario"] = msgspec.to_builtins(presets.preset("paper/cifar10-0.5"))

    (found,) = grouped(rewrite(copied("fedbac-1"), retitle))
    assert target(found, 0.5).rows[0][2] == "15"
    assert target(found, 0.8).rows[0][2] == "-"
