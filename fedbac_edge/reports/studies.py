"""Runs of the flat laboratory (one server, no messages), read as if `fedbac simulate` had written them.

Their run.json has a `study` where the others have a `scenario`. A study becomes the scenario of the preset
`paper/hassle-DATA` with its settings; what a scenario has no word for stays beside it as `options`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from fedbac_edge.lab import presets
from fedbac_edge.lab.flat.rows import Row as StudyRow
from fedbac_edge.lab.flat.run import About as StudyAbout
from fedbac_edge.lab.flat.study import Study
from fedbac_edge.lab.fleet.journal import Row
from fedbac_edge.lab.fleet.run import About
from fedbac_edge.lab.fleet.traffic import Traffic
from fedbac_edge.lab.scenario import Scenario, ScenarioError, roster


def is_study(folder: Path) -> bool:
    """Does run.json hold a study?"""
    try:
        found: Any = msgspec.json.decode((folder / "run.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return False
    return isinstance(found, dict) and "study" in found


def read_study(folder: Path) -> tuple[About, dict[str, Any], list[Row]]:
    """Its scenario, what that cannot say (option -> value), and its rows; raises ScenarioError, OSError."""
    try:
        about = msgspec.json.decode((folder / "run.json").read_bytes(), type=StudyAbout)
        scenario = _scenario(about.study)
    except msgspec.DecodeError as error:
        raise ScenarioError(f"{folder / 'run.json'} cannot be read: {error}") from error
    options: dict[str, Any] = {"method": about.study.method, "holdout": about.study.holdout}
    options |= {f"options.{name}": value for name, value in about.study.options.items()}
    known = About(
        scenario=scenario,
        software=about.software,
        machine=about.machine,
        partition=about.split,
        began=about.began,
        host=about.host,
    )
    return known, options, _rows(folder / "metrics.jsonl")


def _scenario(study: Study) -> Scenario:
    change = msgspec.structs.replace
    scenario = presets.preset(f"paper/hassle-{study.data}")
    federation, training = scenario.federation, study.training
    federation = change(
        federation,
        seed=study.seed,
        rounds=study.rounds,
        model=change(federation.model, architecture=study.architecture),
        training=change(
            federation.training,
            epochs=training.epochs,
            batch_size=training.batch_size,
            learning_rate=training.learning_rate,
            momentum=training.momentum,
            clip_norm=training.clip_norm or federation.training.clip_norm,
        ),
        selection=change(federation.selection, participation=study.selected / study.clients),
        gateways=roster(1, study.clients),
    )
    cut = change(
        scenario.cut,
        annotation=study.setting,
        labelled=study.labels,
        alpha_client=study.alpha,
        seed=study.seed,
        samples=study.samples,
        test_samples=study.test_samples,
    )
    return change(scenario, method=study.method, federation=federation, cut=cut)


def _rows(path: Path) -> list[Row]:
    lines: Sequence[bytes] = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(_row(msgspec.json.decode(line, type=StudyRow)))
        except msgspec.DecodeError as error:
            raise ScenarioError(f"{path}, line {number} is damaged: {error}") from error
    return rows


def _row(row: StudyRow) -> Row:
    """One server: nothing to spread over. The exchange of round 0 is traffic without an accuracy."""
    share = row.accuracy if row.round > 0 else None
    several = len(row.views) > 1
    return Row(
        round=row.round,
        phase="train" if row.round > 0 else "evaluate",
        accuracy=share,
        sigma=0.0,
        worst=share,
        best=share,
        views={name: score.accuracy for name, score in row.views.items()} if several else {},
        active_clusters=1,
        traffic=Traffic(sent_up=row.up_bytes, sent_down=row.down_bytes),
        virtual_s=0.0,
        wall_s=row.wall_s,
    )
