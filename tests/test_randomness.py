"""Generators are made from what they are for."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbac_edge.randomness import generator

PURPOSE = st.lists(st.one_of(st.integers(0, 2**70), st.text(max_size=8)), max_size=4)


def first(seed: int, *purpose: str | int) -> int:
    return int(generator(seed, *purpose).integers(2**63))


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_another_process_draws_the_same(hash_seed: str) -> None:
    """Python's own string hash differs per process and must not leak in."""
    code = "from fedbac_edge.randomness import generator as g; print(g(7, 'edge', 'gw-ü', 3).integers(2**63))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(run.stdout) == first(7, "edge", "gw-ü", 3)


@given(st.integers(0, 2**60), PURPOSE, PURPOSE)
def test_only_equal_purposes_draw_alike(seed: int, one: list[str | int], other: list[str | int]) -> None:
    assert (first(seed, *one) == first(seed, *other)) == (one == other)


def test_purposes_that_numpy_alone_would_confuse() -> None:
    """Zero padding, 32-bit words, numbers written as text, order, neighbouring words."""
    draws = [
        first(7),
        first(7, 0),
        first(7, 0, 0),
        first(7, 2**32),
        first(7, 0, 1),
        first(7, 1, 0),
        first(7, "1", "0"),
        first(7, "10"),
        first(7, "1 number 0"),
        first(8),
    ]
    assert len(set(draws)) == len(draws)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        generator(-1, "edge")
