"""Client selection at the edge by Thompson sampling (Fed-BAC, arXiv 2605.11815).

Each client has a Beta posterior of "the round that I took part in helped". After a uniform warm-up one sample
is drawn per client and the B largest are asked. The reward is the change of the edge-aggregated model's
accuracy on the server's evaluation data, one for all selected clients, counted during the warm-up as well.
When the server changes its cluster the accuracy to compare with must be forgotten by the caller: it is that
of another model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction
from math import floor, isfinite

import msgspec
import numpy as np


class Posterior(msgspec.Struct, frozen=True):
    """Beta(a, b) of one client; Beta(1, 1), the uniform, at the start."""

    a: float = 1.0
    b: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.a < float("inf") and 0 < self.b < float("inf")):
            raise ValueError(f"a Beta posterior needs positive finite parameters, not ({self.a}, {self.b})")


class Selection(msgspec.Struct, frozen=True):
    """The devices asked, in name order, and the draw of every member of the roster (for the ledger)."""

    chosen: tuple[str, ...]
    draws: dict[str, float]


def participants(participation: float, clients: int) -> int:
    """B = max(1, floor(p * N_m)), and 0 of 0.

    `clients` are those that have samples: empty ones are never selected and must not be counted. The product
    is exact in the decimals as written: 0.29 of 100 is 29, where floats give 28.999999999999996.
    Raises ValueError for a participation outside [0, 1] or a negative number of clients.
    """
    if not 0 <= participation <= 1:
        raise ValueError(f"participation is a share from 0 to 1, not {participation}")
    if clients < 0:
        raise ValueError(f"the number of clients cannot be {clients}")
    exact = Fraction(repr(float(participation)))
    return max(1, floor(exact * clients)) if clients else 0


def select(
    posteriors: Mapping[str, Posterior],
    eligible: Collection[str],
    count: int,
    rng: np.random.Generator,
    warm_up: bool,
) -> Selection:
    """Choose `count` of the `eligible` clients, or all of them when they are fewer.

    `posteriors` holds the whole roster. All of its members are drawn for, in name order, so that who is
    eligible never shifts the draw of another. In the warm-up the draws are uniform, which makes the choice
    uniform without replacement; afterwards they are Beta samples. Equal draws go by name.
    Raises ValueError when an eligible client is not on the roster or `count` is negative.
    """
    if count < 0:
        raise ValueError(f"cannot select {count} clients")
    if strangers := sorted(set(eligible) - set(posteriors)):
        raise ValueError(f"eligible but not on the roster: {', '.join(strangers)}")
    roster = sorted(posteriors)
    if warm_up:
        samples = rng.random(len(roster))
    else:
        samples = rng.beta([posteriors[name].a for name in roster], [posteriors[name].b for name in roster])
    draws = dict(zip(roster, samples.tolist(), strict=True))
    best = sorted(set(eligible), key=lambda name: (-draws[name], name))[:count]
    return Selection(tuple(sorted(best)), draws)


def reward(
    posteriors: Mapping[str, Posterior], chosen: Collection[str], improved: bool
) -> dict[str, Posterior]:
    """The posteriors after a round: 1 to `a` of every chosen client if the accuracy rose, else 1 to `b`.

    An accuracy that stayed the same has not risen. Returns the whole roster in name order.
    """
    return reward_softly(posteriors, chosen, 1.0 if improved else 0.0)


def reward_softly(
    posteriors: Mapping[str, Posterior], chosen: Collection[str], credit: float
) -> dict[str, Posterior]:
    """The option "soft credit": `credit` in [0, 1] goes to `a` of every chosen client, the rest of 1 to `b`.

    Raises ValueError for another credit, or when a chosen client is not on the roster.
    """
    if not 0 <= credit <= 1:
        raise ValueError(f"credit is between 0 and 1, not {credit}")
    if strangers := sorted(set(chosen) - set(posteriors)):
        raise ValueError(f"chosen but not on the roster: {', '.join(strangers)}")
    rewarded = set(chosen)
    return {
        name: Posterior(posterior.a + credit, posterior.b + (1.0 - credit)) if name in rewarded else posterior
        for name, posterior in sorted(posteriors.items())
    }


def soft_credit(change: float, scale: float = 0.02) -> float:
    """Credit of an accuracy change: 1/2 for none, 1 from +scale on, 0 from -scale on, linear in between.

    A change that is not finite earns nothing.
    """
    if not scale > 0:
        raise ValueError(f"the scale of soft credit must be positive, not {scale}")
    return min(1.0, max(0.0, 0.5 + change / (2 * scale))) if isfinite(change) else 0.0
