"""Clusters by evidence: every site begins with a network of its own, and alike ones are put together.

Ours, not the paper's. In a sweep every site m has scored every network k on its evaluation data: right
answers and loss of h(x; G) + f(x; K_k). If the data of two sites are alike, then what either network knows
serves the other site as well as its own does; if not, it is worse, and the more data the surer. So

1. move: a site goes to the network that serves it best if its own is clearly worse;
2. merge: two clusters become one if, over the samples of both, exchanging their networks makes next to no
   difference, and no member by itself finds the other network clearly worse. The closest pair first, until
   none is left.

What is clear: with w wrong answers here, v there and the losses L and L', the network there is worse by
(v - w) / sqrt(v + w) standard deviations (the root bounds the deviation of the difference over the same
samples, McNemar: only those that one of both gets wrong count) and by the factor L' / L. Above `confidence`
*and* above `tolerance` it is clearly worse; below both it makes no difference; in between all stay as they
are, so that chance does not move them to and fro.

The merged cluster goes on with the one of its networks that fits its members best. Only pi changes: the
other network stays where it is, unused, as a witness. A site that a merge was wrong for, or whose data have
changed, finds the network that fits it better among these too, and moves there: clusters split in this way.

Everything is a function of pi and of one sweep's scores, in name order, so there is nothing more to store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt

from fedbac_edge.vocabulary.terms import Score


@dataclass(frozen=True)
class Thresholds:
    """When evidence is enough, and, to study it, which of the two steps are taken; see the module."""

    confidence: float = 1.0
    tolerance: float = 1.5
    moves: bool = True
    merges: bool = True


@dataclass(frozen=True)
class Exchange:
    """Samples under the network that serves them and under another one."""

    count: int = 0
    wrong: int = 0
    wrong_there: int = 0
    loss: float = 0.0
    loss_there: float = 0.0

    def __add__(self, other: Exchange) -> Exchange:
        return Exchange(
            self.count + other.count,
            self.wrong + other.wrong,
            self.wrong_there + other.wrong_there,
            self.loss + other.loss,
            self.loss_there + other.loss_there,
        )

    @property
    def worse(self) -> float:
        """How surely the other network is worse, in standard deviations; below 0 it is better."""
        return (self.wrong_there - self.wrong) / sqrt(max(1, self.wrong + self.wrong_there))

    @property
    def factor(self) -> float:
        """By what the other network multiplies the loss."""
        if not isfinite(self.loss_there):
            return inf
        return self.loss_there / self.loss if self.loss > 0 else (inf if self.loss_there > 0 else 1.0)

    def is_clear(self, thresholds: Thresholds) -> bool:
        """The other network is clearly worse."""
        return self.worse > thresholds.confidence and self.factor > thresholds.tolerance

    def is_nothing(self, thresholds: Thresholds) -> bool:
        """The networks make next to no difference."""
        return self.worse <= thresholds.confidence and self.factor < thresholds.tolerance


Scores = Mapping[str, Mapping[int, Score]]
"""Site -> cluster -> score, whole rows of sites with evaluation data only."""


def regroup(
    places: Mapping[str, int], scores: Scores, clusters: int, thresholds: Thresholds
) -> dict[str, int]:
    """Site -> cluster after one sweep; a site without scores goes where its cluster goes."""
    moved = {site: _best(site, here, scores, clusters, thresholds) for site, here in sorted(places.items())}
    groups: dict[int, tuple[int, ...]] = {k: (k,) for k in sorted(set(moved.values()))}
    members = {k: [site for site, at in moved.items() if at == k] for k in groups}
    pairs = {
        (a, b): [_exchange(scores[site], a, b) for site in members[a] if site in scores]
        for a in groups
        for b in groups
        if a != b
    }
    while thresholds.merges and (closest := _closest(groups, pairs, thresholds)) is not None:
        a, b = closest
        groups[a] += groups.pop(b)
    target: dict[int, int] = {}
    for joined in groups.values():
        sites = [site for k in joined for site in members[k] if site in scores]
        fit = min(joined, key=lambda k: (sum(scores[site][k].loss for site in sites), k))
        target |= dict.fromkeys(joined, fit)
    return {site: target[k] for site, k in moved.items()}


def _best(site: str, here: int, scores: Scores, clusters: int, thresholds: Thresholds) -> int:
    """The network that serves the site best, if its own is clearly worse."""
    if site not in scores or not thresholds.moves:
        return here
    row = scores[site]
    best = min(range(clusters), key=lambda k: (row[k].loss if isfinite(row[k].loss) else inf, k != here, k))
    return best if _exchange(row, best, here).is_clear(thresholds) else here


def _exchange(row: Mapping[int, Score], here: int, there: int) -> Exchange:
    one, other = row[here], row[there]
    return Exchange(one.count, one.count - one.correct, other.count - other.correct, one.loss, other.loss)


def _closest(
    groups: Mapping[int, Sequence[int]],
    pairs: Mapping[tuple[int, int], Sequence[Exchange]],
    thresholds: Thresholds,
) -> tuple[int, int] | None:
    """The two groups whose exchange costs least, of those that may be merged."""
    found = None
    for a in sorted(groups):
        for b in sorted(k for k in groups if k > a):
            cost = _cost(groups[a], groups[b], pairs, thresholds)
            if cost is not None and (found is None or cost < found[0]):
                found = (cost, a, b)
    return None if found is None else found[1:]


def _cost(
    one: Sequence[int],
    other: Sequence[int],
    pairs: Mapping[tuple[int, int], Sequence[Exchange]],
    thresholds: Thresholds,
) -> float | None:
    """By what an exchange multiplies the loss of both; None when they must stay apart."""
    there = [exchange for a in one for b in other for exchange in pairs[a, b]]
    back = [exchange for a in one for b in other for exchange in pairs[b, a]]
    total = sum((*there, *back), Exchange())
    if not there or not back or any(exchange.is_clear(thresholds) for exchange in (*there, *back)):
        return None
    return total.factor if total.is_nothing(thresholds) else None
