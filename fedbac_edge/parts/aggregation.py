"""Weighted means of parts in a fixed order, at the edge and in the cloud's two phases.

Parts are folded one at a time in float64 in the order in which the caller gives them (name order), so the
sum is the same to the bit whatever the order of arrival, and memory stays at a fixed number of model copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedbac_edge.parts.part import Part

Scope = Literal["global", "cluster"]

# Far above any count of samples, and small enough that weight * float32 cannot overflow in float64.
MAX_WEIGHT = 2.0**53


class AggregationError(ValueError):
    """Parts that cannot be averaged: other tensors or shapes, or a weight that is no weight."""


@dataclass(frozen=True)
class Report:
    """What one server hands in: a weight per role, and a way to read one role's part when it is needed.

    A role without a weight was not reported. `load` is called once per role with a positive weight.
    """

    weights: Mapping[str, float]
    load: Callable[[str], Part]

    @classmethod
    def of(cls, weight: float, parts: Mapping[str, Part]) -> Report:
        """A report whose parts are in memory and weigh the same."""
        held = dict(parts)
        return cls(dict.fromkeys(held, weight), held.__getitem__)


@dataclass(frozen=True)
class Contribution:
    """One update of one part: what it weighs, and a way to read it, each time that it is needed."""

    weight: float
    load: Callable[[], Part]


Combine = Callable[[str, Sequence[Contribution]], Part | None]
"""The rule: (part name, contributions in name order) to the new part, None to keep the old one."""


def weighted_mean(items: Iterable[tuple[Part, float]]) -> Part | None:
    """sum w_i theta_i / sum w_i, folded in float64 in the given order, returned in the tensors' own dtype.

    `items` may be a generator that reads one part at a time. A weight of zero takes no part. Integer tensors
    (counters, buffers) are not averaged: those of the first part that weighs are kept. None when nothing
    weighs: the caller keeps what it had. Raises AggregationError for a negative, huge or non-finite weight
    and for parts whose tensors, shapes or dtypes differ.
    """
    sums: dict[str, npt.NDArray[Any]] = {}
    dtypes: dict[str, np.dtype[Any]] = {}
    total = 0.0
    for part, weight in items:
        _check_weight(weight)
        if weight == 0:
            continue
        if total == 0:
            dtypes = {name: tensor.dtype for name, tensor in part.items()}
            sums = {name: _weigh(tensor, weight) for name, tensor in part.items()}
        else:
            _check_like(part, sums, dtypes)
            for name, kept in sums.items():
                if np.issubdtype(dtypes[name], np.floating):
                    kept += _weigh(part[name], weight)
        total += weight
    if total == 0:
        return None
    return {
        name: (kept / total).astype(dtypes[name]) if np.issubdtype(dtypes[name], np.floating) else kept
        for name, kept in sums.items()
    }


def part_name(role: str, cluster: int | None = None) -> str:
    """The name of a part: the role itself when it is global, "role-3" for cluster 3."""
    return role if cluster is None else f"{role}-{cluster}"


def phases(
    reports: Mapping[str, Report],
    scopes: Mapping[str, Scope],
    assignment: Mapping[str, int],
    clusters: int,
    combine: Combine | None = None,
) -> Iterator[tuple[str, Part | None]]:
    """The cloud's two phases (Fed-BAC), one part at a time: (part name, mean, or None to keep the old).

    Phase 1 averages every global role over all servers that reported it, phase 2 every cluster role over
    those of each cluster 0 .. clusters - 1; servers in name order. What weights are (a server's total data,
    or its participants' only) is the caller's choice, and so is another rule than the weighted mean
    (`combine`, called only for parts that were reported). Raises AggregationError at once for a report
    of a server that has no cluster, an unknown role, or a weight that is no weight.
    """
    for server, report in sorted(reports.items()):
        if unknown := sorted(set(report.weights) - set(scopes)):
            raise AggregationError(f"{server} reports {', '.join(unknown)}; roles are: {', '.join(scopes)}")
        for weight in report.weights.values():
            _check_weight(weight)
        if "cluster" in scopes.values() and not 0 <= assignment.get(server, -1) < clusters:
            raise AggregationError(f"{server} reported but is in none of the {clusters} clusters")
    return _phases(reports, scopes, assignment, clusters, combine or _mean)


def two_phase(
    old: Mapping[str, Part],
    reports: Mapping[str, Report],
    scopes: Mapping[str, Scope],
    assignment: Mapping[str, int],
    clusters: int,
) -> dict[str, Part]:
    """`phases` applied to parts in memory: the new parts by name; those without a report are the old ones."""
    fresh = phases(reports, scopes, assignment, clusters)
    return {**old, **{name: part for name, part in fresh if part is not None}}


def _phases(
    reports: Mapping[str, Report],
    scopes: Mapping[str, Scope],
    assignment: Mapping[str, int],
    clusters: int,
    combine: Combine,
) -> Iterator[tuple[str, Part | None]]:
    def new(name: str, role: str, members: list[str]) -> tuple[str, Part | None]:
        contributions = _contributions(reports, members, role)
        return name, combine(name, contributions) if contributions else None

    servers = sorted(reports)
    for role in (role for role, scope in scopes.items() if scope == "global"):
        yield new(part_name(role), role, servers)
    for role in (role for role, scope in scopes.items() if scope == "cluster"):
        for cluster in range(clusters):
            members = [server for server in servers if assignment[server] == cluster]
            yield new(part_name(role, cluster), role, members)


def _mean(name: str, contributions: Sequence[Contribution]) -> Part | None:
    return weighted_mean((each.load(), each.weight) for each in contributions)


def _contributions(reports: Mapping[str, Report], servers: list[str], role: str) -> list[Contribution]:
    return [
        Contribution(reports[server].weights[role], partial(reports[server].load, role))
        for server in servers
        if reports[server].weights.get(role, 0.0) > 0
    ]


def _weigh(tensor: npt.NDArray[Any], weight: float) -> npt.NDArray[Any]:
    if np.issubdtype(tensor.dtype, np.floating):
        # asarray: numpy makes a scalar of a product without dimensions, which cannot be added to in place.
        return np.asarray(np.multiply(tensor, weight, dtype=np.float64))
    return tensor.copy()


def _check_weight(weight: float) -> None:
    if not (isfinite(weight) and 0 <= weight <= MAX_WEIGHT):
        raise AggregationError(f"a weight is a finite number from 0 to 2^53, not {weight}")


def _check_like(
    part: Part, sums: Mapping[str, npt.NDArray[Any]], dtypes: Mapping[str, np.dtype[Any]]
) -> None:
    if part.keys() != sums.keys():
        raise AggregationError(f"a part holds the tensors {sorted(part)}, the first {sorted(sums)}")
    for name, tensor in part.items():
        if tensor.shape != sums[name].shape or tensor.dtype != dtypes[name]:
            raise AggregationError(
                f"{name}: {tensor.dtype} {tensor.shape} cannot be averaged with "
                f"{dtypes[name]} {sums[name].shape}"
            )
