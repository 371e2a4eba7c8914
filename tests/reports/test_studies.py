"""Runs of the flat laboratory: files of its form, among those of `fedbac simulate`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedbac_edge.reports import figures, tables
from fedbac_edge.reports.document import Picture
from fedbac_edge.reports.grouping import benchmarks
from fedbac_edge.reports.markdown import markdown
from fedbac_edge.reports.merit import merit
from fedbac_edge.reports.page import page
from fedbac_edge.reports.reading import ReportError, Run, read_run

SPLIT = "5" * 64


def write(folder: Path, method: str, rounds: int, **changes: object) -> Path:
    """A finished run: accuracy round / 100; HASSLE has three views and an exchange before round 1."""
    folder.mkdir()
    training = {"epochs": 10, "batch_size": 128, "learning_rate": 0.1, "momentum": 0.9, "clip_norm": None}
    study = {
        "method": method,
        "data": "fashion-mnist",
        "architecture": "lenet",
        "setting": "default",
        "labels": 0.1,
        "alpha": 0.1,
        "clients": 20,
        "selected": 8,
        "rounds": rounds,
        "seed": 1,
        "holdout": False,
        "training": training,
        "options": {},
    }
    about = {"study": study | changes, "software": "0.1.0", "machine": {"training": "fused"}, "split": SPLIT}
    (folder / "run.json").write_text(json.dumps(about))
    lines = []
    for round in range(0 if method == "hassle" else 1, rounds + 1):
        accuracy = round / 100
        scores = (
            {"EM": accuracy, "SM": accuracy / 2, "UM": 0.2} if method == "hassle" else {"model": accuracy}
        )
        lines.append(
            {
                "round": round,
                "phase": "train",
                "view": next(iter(scores)),
                "accuracy": accuracy,
                "loss": 1.0,
                "views": {name: {"accuracy": share, "loss": 1.0} for name, share in scores.items()},
                "training_loss": 1.0,
                "clients": [0, 1],
                "steps": 3,
                "up_bytes": 1000,
                "down_bytes": 3000,
                "wall_s": 0.5,
            }
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "result.json").write_text(
        json.dumps({"rounds": rounds, "view": "EM", "accuracy": rounds / 100})
    )
    return folder


def read(folder: Path) -> Run:
    run = read_run(folder)
    assert run is not None
    return run


def test_a_study_is_a_run_with_views_and_traffic(tmp_path: Path) -> None:
    run = read(write(tmp_path / "a", "hassle", 12))
    assert (run.finished, run.rounds, run.planned, run.partition) == (True, 12, 12, SPLIT)
    found = merit(run, (0.05,))
    assert found.accuracy == 0.12
    assert found.accuracy_last == pytest.approx(sum(range(3, 13)) / 1000)
    assert found.views["SM"].accuracy == 0.06
    assert found.bytes.sent == 13 * 4000
    reached = found.reached[0.05]
    assert reached is not None
    assert (reached.round, reached.bytes.sent) == (5, 6 * 4000)


def test_studies_are_grouped_by_their_settings(tmp_path: Path) -> None:
    runs = [
        read(write(tmp_path / "a", "hassle", 12)),
        read(write(tmp_path / "b", "fixmatch", 12)),
        read(write(tmp_path / "c", "fixmatch", 12, options={"threshold": 0.9})),
        read(write(tmp_path / "d", "fixmatch", 12, holdout=True)),
        read(write(tmp_path / "e", "fixmatch", 12, labels=0.2)),
    ]
    first, second = benchmarks(runs)
    assert {entry.label for entry in first.entries} == {
        "hassle",
        "fixmatch",
        "fixmatch (threshold 0.9)",
        "fixmatch (holdout true)",
    }
    # The preset has another rate: what all runs share and it has not is named.
    assert first.shared == ("rounds=12", "training.learning_rate=0.1")
    assert "10 % labelled" in first.title
    assert "20 % labelled" in second.title
    views = tables.views(first)
    assert views is not None
    assert [row[1:3] for row in views.rows] == [("EM", "12.00"), ("SM", "6.00"), ("UM", "20.00")]
    assert len(page([first, second], [], (0.1,))) > 10


def test_with_one_server_nothing_is_distributed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captions, tables, the line on how to read and the axis say accuracy; other runs keep their word."""
    monkeypatch.setattr(figures, "_curves", lambda curves, style, what: what.encode())
    flat = benchmarks([read(write(tmp_path / "a", "hassle", 12)), read(write(tmp_path / "b", "fedavg", 12))])
    blocks = page(flat, [], (0.1,))
    text = markdown(blocks)
    assert "istributed" not in text
    assert "mean over servers" not in text
    assert "Accuracy, %: mean over seeds" in text
    assert "Accuracy over rounds. fashion-mnist" in text
    pictures = [block for block in blocks if isinstance(block, Picture)]
    assert pictures[0].png == b"accuracy, % of test samples"
    several = [replace(flat[0], servers=2)]
    text = markdown(page(several, [], (0.1,)))
    assert text.count("Distributed accuracy") == 4
    assert figures.accuracy_over_rounds(several[0], {}) == b"distributed accuracy, % of test samples"
    both = markdown(page([*several, *flat], [], (0.1,)))
    assert "Distributed accuracy or accuracy after the last round, %" in both
    assert "where there is one server" in both


def test_a_damaged_study_is_refused_with_the_line(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", "fixmatch", 3)
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"round": 2, ', ""))
    with pytest.raises(ReportError, match=r"line 2 is damaged"):
        read_run(folder)
