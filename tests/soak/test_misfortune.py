"""Whole federations in the virtual world: every write point, and as many seeds as the time allows."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from fedbac_edge.lab.trials import trials

pytestmark = pytest.mark.soak

Record = Callable[[str], None]
SMALL: trials.Shape = (1, 1, 2, "float32")
ENCODED: trials.Shape = (1, 1, 2, "int8")
SWEPT: trials.Shape = (2, 2, 3, "int8")


@pytest.mark.parametrize(
    ("shape", "roles"),
    [(SMALL, ("cloud", "gw1", "d11")), (ENCODED, ("cloud", "gw1", "d11")), (SWEPT, ("cloud", "gw1", "d12"))],
)
def test_every_write_point_of_every_role(shape: trials.Shape, roles: tuple[str, ...], record: Record) -> None:
    began, tried = time.monotonic(), 0
    for role in roles:
        for point in range(1, trials.undisturbed(shape)[2][role] + 1):
            outcome = trials.die_at(shape, role, [point])
            assert not outcome.wrong, outcome
            assert outcome.deaths == 1, outcome
            tried += 1
    record(f"write points {shape} of {', '.join(roles)}: {tried} deaths, {time.monotonic() - began:.0f} s")


def test_two_deaths_close_together(record: Record) -> None:
    """The second one while the process comes back from the first."""
    tried = 0
    for role in ("cloud", "gw1", "d11"):
        for point in range(1, trials.undisturbed(ENCODED)[2][role] + 1, 3):
            for distance in (1, 2, 5):
                outcome = trials.die_at(ENCODED, role, [point, point + distance])
                assert not outcome.wrong, outcome
                tried += 1
    record(f"double deaths: {tried}")


def test_seeds(seconds: float, first_seed: int, record: Record) -> None:
    began, seed, deaths = time.monotonic(), first_seed, 0
    wrong = []
    while time.monotonic() - began < seconds:
        outcome = trials.run(seed)
        deaths += outcome.deaths
        if outcome.wrong:
            wrong.append(f"python -m fedbac_edge.lab.trials.trials {seed}: {outcome.wrong}")
            record(wrong[-1])
        seed += 1
    record(
        f"seeds {first_seed}:{seed}: {seed - first_seed} federations, {deaths} deaths at write points, "
        f"{len(wrong)} failures"
    )
    assert seed - first_seed >= 100
    assert wrong == []
