"""Runs as they lie on disk: whole, going on, damaged, of somebody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbac_edge.reports.reading import ReportError, read_run, read_runs

Copy = Callable[[str], Path]


def change(path: Path, line: int, **fields: object) -> None:
    """Rewrite fields of a line (from 1 on) of a metrics file."""
    lines = path.read_text().splitlines()
    lines[line - 1] = json.dumps(json.loads(lines[line - 1]) | fields)
    path.write_text("\n".join(lines) + "\n")


def test_a_finished_run(runs: Path) -> None:
    run = read_run(runs / "fedbac-1")
    assert run is not None
    assert (run.finished, run.rounds, run.planned, run.seed) == (True, 11, 11, 1)
    assert len(run.rows) > len(run.training) == 11


def test_a_run_that_goes_on_is_read_up_to_its_last_whole_line(unfinished: Callable[[str, int], Path]) -> None:
    run = read_run(unfinished("fixed-1", 5))
    assert run is not None
    assert (run.finished, run.rounds, run.planned) == (False, 5, 11)


def test_a_run_before_the_end_of_its_first_round_is_left_out(
    runs: Path, unfinished: Callable[[str, int], Path]
) -> None:
    begun = unfinished("fixed-1", 0)
    assert read_run(begun) is None
    laid_out = begun.parent / "laid-out"
    laid_out.mkdir()
    (laid_out / "lock").touch()
    assert read_run(laid_out) is None
    found, remarks = read_runs([runs / "fixed-1", begun])
    assert [run.folder for run in found] == [runs / "fixed-1"]
    assert "first round" in remarks[0]
    with pytest.raises(ReportError, match="nothing to report"):
        read_runs([begun])


def test_a_damaged_line_is_named(copied: Copy) -> None:
    folder = copied("fedbac-1")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[6] = lines[6][:100]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(ReportError, match=r"metrics\.jsonl, line 7 is damaged"):
        read_run(folder)


def test_a_missing_line_is_noticed(copied: Copy) -> None:
    folder = copied("fixed-1")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(lines[:3] + lines[4:]) + "\n")
    with pytest.raises(ReportError, match="line 4: round 5 follows round 3"):
        read_run(folder)


def test_a_result_of_another_run_is_noticed(copied: Copy, runs: Path) -> None:
    folder = copied("fedbac-1")
    (folder / "result.json").write_bytes((runs / "hierfavg-1" / "result.json").read_bytes())
    ours, theirs = (json.loads((runs / n / "result.json").read_text()) for n in ("fedbac-1", "hierfavg-1"))
    assert ours["accuracy"] != theirs["accuracy"]
    with pytest.raises(ReportError, match=r"does not end as result\.json says"):
        read_run(folder)


def test_another_versions_run_is_said_to_be_one(copied: Copy) -> None:
    folder = copied("fedbac-1")
    about = json.loads((folder / "run.json").read_text())
    about["software"] = "9.1"
    about["scenario"]["federation"]["weather"] = {"rain": 1}
    (folder / "run.json").write_text(json.dumps(about))
    with pytest.raises(ReportError, match=r"weather.*written by version 9\.1"):
        read_run(folder)


def test_all_faults_are_told_at_once(tmp_path: Path, copied: Copy) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    damaged = copied("fixed-1")
    change(damaged / "metrics.jsonl", 2, accuracy=None)
    with pytest.raises(ReportError) as raised:
        read_runs([tmp_path / "empty", tmp_path / "file", damaged, tmp_path / "nowhere"])
    lines = str(raised.value).splitlines()
    assert len(lines) == 4
    for name, line in zip(("file", "line 2", "nowhere", "empty is left out"), lines, strict=True):
        assert name in line


def test_other_folders_beside_runs_are_left_out(runs: Path, tmp_path: Path) -> None:
    """`fedbac report runs/*` where a fleet keeps its state in the same folder."""
    (tmp_path / "broker").mkdir()
    found, remarks = read_runs([tmp_path / "broker", runs / "fixed-1"])
    assert len(found) == 1
    assert remarks == ["broker is left out: it holds no run (run.json is missing)."]
    with pytest.raises(ReportError, match="no run in"):
        read_runs([tmp_path / "broker"])


def test_a_folder_given_twice_counts_once(runs: Path) -> None:
    found, _ = read_runs([runs / "fixed-1", runs / "." / "fixed-1"])
    assert len(found) == 1
