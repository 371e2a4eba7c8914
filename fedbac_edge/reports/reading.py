"""A run's folder as `fedbac simulate` left it, finished or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fedbac_edge import __version__
from fedbac_edge.lab.fleet import journal, run
from fedbac_edge.lab.fleet.journal import Row
from fedbac_edge.lab.scenario import Scenario, ScenarioError
from fedbac_edge.reports.other_states import read_known
from fedbac_edge.reports.studies import is_study, read_study

ROUNDING = 1e-9


class ReportError(ValueError):
    """What cannot be reported on; the message says which folder, why, and what to do."""


@dataclass(frozen=True)
class Run:
    """One run. `rows` are all its phases in order, `training` those with accuracies, never empty."""

    folder: Path
    about: run.About
    rows: tuple[Row, ...]
    training: tuple[Row, ...]
    finished: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the scenario has no word for (see `studies`, `other_states`)."""

    @property
    def flat(self) -> bool:
        """A study of the flat laboratory."""
        return "method" in self.options

    @property
    def scenario(self) -> Scenario:
        """What was simulated."""
        return self.about.scenario

    @property
    def seed(self) -> int:
        """Of the federation's draws."""
        return self.scenario.federation.seed

    @property
    def partition(self) -> str:
        """Content hash: runs on equal ones can be compared pair by pair."""
        return self.about.partition

    @property
    def rounds(self) -> int:
        """Rounds that are over."""
        return self.training[-1].round

    @property
    def planned(self) -> int:
        """Rounds that were asked for."""
        return self.scenario.federation.rounds


def read_run(folder: Path) -> Run | None:
    """The run in `folder`, None while its first round is not over.

    Raises ReportError: no run, another version's, a damaged line, a result that its metrics do not give.
    """
    if (folder / "lock").exists() and not (folder / "run.json").exists():
        return None  # its data are being laid out
    options: dict[str, Any] = {}
    try:
        if is_study(folder):
            about, options, rows = read_study(folder)
        else:
            about, options = read_known(folder)
            rows = journal.read(folder / "metrics.jsonl")
    except ScenarioError as error:
        raise ReportError(f"{error}{_foreign(folder)}") from error
    except OSError as error:
        raise ReportError(f"{folder} cannot be read: {error}") from error
    training = _training(folder / "metrics.jsonl", rows)
    try:
        result = _read_result(folder)
    except (OSError, msgspec.DecodeError) as error:
        raise ReportError(f"{folder / 'result.json'} cannot be read: {error}{_foreign(folder)}") from error
    if result is not None and (
        not training
        or training[-1].round != result.rounds
        or abs((training[-1].accuracy or 0.0) - result.accuracy) > ROUNDING
    ):
        raise ReportError(
            f"{folder}: metrics.jsonl does not end as result.json says (round {result.rounds}, accuracy "
            f"{result.accuracy:.6f}); lines are missing, or the files are of two runs"
        )
    if not training:
        return None
    return Run(folder, about, tuple(rows), tuple(training), result is not None, options)


class _Result(msgspec.Struct):
    """What result.json must agree on with the metrics."""

    rounds: int
    accuracy: float


def _read_result(folder: Path) -> _Result | None:
    path = folder / "result.json"
    return msgspec.json.decode(path.read_bytes(), type=_Result) if path.exists() else None


def _training(path: Path, rows: Sequence[Row]) -> list[Row]:
    """The rows with accuracies; every round must be there once, from the first on."""
    training: list[Row] = []
    for number, row in enumerate(rows, 1):
        if row.phase != "train":
            continue
        if row.round != len(training) + 1:
            raise ReportError(
                f"{path}, line {number}: round {row.round} follows round {len(training)}; lines are "
                "missing or doubled"
            )
        if row.accuracy is None:
            raise ReportError(f"{path}, line {number}: a round of training without an accuracy")
        training.append(row)
    return training


def _foreign(folder: Path) -> str:
    """A remark for runs of another version, whose files may have other fields."""
    try:
        software = msgspec.json.decode((folder / "run.json").read_bytes())["software"]
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return ""
    if software == __version__:
        return ""
    return f" (it was written by version {software}, this is {__version__}: report with that version)"


def read_runs(folders: Sequence[Path], enough: bool = False) -> tuple[list[Run], list[str]]:
    """All runs, and remarks on those left out; raises ReportError with every fault found at once.

    No run at all is a fault too, unless `enough` is there without one.
    """
    runs, remarks, faults = [], [], []
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            continue
        seen.add(folder.resolve())
        if len(folders) > 1 and folder.is_dir() and not (folder / "run.json").exists():
            remarks.append(f"{folder.name} is left out: it holds no run (run.json is missing).")
            continue
        try:
            found = read_run(folder)
        except ReportError as error:
            faults.append(str(error))
            continue
        if found is None:
            remarks.append(f"{folder.name} is left out: its first round is not over yet.")
        else:
            runs.append(found)
    if faults:
        raise ReportError("\n".join([*faults, *remarks]))
    if not runs and not enough:
        raise ReportError("\n".join(["there is nothing to report on", *remarks]))
    return runs, remarks
