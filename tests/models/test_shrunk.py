"""Smaller forms of an architecture: exact widths and counts (HASSLE's residual models)."""

from __future__ import annotations

import numpy as np
import pytest

from fedbac_edge.models.catalog import LeNet, architecture, parameter_count, shrunk
from fedbac_edge.models.description import UnknownArchitecture


@pytest.mark.parametrize(
    ("numerator", "widths"),
    [
        (1, (1, 1, 8, 5)),
        (2, (1, 2, 15, 11)),
        (4, (2, 4, 30, 21)),
        (8, (3, 8, 60, 42)),
        (16, (6, 16, 120, 84)),
    ],
)
def test_lenet_shrinks_to_these_widths(numerator: int, widths: tuple[int, int, int, int]) -> None:
    full = architecture("lenet", (1, 28, 28), 10)
    assert shrunk(full, numerator) == LeNet((1, 28, 28), 10, widths)


def test_the_residual_of_lenet_has_3077_weights() -> None:
    assert parameter_count(shrunk(architecture("lenet", (1, 28, 28), 10), 4)) == 3_077


def test_shares_outside_of_one_are_refused() -> None:
    for numerator in (0, -1, 17):
        with pytest.raises(ValueError, match="share of the channels"):
            shrunk(LeNet(), numerator)


class Fixed:
    """A user's description that has one size only."""

    input_shape = (1, 28, 28)
    classes = 10

    def schema(self) -> dict[str, tuple[int, ...]]:
        return {"w": (10, 784)}

    def init(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"w": rng.normal(size=(10, 784)).astype(np.float32)}


def test_a_model_without_a_smaller_form_says_what_it_needs() -> None:
    with pytest.raises(UnknownArchitecture, match=r"Fixed has no smaller form: give it a method shrunk"):
        shrunk(Fixed(), 4)
