"""How long a round may take."""

from __future__ import annotations

import pytest

from fedbac_edge.protocol.collecting import FIRST_FACTOR, SHARE, adaptive, share


def test_the_first_round_has_ten_times_the_lower_bound() -> None:
    assert adaptive([], 60.0, 3600.0) == FIRST_FACTOR * 60.0
    assert adaptive([], 60.0, 300.0) == 300.0


@pytest.mark.parametrize(
    ("past", "expected"),
    [
        ([100.0], 200.0),
        ([1.0], 60.0),
        ([5000.0], 3600.0),
        ([float(s) for s in range(101, 121)], 2 * 119.0),  # the 19th of twenty
        ([100.0] * 18 + [900.0] * 2, 1800.0),
        ([100.0] * 19 + [900.0], 200.0),
    ],
)
def test_twice_the_ninetieth_percentile_within_bounds(past: list[float], expected: float) -> None:
    assert adaptive(past, 60.0, 3600.0) == expected
    assert adaptive(past[::-1], 60.0, 3600.0) == expected


def test_each_tier_leaves_the_one_above_time_to_close() -> None:
    assert share(share(1000.0)) == pytest.approx(1000.0 * SHARE**2)
    assert SHARE < 1
