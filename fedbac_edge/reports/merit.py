"""Figures of merit of one run, from its rows alone. Accuracies are shares in [0, 1], traffic is in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

from fedbac_edge.lab.fleet.journal import Row
from fedbac_edge.lab.fleet.run import LAST
from fedbac_edge.reports.reading import Run


@dataclass(frozen=True)
class Bytes:
    """Up and down together, by the rules of `lab.fleet.traffic`; evaluations included."""

    single: int
    """One network per link and direction, as this family of papers counts."""
    sent: int
    """Every network on every link, as it is really sent."""
    published: int
    """What MQTT carried, headers and repeats included."""


@dataclass(frozen=True)
class Reached:
    """The first round whose accuracy was at least a target's, and what had been sent by then."""

    round: int
    bytes: Bytes


@dataclass(frozen=True)
class View:
    """One of several models that a method gives a server: mean over servers."""

    accuracy: float
    """After the last round."""
    accuracy_last: float
    """Mean over the last ten rounds."""


@dataclass(frozen=True)
class Merit:
    """Of the last round that is over, unless said otherwise."""

    rounds: int
    accuracy: float
    """Mean over servers of the served model's accuracy on the server's test partition."""
    accuracy_last: float
    """Mean over the last ten rounds."""
    sigma: float
    """Deviation over servers."""
    worst: float
    best: float
    holdout: float | None
    """Accuracy on hold-outs: choices between settings are made on this one."""
    active_clusters: int
    moves: int
    """How often a server changed its cluster in the whole run."""
    bytes: Bytes
    """Of the whole run."""
    reached: dict[float, Reached | None]
    """Target -> when; None: not reached."""
    classes: tuple[float | None, ...]
    """After the last planned round, class by class: right answers of all servers over their test samples."""
    views: dict[str, View]
    """Where the method has several; the figures above are of the served one."""


def merit(run: Run, targets: Iterable[float] = ()) -> Merit:
    """All figures of a run, finished or not."""
    last = run.training[-1]
    assert last.accuracy is not None
    assert last.sigma is not None
    assert last.worst is not None
    assert last.best is not None
    return Merit(
        rounds=last.round,
        accuracy=last.accuracy,
        accuracy_last=fmean(row.accuracy for row in run.training[-LAST:] if row.accuracy is not None),
        sigma=last.sigma,
        worst=last.worst,
        best=last.best,
        holdout=last.holdout_accuracy,
        active_clusters=last.active_clusters,
        moves=moves(run.training),
        bytes=traffic(run.rows),
        classes=_classes(last),
        reached={target: reach(run.rows, target) for target in targets},
        views={
            name: View(share, fmean(row.views[name] for row in run.training[-LAST:] if name in row.views))
            for name, share in last.views.items()
        },
    )


def _classes(row: Row) -> tuple[float | None, ...]:
    """None where a class has no test samples; empty before the last round."""
    counted = [server.classes for server in row.servers.values() if server.classes]
    sums = [(sum(r for r, _ in each), sum(n for _, n in each)) for each in zip(*counted, strict=True)]
    return tuple(right / count if count else None for right, count in sums)


def traffic(rows: Iterable[Row]) -> Bytes:
    """Summed over phases and directions."""
    counts = [row.traffic for row in rows]
    return Bytes(
        single=sum(c.single_up + c.single_down for c in counts),
        sent=sum(c.sent_up + c.sent_down for c in counts),
        published=sum(c.published_up + c.published_down for c in counts),
    )


def reach(rows: Sequence[Row], target: float) -> Reached | None:
    """When the distributed accuracy first was at least `target`."""
    for index, row in enumerate(rows):
        if row.accuracy is not None and row.accuracy >= target:
            return Reached(row.round, traffic(rows[: index + 1]))
    return None


def moves(training: Sequence[Row]) -> int:
    """Changes of cluster from one round to the next, over all servers."""
    return sum(
        later.servers[name].cluster != server.cluster
        for earlier, later in pairwise(training)
        for name, server in earlier.servers.items()
        if name in later.servers
    )


@dataclass(frozen=True)
class Spread:
    """A figure over seeds: mean and, from two on, the deviation with n - 1."""

    mean: float
    deviation: float | None
    count: int


def spread(values: Sequence[float]) -> Spread:
    """Mean and deviation of at least one value."""
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


T_95 = (
    *(
        12.706,
        4.303,
        3.182,
        2.776,
        2.571,
        2.447,
        2.365,
        2.306,
        2.262,
        2.228,
        2.201,
        2.179,
        2.160,
        2.145,
        2.131,
    ),
    *(
        2.120,
        2.110,
        2.101,
        2.093,
        2.086,
        2.080,
        2.074,
        2.069,
        2.064,
        2.060,
        2.056,
        2.052,
        2.048,
        2.045,
        2.042,
    ),
)
"""Student's t at 97.5 % for 1 to 30 degrees of freedom; beyond, the last one is a little wide."""


def confidence(value: Spread) -> tuple[float, float] | None:
    """The 95 % confidence interval of a mean of shares, by Student's t; None for one seed."""
    if value.deviation is None:
        return None
    half = T_95[min(value.count - 1, len(T_95)) - 1] * value.deviation / value.count**0.5
    return max(0.0, value.mean - half), min(1.0, value.mean + half)
