from __future__ import annotations

import numpy as np
import pytest

from fedbac_edge.learning.normalise import normalise
from fedbac_edge.vocabulary.training import Normalisation


def test_each_channel_is_scaled_by_its_own_mean_and_deviation(rgb: Normalisation) -> None:
    x = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    out = normalise(x, rgb)
    assert out.dtype == np.float32
    assert out.flags.c_contiguous
    expected = (x / 255.0 - np.array(rgb.mean)) / np.array(rgb.std)
    np.testing.assert_allclose(out, expected.transpose(0, 3, 1, 2), rtol=1e-5, atol=1e-6)


def test_float_pixels_in_the_unit_interval_mean_the_same(gray: Normalisation) -> None:
    x = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 1), dtype=np.uint8)
    floats = (x / 255.0).astype(np.float32)
    np.testing.assert_allclose(normalise(floats, gray), normalise(x, gray), rtol=1e-5, atol=1e-6)


def test_other_dtypes_and_channel_counts_are_refused(gray: Normalisation, rgb: Normalisation) -> None:
    with pytest.raises(ValueError, match="float64"):
        normalise(np.zeros((1, 4, 4, 1)), gray)
    with pytest.raises(ValueError, match=r"\(1, 4, 4, 1\)"):
        normalise(np.zeros((1, 4, 4, 1), dtype=np.uint8), rgb)
