"""Who is held out: decided by each sample's own pixels, whatever surrounds it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbac_edge.datasets.holdout import content_hashes, split
from fedbac_edge.datasets.samples import Samples
from fedbac_edge.datasets.sources import load

FASHION = Path("/usr/share/datasets/fashion-mnist")
PINNED = [15987791139996029811, 11591198621020082887, 7149639062308189858]


def samples_of(keys: list[int]) -> Samples:
    """One sample per key: equal keys give equal pixels; the label tells the position."""
    x = np.array([[key // 256, key % 256] * 2 for key in keys], dtype=np.uint8).reshape(-1, 2, 2, 1)
    return Samples(x, np.arange(len(keys)))


def held_keys(keys: list[int], fraction: float = 0.3) -> set[int]:
    return {keys[position] for position in split(samples_of(keys), fraction)[1].y}


def key_lists(least: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 65_535), min_size=least, max_size=80)


@given(key_lists(10), st.randoms(use_true_random=False), st.floats(0, 0.9))
def test_order_changes_nothing(keys: list[int], random: object, fraction: float) -> None:
    shuffled = list(keys)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert held_keys(shuffled, fraction) == held_keys(keys, fraction)


@given(key_lists(10), key_lists(0))
def test_growth_moves_no_sample(keys: list[int], more: list[int]) -> None:
    """The one exception is documented: data that would be held out entirely is trained on."""
    before, after = held_keys(keys), held_keys(keys + more)
    threshold = np.uint64(int(0.3 * 2**64))
    if bool((content_hashes(samples_of(keys).x) < threshold).all()):
        assert before == set()
    else:
        assert after & set(keys) == before


@given(key_lists(10))
def test_duplicates_fall_on_one_side_and_nothing_is_lost(keys: list[int]) -> None:
    train, held = split(samples_of(keys + keys), 0.3)
    sides = [{keys[position % len(keys)] for position in part.y} for part in (train, held)]
    assert not sides[0] & sides[1]
    assert sorted([*train.y, *held.y]) == list(range(2 * len(keys)))
    assert np.all(np.diff(train.y) > 0)  # the order of the samples is kept
    assert np.all(np.diff(held.y) > 0)


def test_a_corrected_label_moves_nothing() -> None:
    samples = samples_of(list(range(500)))
    relabelled = Samples(samples.x, samples.y[::-1].copy())
    assert np.array_equal(split(samples)[1].x, split(relabelled)[1].x)


def test_membership_is_the_same_in_every_release() -> None:
    """Another hash would train on what earlier releases held out: these values must never change."""
    assert content_hashes(samples_of([0, 1, 513]).x).tolist() == PINNED


def test_fewer_than_ten_samples_hold_nothing_out() -> None:
    keys = [key for key in range(300) if key in held_keys(list(range(300)))][:9]
    assert len(keys) == 9
    train, held = split(samples_of(keys), 0.3)
    assert (len(train), len(held)) == (9, 0)
    assert held.x.shape == (0, 2, 2, 1)
    assert len(split(samples_of([*keys, 7, 8, 9]), 0.3)[1]) >= 9


def test_never_everything_is_held_out() -> None:
    chosen = min(held_keys(list(range(300)), 0.1))
    train, held = split(samples_of([chosen] * 50), 0.1)
    assert (len(train), len(held)) == (50, 0)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_impossible_fractions(fraction: float) -> None:
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        split(samples_of([1]), fraction)


def test_no_samples_at_all() -> None:
    empty = Samples(np.zeros((0, 2, 2, 1), dtype=np.uint8), np.zeros(0, dtype=np.int64))
    assert [len(part) for part in split(empty, 0.1, minimum=0)] == [0, 0]


@pytest.mark.skipif(not FASHION.is_dir(), reason="Fashion-MNIST is not installed")
def test_a_tenth_of_real_images_of_every_class() -> None:
    samples = load(FASHION, classes=[str(n) for n in range(10)], input_shape=(1, 28, 28), split="test")
    held = split(samples)[1]
    assert abs(len(held) - 1_000) < 4 * 30  # four standard deviations of the binomial
    assert np.bincount(held.y, minlength=10).min() > 60
