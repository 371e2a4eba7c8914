"""Parts that stay fixed, and parts that train in turn (Fed-CAM), on every path."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from fedbac_edge.learning.local import train_jointly
from fedbac_edge.learning.reference import train_reference
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import Part
from fedbac_edge.vocabulary.training import Backend, LocalTraining, Normalisation

Labelled = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
MakeParts = Callable[..., dict[str, Part]]
MakeSettings = Callable[..., LocalTraining]
GRAY = LeNet()


def equal(one: Part, other: Part) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("still", ["a", "b"])
def test_a_frozen_part_counts_in_the_sum_and_does_not_move(
    backend: Backend,
    still: str,
    fashion: Labelled,
    gray: Normalisation,
    make_parts: MakeParts,
    make_settings: MakeSettings,
) -> None:
    parts, (x, y) = make_parts(GRAY, "a", "b"), fashion
    settings = make_settings(epochs=2, l2={"b": 1e-3}, frozen=(still,))
    found = train_jointly(GRAY, parts, x[:150], y[:150], settings, gray, [1, 2], backend=backend)
    expected = train_reference(GRAY, parts, x[:150], y[:150], settings, gray, [1, 2])
    moves = "b" if still == "a" else "a"
    assert equal(found.parts[still], parts[still])
    assert not equal(found.parts[moves], parts[moves])
    assert found.loss == pytest.approx(expected.loss, rel=1e-3)
    for name, tensor in expected.parts[moves].items():
        change = tensor - parts[moves][name]
        difference = np.abs(found.parts[moves][name] - tensor).max()
        assert difference <= 0.02 * np.abs(change).max() + 1e-7, name
    alone = train_reference(
        GRAY, {moves: parts[moves]}, x[:150], y[:150], make_settings(epochs=2, l2={}), gray, [1, 2]
    )
    assert abs(alone.loss - expected.loss) > 1e-4  # the residual is another problem than the labels


def test_turns_are_trainings_with_the_others_fixed_one_after_another(
    backend: Backend,
    fashion: Labelled,
    gray: Normalisation,
    make_parts: MakeParts,
    make_settings: MakeSettings,
) -> None:
    """Five epochs in two turns: three and two."""
    parts, (x, y) = make_parts(GRAY, "a", "b"), fashion
    x, y = x[:100], y[:100]
    calls: list[tuple[int, int]] = []
    settings = make_settings(epochs=5, l2={}, turns=(("b",), ("a",)))
    both = train_jointly(
        GRAY,
        parts,
        x,
        y,
        settings,
        gray,
        [7],
        progress=lambda done, of: calls.append((done, of)),
        backend=backend,
    )
    first = train_jointly(
        GRAY, parts, x, y, make_settings(epochs=3, l2={}, frozen=("a",)), gray, [7, 0], backend=backend
    )
    second = train_jointly(
        GRAY, first.parts, x, y, make_settings(epochs=2, l2={}, frozen=("b",)), gray, [7, 1], backend=backend
    )
    assert all(equal(both.parts[role], second.parts[role]) for role in ("a", "b"))
    assert both.steps == first.steps + second.steps == 10
    assert calls == [(step, 10) for step in range(1, 11)]


def test_frozen_and_turns_that_make_no_training_are_refused(
    fashion: Labelled, gray: Normalisation, make_parts: MakeParts, make_settings: MakeSettings
) -> None:
    x, y = fashion
    with pytest.raises(ValueError, match="frozen"):
        train_jointly(
            GRAY, make_parts(GRAY, "a"), x[:8], y[:8], make_settings(l2={}, frozen=("a",)), gray, [1]
        )
    with pytest.raises(ValueError, match="turns"):
        make_settings(epochs=1, turns=(("a",), ("b",)))
