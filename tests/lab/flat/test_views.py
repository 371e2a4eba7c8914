"""Augmented views, and the order in which samples are dealt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedbac_edge.lab.flat.augmentation import strong, weak
from fedbac_edge.lab.flat.dealing import deal

Pictures = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture(scope="module", params=[(28, 28, 1), (32, 32, 3)])
def batch(request: pytest.FixtureRequest) -> Pictures:
    return np.random.default_rng(4).integers(0, 256, (24, *request.param), dtype=np.uint8)


@pytest.mark.parametrize("view", [weak, strong])
def test_views_repeat_with_their_seed_and_leave_the_pictures(view: Any, batch: Pictures) -> None:
    before = batch.copy()
    one, again, other = (view(batch, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(batch, before)
    np.testing.assert_array_equal(one, again)
    assert one.shape == batch.shape
    assert one.dtype == np.uint8
    assert (one != other).any()
    assert view(batch[:0], np.random.default_rng(1)).shape == (0, *batch.shape[1:])


def test_a_weak_view_is_a_shift_by_an_eighth_at_most(batch: Pictures) -> None:
    """The middle of each view is found in its picture, flipped only when it has colours."""
    count, height, width, channels = batch.shape
    most = height // 8
    views = weak(batch, np.random.default_rng(3))
    flips = [False, True] if channels > 1 else [False]
    found = []
    for picture, view in zip(batch, views, strict=True):
        middle = view[most : height - most, most : width - most]
        for flip in flips:
            source = picture[:, ::-1] if flip else picture
            for down in range(-most, most + 1):
                for right in range(-most, most + 1):
                    rows = slice(most + down, height - most + down)
                    if (source[rows, most + right : width - most + right] == middle).all():
                        found.append((flip, down, right))
    assert len(found) == count
    assert len(set(found)) > count // 2
    assert {flip for flip, _, _ in found} == set(flips)


def test_strong_views_differ_more_than_weak_ones(batch: Pictures) -> None:
    smooth = np.broadcast_to(np.linspace(0, 250, batch.shape[1])[None, :, None, None], batch.shape)
    plain = smooth.astype(np.uint8)
    far = [
        np.abs(view(plain, np.random.default_rng(1)).astype(float) - plain).mean() for view in (weak, strong)
    ]
    assert far[1] > 1.5 * far[0]


def dealt(labelled: int, unlabelled: int, epochs: int = 2) -> list[tuple[list[int], list[int]]]:
    steps = deal(labelled, unlabelled, epochs, 4, np.random.default_rng(1))
    return [(here.tolist(), there.tolist()) for here, there in steps]


def test_an_epoch_passes_once_over_the_larger_kind() -> None:
    steps = dealt(3, 10)
    assert len(steps) == 6
    for epoch in (steps[:3], steps[3:]):
        assert sorted(place for _, there in epoch for place in there) == list(range(10))
    assert all(sorted(here) == [0, 1, 2] for here, _ in steps)  # smaller than a batch: dealt whole


def test_the_smaller_kind_is_shuffled_anew_when_it_is_dealt() -> None:
    steps = dealt(9, 6)
    there = [place for _, positions in steps for place in positions]
    assert [sorted(there[k : k + 6]) for k in (0, 6, 12)] == [list(range(6))] * 3
    assert len({tuple(there[k : k + 6]) for k in (0, 6, 12)}) > 1


def test_a_kind_that_is_not_there_is_an_empty_batch() -> None:
    assert all(here == [] and there for here, there in dealt(0, 5))
    assert all(there == [] and here for here, there in dealt(5, 0))
    assert dealt(0, 0) == []
