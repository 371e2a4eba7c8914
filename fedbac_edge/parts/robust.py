"""Averages that a minority of hostile updates cannot pull where it likes.

Every rule is applied to one part at a time, over the updates of that part. Sources:
- `clip`: each step (update - base) is shortened to a norm before the weighted mean; never the weights
  themselves. The norm is given, or the median of the round's norms (Sun et al., "Can You Really Backdoor
  Federated Learning?", 2019; the median as in Nguyen et al., "FLAME", USENIX Security 2022).
- `trimmed-mean`, `median`: per coordinate (Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018).
- `multi-krum`: the mean of the n - f updates that lie closest to their n - f - 2 neighbours (Blanchard et
  al., "Machine Learning with Adversaries", NeurIPS 2017).

How many samples a device has is its own word. Where samples weigh (`clip`, `multi-krum`) a weight counts at
most twice the median one; the coordinate rules weigh all alike. All sums are in float64. Rules that compare
updates hold a window of the coordinates at a time, so memory does not grow with the number of devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, prod
from statistics import median
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedbac_edge.parts.aggregation import AggregationError, Contribution, weighted_mean
from fedbac_edge.parts.part import Part, distance, is_finite, is_statistic

RuleName = Literal["mean", "clip", "trimmed-mean", "median", "multi-krum"]
Float64 = npt.NDArray[np.float64]

WINDOW = 4_000_000
"""Numbers that a rule holds at once: 32 MB."""
WEIGHT_CAP = 2.0
"""In medians of the round's weights."""
MAJORITY = 3
"""Fewer have no majority: the median of two is their mean."""


@dataclass(frozen=True)
class Rule:
    """How a tier averages. `clip_norm` 0: the median norm; `hostile`: the share that may be hostile."""

    name: RuleName = "mean"
    clip_norm: float = 0.0
    hostile: float = 0.2

    def outliers(self, count: int) -> int:
        """How many of `count` updates may be hostile: trimmed at either end, f of multi-Krum."""
        return floor(self.hostile * count + 1e-9)  # 0.29 * 100 is a little below 29


def unsupported(rule: Rule, count: int) -> str:
    """Why `rule` does not protect over `count` updates; "" when it does."""
    if rule.name in ("trimmed-mean", "multi-krum"):
        outliers = rule.outliers(count)
        if outliers == 0:
            return (
                f"{rule.name} with a hostile share of {rule.hostile:g} leaves out none of {count} updates, "
                f"it needs {ceil(1 / rule.hostile - 1e-9)}"
            )
        if rule.name == "multi-krum" and count < 2 * outliers + 3:
            return (
                f"multi-krum against {outliers} of {count} updates needs {2 * outliers + 3} (n >= 2f + 3); "
                "expect a smaller hostile share"
            )
    elif count < MAJORITY and (rule.name == "median" or (rule.name == "clip" and not rule.clip_norm)):
        return f"{rule.name} needs {MAJORITY} updates to have a majority, there are {count}"
    return ""


