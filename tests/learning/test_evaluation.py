from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedbac_edge.learning.evaluation import evaluate, evaluate_candidates
from fedbac_edge.learning.normalise import normalise
from fedbac_edge.learning.outcomes import Evaluation
from fedbac_edge.models.additive import load, network
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import Part
from fedbac_edge.vocabulary.training import Normalisation

GRAY = LeNet()
Labelled = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
MakeParts = Callable[..., dict[str, Part]]


def one_by_one(
    served: list[tuple[Part, float]],
    x: npt.NDArray[np.uint8],
    y: npt.NDArray[np.int64],
    normalisation: Normalisation,
) -> tuple[int, float]:
    """Correct answers and summed cross-entropy, image by image, in float64."""
    correct, loss = 0, 0.0
    for image, label in zip(x, y, strict=True):
        logits = np.zeros(10)
        for part, coefficient in served:
            module = network(GRAY).double()
            load(module, part)
            with torch.no_grad():
                pixels = torch.from_numpy(normalise(image[None], normalisation)).double()
                logits += coefficient * module(pixels)[0].numpy()
        correct += int(np.argmax(logits) == label)
        loss += float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label])
    return correct, loss


def test_counts_equal_a_naive_loop_with_coefficients(
    fashion_test: Labelled, gray: Normalisation, make_parts: MakeParts
) -> None:
    x, y = fashion_test[0][:90], fashion_test[1][:90]
    parts = make_parts(GRAY, "a", "b", "c")
    served = list(zip(parts.values(), (1.0, 0.5, -2.0), strict=True))
    correct, loss = one_by_one(served, x, y, gray)
    result = evaluate(GRAY, served, x, y, gray, batch_size=32)
    assert (result.count, result.correct) == (90, correct)
    assert result.loss_sum == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 7, 300, 1000])
def test_the_batch_size_does_not_change_the_counts(
    batch_size: int, fashion_test: Labelled, gray: Normalisation, make_parts: MakeParts
) -> None:
    served = [(part, 1.0) for part in make_parts(GRAY, "global", "cluster").values()]
    whole = evaluate(GRAY, served, *fashion_test, gray)
    cut = evaluate(GRAY, served, *fashion_test, gray, batch_size=batch_size)
    assert (cut.count, cut.correct) == (whole.count, whole.correct)
    assert cut.loss_sum == pytest.approx(whole.loss_sum, rel=1e-6)


def test_candidates_are_judged_as_if_each_were_served(
    fashion_test: Labelled, gray: Normalisation, make_parts: MakeParts
) -> None:
    parts = make_parts(GRAY, "global", "k0", "k1", "k2")
    shared = [(parts.pop("global"), 1.0)]
    results = evaluate_candidates(GRAY, shared, parts, *fashion_test, gray)
    assert list(results) == ["k0", "k1", "k2"]
    for name, part in parts.items():
        alone = evaluate(GRAY, [*shared, (part, 1.0)], *fashion_test, gray)
        assert results[name].correct == alone.correct
        assert results[name].loss_sum == pytest.approx(alone.loss_sum, rel=1e-6)


def test_isolated_candidates_need_nothing_shared(
    fashion_test: Labelled, gray: Normalisation, make_parts: MakeParts
) -> None:
    parts = make_parts(GRAY, "k0")
    results = evaluate_candidates(GRAY, [], parts, *fashion_test, gray)
    assert results == {"k0": evaluate(GRAY, [(parts["k0"], 1.0)], *fashion_test, gray)}


def test_float_pixels_count_as_their_bytes_do(
    fashion_test: Labelled, gray: Normalisation, make_parts: MakeParts
) -> None:
    served = [(part, 1.0) for part in make_parts(GRAY, "global").values()]
    x, y = fashion_test
    floats = evaluate(GRAY, served, (x / 255.0).astype(np.float32), y, gray)
    assert floats.correct == evaluate(GRAY, served, x, y, gray).correct


def test_no_samples_count_nothing_and_no_parts_are_refused(
    fashion_test: Labelled, gray: Normalisation, make_parts: MakeParts
) -> None:
    x, y = fashion_test
    served = [(part, 1.0) for part in make_parts(GRAY, "global").values()]
    assert evaluate(GRAY, served, x[:0], y[:0], gray) == Evaluation(0, 0, 0.0)
    with pytest.raises(ValueError, match="at least one part"):
        evaluate(GRAY, [], x, y, gray)
    with pytest.raises(ValueError, match=r"conv1\.bias"):
        evaluate(GRAY, [({**served[0][0], "conv1.bias": np.zeros(7, np.float32)}, 1.0)], x, y, gray)
