"""Labels given by a served sum, on real samples, against plain torch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedbac_edge.datasets.samples import UNLABELLED, Samples
from fedbac_edge.learning.local import train_jointly
from fedbac_edge.learning.outcomes import Cancelled
from fedbac_edge.learning.pseudo_labels import pseudo_labelled
from fedbac_edge.models.additive import Additive
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import Part
from fedbac_edge.vocabulary.training import LocalTraining, Normalisation

Labelled = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
MODEL = LeNet()


@pytest.fixture(scope="module")
def trained(fashion: Labelled) -> dict[str, Part]:
    """A global and a cluster part that know a little."""
    parts = {role: MODEL.init(np.random.default_rng(k)) for k, role in enumerate(("global", "cluster"))}
    settings = LocalTraining(
        epochs=4, batch_size=16, learning_rate=0.05, momentum=0.9, weight_decay=0.0, clip_norm=1.0, l2={}
    )
    x, y = fashion[0][:300], fashion[1][:300]
    return train_jointly(MODEL, parts, x, y, settings, Normalisation(mean=(0.286,), std=(0.353,)), [1]).parts


@pytest.fixture
def half(fashion: Labelled) -> Samples:
    """Samples of which every other one has lost its label."""
    x, y = fashion[0][300:], fashion[1][300:].copy()
    y[::2] = UNLABELLED
    return Samples(x.copy(), y)


def probabilities(parts: dict[str, Part], samples: Samples) -> npt.NDArray[np.float64]:
    model = Additive(MODEL, parts).double()
    x = (torch.from_numpy(samples.x).double().permute(0, 3, 1, 2) / 255 - 0.286) / 0.353
    with torch.no_grad():
        found: npt.NDArray[np.float64] = torch.softmax(model(x), dim=1).numpy()
    return found


def served(parts: dict[str, Part]) -> list[tuple[Part, float]]:
    return [(part, 1.0) for part in parts.values()]


def test_labels_are_those_of_the_served_sum(
    trained: dict[str, Part], half: Samples, gray: Normalisation
) -> None:
    expected = probabilities(trained, half).argmax(axis=1)
    found = pseudo_labelled(MODEL, served(trained), half, gray)
    given = half.y != UNLABELLED
    np.testing.assert_array_equal(found.x, half.x)
    np.testing.assert_array_equal(found.y[given], half.y[given])
    np.testing.assert_array_equal(found.y[~given], expected[~given])
    assert not np.array_equal(found.y[given], expected[given])  # labels of people are not replaced
    assert np.count_nonzero(half.y == UNLABELLED) == 150  # nor is the caller's array written to


def test_samples_under_the_threshold_are_left_out(
    trained: dict[str, Part], half: Samples, gray: Normalisation
) -> None:
    p = probabilities(trained, half)
    stays = (half.y != UNLABELLED) | (p.max(axis=1) >= 0.7)
    assert 150 < np.count_nonzero(stays) < 300
    found = pseudo_labelled(MODEL, served(trained), half, gray, confidence=0.7)
    np.testing.assert_array_equal(found.x, half.x[stays])
    np.testing.assert_array_equal(found.y, np.where(half.y == UNLABELLED, p.argmax(axis=1), half.y)[stays])


def test_nothing_sure_leaves_the_labelled_samples_alone(
    make_parts: Callable[..., dict[str, Part]], half: Samples, gray: Normalisation
) -> None:
    fresh = served(make_parts(MODEL, "global", "cluster"))
    assert len(pseudo_labelled(MODEL, fresh, half, gray, confidence=0.99)) == 150
    bare = half.take(half.y == UNLABELLED)
    assert len(pseudo_labelled(MODEL, fresh, bare, gray, confidence=0.99)) == 0
    assert len(pseudo_labelled(MODEL, fresh, bare, gray)) == 150


def test_samples_that_all_have_labels_come_back(
    trained: dict[str, Part], fashion: Labelled, gray: Normalisation
) -> None:
    samples = Samples(*fashion)
    assert pseudo_labelled(MODEL, served(trained), samples, gray, confidence=0.9) is samples


def test_self_training_on_the_union_is_the_objective_weighted_by_kind(
    trained: dict[str, Part], half: Samples, gray: Normalisation, make_settings: Callable[..., Any]
) -> None:
    """One step over everything moves the parts as the weighted sum of both kinds' gradients does."""
    union = pseudo_labelled(MODEL, served(trained), half, gray, confidence=0.5)
    settings = make_settings(
        batch_size=len(union), learning_rate=0.1, momentum=0.0, weight_decay=0.0, clip_norm=1e6
    )
    moved = train_jointly(MODEL, trained, union.x, union.y, settings, gray, [3]).parts

    p = probabilities(trained, half)
    model = Additive(MODEL, trained).double()
    bare = half.y == UNLABELLED
    kinds = [(half.x[~bare], half.y[~bare])]
    sure = bare & (p.max(axis=1) >= 0.5)
    kinds.append((half.x[sure], p.argmax(axis=1)[sure]))
    total = sum(len(y) for _, y in kinds)
    assert total == len(union)
    for x, y in kinds:
        images = (torch.from_numpy(x).double().permute(0, 3, 1, 2) / 255 - 0.286) / 0.353
        loss = torch.nn.functional.cross_entropy(model(images), torch.from_numpy(y))
        (loss * len(y) / total).backward()  # type: ignore[no-untyped-call]
    for role, part in trained.items():
        for name, weights in model.part(role).named_parameters():
            assert weights.grad is not None
            expected = part[name] - 0.1 * weights.grad.numpy()
            np.testing.assert_allclose(moved[role][name], expected, atol=2e-6)


def test_it_stops_when_asked(trained: dict[str, Part], half: Samples, gray: Normalisation) -> None:
    with pytest.raises(Cancelled):
        pseudo_labelled(MODEL, served(trained), half, gray, cancelled=lambda: True)
    with pytest.raises(ValueError, match="at least one part"):
        pseudo_labelled(MODEL, [], half, gray)
