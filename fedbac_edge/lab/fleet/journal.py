"""A run's figures, one JSON line per phase: `metrics.jsonl`.

Lines are whole or not there: after a kill the torn end is cut off, and a phase that has its line is not
written again. Rows of training hold the distributed accuracy (the paper's metric): the served model of each
server after cloud aggregation on that server's test partition, the unweighted mean over servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Literal

import msgspec

from fedbac_edge.lab import folder as run_folder
from fedbac_edge.lab.fleet.traffic import Traffic
from fedbac_edge.lab.folder import Lines
from fedbac_edge.lab.scenario import ScenarioError
from fedbac_edge.vocabulary.terms import Score


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One server in one round."""

    cluster: int
    accuracy: float
    """Of the served model on the server's test partition."""
    loss: float
    """Mean cross-entropy there."""
    test: int
    """Samples of that partition."""
    holdout_accuracy: float | None = None
    """On the hold-outs of all its devices; None when nothing is held out. Choices are made on this one."""
    holdout: int = 0
    asked: int = 0
    participants: tuple[str, ...] = ()
    samples: int = 0
    """Samples that the participants trained on."""
    void: str = ""
    views: dict[str, float] = {}
    """Accuracy of each of the method's views on the test partition, where it has several."""
    classes: tuple[tuple[int, int], ...] = ()
    """After the last round, class by class: right answers and samples on the test partition."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `sigma` is the deviation over servers; an evaluation phase has no accuracies."""

    round: int
    phase: Literal["train", "evaluate"]
    accuracy: float | None = None
    sigma: float | None = None
    worst: float | None = None
    best: float | None = None
    holdout_accuracy: float | None = None
    views: dict[str, float] = {}
    """View -> accuracy, mean over servers, where the method has several; `accuracy` is the served one's."""
    active_clusters: int
    servers: dict[str, Server] = {}
    moved: dict[str, int] = {}
    """Evaluation phase: server -> the cluster that it was moved to."""
    traffic: Traffic
    virtual_s: float
    """Duration in the simulated world."""
    wall_s: float
    """Duration here; the only figure that differs between two runs of one scenario."""


def training_row(
    round: int, servers: Mapping[str, Server], traffic: Traffic, virtual_s: float, wall_s: float
) -> Row:
    """The row of a training round, with the figures over its servers."""
    judged = [server for _, server in sorted(servers.items()) if server.test]
    accuracies = [server.accuracy for server in judged]
    held = [s.holdout_accuracy for _, s in sorted(servers.items()) if s.holdout_accuracy is not None]
    return Row(
        round=round,
        phase="train",
        accuracy=fmean(accuracies),
        sigma=pstdev(accuracies),
        worst=min(accuracies),
        best=max(accuracies),
        holdout_accuracy=fmean(held) if held else None,
        views={name: fmean(server.views[name] for server in judged) for name in judged[0].views},
        active_clusters=len({server.cluster for server in servers.values()}),
        servers=dict(sorted(servers.items())),
        traffic=traffic,
        virtual_s=virtual_s,
        wall_s=wall_s,
    )


def measured(
    cluster: int,
    test: Score,
    held: Score,
    asked: int,
    participants: tuple[str, ...],
    samples: int,
    void: str,
    views: Mapping[str, Score],
    classes: Sequence[Score] = (),
) -> Server:
    """A server's figures from its scores; `test` is that of the served view, `views` has several or none."""
    return Server(
        cluster=cluster,
        accuracy=test.accuracy,
        loss=test.mean_loss if test.count else 0.0,
        test=test.count,
        holdout_accuracy=held.accuracy if held.count else None,
        holdout=held.count,
        asked=asked,
        participants=participants,
        samples=samples,
        void=void,
        views={name: score.accuracy for name, score in views.items()},
        classes=tuple((score.correct, score.count) for score in classes),
    )


class Journal:
    """The file, open for appending; `rows` are those that it holds."""

    def __init__(self, path: Path) -> None:
        self._lines = Lines(path, read(path))
        self.rows = self._lines.rows
        self.append, self.close = self._lines.append, self._lines.close

    def has(self, round: int, phase: str) -> bool:
        """True when that phase has its line."""
        return any((row.round, row.phase) == (round, phase) for row in reversed(self.rows))


def read(path: Path) -> list[Row]:
    """The whole lines of a metrics file; none when it is not there. Raises ScenarioError naming the line."""
    return run_folder.read_rows(path, Row, ScenarioError)
