"""How long a round may take: twice the 90th percentile of past rounds, within configured bounds.

A deadline travels as a duration and each tier leaves the one above time to close, so that a dead device
costs its own update and not its gateway's. What a round took is the time until the last update that counted:
a device that is gone for good does not draw out the rounds of the others.
"""

from __future__ import annotations

from collections.abc import Sequence

HISTORY = 20
SHARE = 0.9
"""A tier passes this share of its own deadline down."""
FIRST_FACTOR = 10.0
"""The first round knows nothing: ten times the lower bound (models load, caches are cold)."""
PATIENCE = 3
"""So many void rounds in a row tell that what past rounds took says nothing about the next one."""


def adaptive(past: Sequence[float], lower: float, upper: float, voids: int = 0) -> float:
    """Seconds for the next round, from the seconds of past ones that counted.

    A void round is no measure of how long a round takes. But a fleet that has become slower than its deadline
    brings only void rounds: after PATIENCE `voids` in a row a round gets the time of a first one.
    """
    if not past or voids >= PATIENCE:
        return min(upper, max(FIRST_FACTOR * lower, adaptive(past, lower, upper) if past else 0.0))
    ordered = sorted(past)
    ninetieth = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return min(upper, max(lower, 2.0 * ninetieth))


def share(seconds: float) -> float:
    """What is passed down of a deadline."""
    return SHARE * seconds