def combine(rule: Rule, updates: Sequence[Contribution], base: Part) -> Part | None:
    """One part from the `updates` of it, all trained from `base`; in the order given (name order).

    float32 in and out. None when nothing weighs. Raises AggregationError when `unsupported`, for a weight
    that is no weight, and for an update that holds a number that is not finite.
    """
    updates = [update for update in updates if update.weight != 0]
    if not updates:
        return None
    if reason := unsupported(rule, len(updates)):
        raise AggregationError(reason)
    match rule.name:
        case "mean":
            return weighted_mean((_checked(update), update.weight) for update in updates)
        case "clip":
            return _clipped_mean(updates, base, rule.clip_norm)
        case "trimmed-mean":
            return _by_coordinate(updates, rule.outliers(len(updates)))
        case "median":
            return _by_coordinate(updates, (len(updates) - 1) // 2)
        case "multi-krum":
            outliers = rule.outliers(len(updates))
            order = krum_order(_squared_distances(updates), len(updates) - outliers - 2)
            chosen = [updates[i] for i in sorted(order[: len(updates) - outliers])]
            weights = capped([update.weight for update in chosen])
            return weighted_mean((update.load(), weights[i]) for i, update in enumerate(chosen))


def capped(weights: Sequence[float]) -> list[float]:
    """No weight above twice the median: one device cannot outweigh the others by its word."""
    most = WEIGHT_CAP * median(weights)
    return [min(weight, most) for weight in weights]


def krum_order(squares: Float64, neighbours: int) -> list[int]:
    """Indices by the sum of squared distances to the closest `neighbours`, smallest first, ties by index.

    `squares` is (n, n), symmetric, with zeros on the diagonal.
    """
    others = squares + np.diag(np.full(len(squares), np.inf))  # no update is a neighbour of itself
    scores = np.sort(others, axis=1)[:, :neighbours].sum(axis=1)
    return [int(index) for index in np.argsort(scores, kind="stable")]


def _clipped_mean(updates: Sequence[Contribution], base: Part, clip_norm: float) -> Part:
    """base + sum w_i min(1, c / |d_i|) d_i / sum w_i, with d_i = update - base.

    Running statistics are clipped by themselves, at the median of their norms: in other units than the
    weights, they would hide those in a common norm. Each step stays within (base, update), so no variance
    falls below zero.
    """
    weights = capped([update.weight for update in updates])
    statistics = frozenset(filter(is_statistic, base))
    groups = [(frozenset(base) - statistics, clip_norm), (statistics, 0.0)]
    fresh: Part = {}
    for names, most in groups:
        if names:
            fresh |= _clipped_steps(updates, weights, {n: t for n, t in base.items() if n in names}, most)
    return {name: fresh[name] for name in base}


def _clipped_steps(
    updates: Sequence[Contribution], weights: Sequence[float], base: Part, clip_norm: float
) -> Part:
    """The clipped mean of the tensors of `base` alone."""
    norms = [distance({n: p[n] for n in base}, base) for p in map(_checked, updates)]
    most = clip_norm or median(norms)
    steps = {name: np.zeros(tensor.shape, np.float64) for name, tensor in base.items()}
    for update, norm, weight in zip(updates, norms, weights, strict=True):
        factor = weight * (most / norm if norm > most else 1.0)
        part = update.load()
        for name, step in steps.items():
            step += factor * (part[name].astype(np.float64) - base[name])
    total = sum(weights)
    return {name: np.asarray(base[name] + step / total, np.float32) for name, step in steps.items()}


def _by_coordinate(updates: Sequence[Contribution], trimmed: int) -> Part:
    """The unweighted mean of what is left of each coordinate without its `trimmed` largest and smallest.

    All but one or two trimmed, it is the median.
    """
    shapes = _shapes(updates)
    flat = {name: np.empty(prod(shape), np.float32) for name, shape in shapes.items()}
    for window, rows in _windows(updates, shapes):
        left = np.sort(rows, axis=0)[trimmed : len(updates) - trimmed].mean(axis=0)
        at = 0
        for name, start, stop in window:
            flat[name][start:stop] = left[at : at + stop - start]
            at += stop - start
    return {name: flat[name].reshape(shape) for name, shape in shapes.items()}


def _squared_distances(updates: Sequence[Contribution]) -> Float64:
    """(n, n): summed squares of differences. Never |x|^2 + |y|^2 - 2xy, which cancels."""
    squares = np.zeros((len(updates), len(updates)))
    for _, rows in _windows(updates, _shapes(updates)):
        for i in range(len(rows)):
            for j in range(i + 1, len(rows)):
                squares[i, j] += np.square(rows[i] - rows[j]).sum()
    return squares + squares.T


Piece = tuple[str, int, int]
"""Tensor, first and last + 1 of its coordinates in C order."""


def _windows(
    updates: Sequence[Contribution], shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[list[Piece], Float64]]:
    """Windows over all coordinates, and every update's numbers there: (updates, width), float64."""
    for window in _pieces(shapes, max(1, WINDOW // len(updates))):
        rows = np.empty((len(updates), sum(stop - start for _, start, stop in window)))
        for row, update in zip(rows, updates, strict=True):
            part = update.load()
            np.concatenate([part[name].reshape(-1)[a:b] for name, a, b in window], out=row)
        if not np.isfinite(rows).all():
            raise AggregationError("an update holds a number that is not finite")
        yield window, rows


def _pieces(shapes: Mapping[str, tuple[int, ...]], width: int) -> Iterator[list[Piece]]:
    window: list[Piece] = []
    free = width
    for name, shape in shapes.items():
        start, size = 0, prod(shape)
        while start < size:
            stop = min(size, start + free)
            window.append((name, start, stop))
            free -= stop - start
            start = stop
            if free == 0:
                yield window
                window, free = [], width
    if window:
        yield window


def _shapes(updates: Sequence[Contribution]) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in updates[0].load().items()}


def _checked(update: Contribution) -> Part:
    part = update.load()
    if not is_finite(part):
        raise AggregationError("an update holds a number that is not finite")
    return part
