"""Differences between methods on equal partitions: one server sees the same data under both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbac_edge.reports.grouping import Entry
from fedbac_edge.reports.merit import merit
from fedbac_edge.reports.reading import Run

QUESTIONS = {
    "random": "Thompson sampling against random selection",
    "fixed": "LinUCB against fixed round-robin",
    "single": "LinUCB against a single cluster",
}
"""Method -> what its difference to fedbac answers."""


@dataclass(frozen=True)
class Pair:
    """`base` minus `other`, a value per common seed and partition; accuracies in [0, 1]."""

    base: str
    other: str
    question: str
    seeds: tuple[int, ...]
    accuracy: tuple[float, ...]
    """After the last round."""
    accuracy_last: tuple[float, ...]
    """Means over the last ten rounds."""
    sigma: tuple[float, ...]
    """Deviations over servers."""
    wins: int
    """Servers that the base serves better in the last round, over all seeds."""
    losses: int


def pairs(entries: Sequence[Entry]) -> list[Pair]:
    """The first entry (fedbac, where it is there) against every other, on finished runs of equal length."""
    if not entries:
        return []
    base = entries[0]
    found = []
    for other in entries[1:]:
        theirs = {(run.seed, run.partition): run for run in other.finished}
        both = [
            (run, theirs[run.seed, run.partition])
            for run in base.finished
            if (run.seed, run.partition) in theirs and theirs[run.seed, run.partition].rounds == run.rounds
        ]
        if both:
            found.append(_pair(base, other, both))
    return found


def _pair(base: Entry, other: Entry, both: Sequence[tuple[Run, Run]]) -> Pair:
    merits = [(merit(ours), merit(theirs)) for ours, theirs in both]
    servers = [_servers(ours, theirs) for ours, theirs in both]
    alike = base.method == "fedbac" and base.differs == other.differs
    return Pair(
        base=base.label,
        other=other.label,
        question=QUESTIONS.get(other.method, "") if alike else "",
        seeds=tuple(run.seed for run, _ in both),
        accuracy=tuple(a.accuracy - b.accuracy for a, b in merits),
        accuracy_last=tuple(a.accuracy_last - b.accuracy_last for a, b in merits),
        sigma=tuple(a.sigma - b.sigma for a, b in merits),
        wins=sum(wins for wins, _ in servers),
        losses=sum(losses for _, losses in servers),
    )


def _servers(ours: Run, theirs: Run) -> tuple[int, int]:
    mine, others = ours.training[-1].servers, theirs.training[-1].servers
    both = [
        (mine[name].accuracy, others[name].accuracy) for name in mine if name in others and mine[name].test
    ]
    return sum(a > b for a, b in both), sum(a < b for a, b in both)
