from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from fedbac_edge.learning.batches import batches
from fedbac_edge.learning.evaluation import evaluate
from fedbac_edge.learning.outcomes import Cancelled, LocalUpdate
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import Part, pack
from fedbac_edge.vocabulary.training import LocalTraining, Normalisation

GRAY = LeNet()
Labelled = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
Train = Callable[..., LocalUpdate]
MakeParts = Callable[..., dict[str, Part]]
MakeSettings = Callable[..., LocalTraining]


def test_batches_cover_every_sample_once_an_epoch_in_a_new_order() -> None:
    drawn = list(batches(10, 2, 4, [3]))
    assert [len(chosen) for _, chosen in drawn] == [4, 4, 2, 4, 4, 2]
    orders = [np.concatenate([c for e, c in drawn if e == epoch]) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert not np.array_equal(orders[0], orders[1])


def test_training_lowers_the_loss_on_unseen_images(
    train: Train,
    fashion: Labelled,
    fashion_test: Labelled,
    gray: Normalisation,
    make_parts: MakeParts,
    make_settings: MakeSettings,
) -> None:
    parts = make_parts(GRAY, "global", "cluster")
    update = train(GRAY, parts, *fashion, make_settings(epochs=12, l2={"cluster": 1e-3}), gray, [5])
    before = evaluate(GRAY, [(part, 1.0) for part in parts.values()], *fashion_test, gray)
    after = evaluate(GRAY, [(part, 1.0) for part in update.parts.values()], *fashion_test, gray)
    assert after.loss_sum < 0.7 * before.loss_sum
    assert after.correct > before.correct + 60
    assert 0 < update.loss < before.loss_sum / before.count


def test_samples_and_steps_are_counted_once_and_with_the_short_batch(
    train: Train, fashion: Labelled, gray: Normalisation, make_parts: MakeParts, make_settings: MakeSettings
) -> None:
    seen: list[tuple[int, int]] = []
    x, y = fashion[0][:70], fashion[1][:70]
    update = train(
        GRAY,
        make_parts(GRAY, "global"),
        x,
        y,
        make_settings(epochs=2),
        gray,
        [1],
        progress=lambda step, steps: seen.append((step, steps)),
    )
    assert (update.samples, update.steps) == (70, 4)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_seed_gives_the_same_bits(
    train: Train,
    threads: int,
    fashion: Labelled,
    gray: Normalisation,
    make_parts: MakeParts,
    make_settings: MakeSettings,
) -> None:
    parts = make_parts(GRAY, "global", "cluster")
    x, y, settings = fashion[0][:150], fashion[1][:150], make_settings(epochs=2, threads=threads)
    one, two, other = (train(GRAY, parts, x, y, settings, gray, [9, seed]) for seed in (1, 1, 2))
    for role in parts:
        assert pack(one.parts[role]) == pack(two.parts[role])
        assert pack(one.parts[role]) != pack(other.parts[role])
    assert one.loss == two.loss


def test_the_parts_given_are_left_alone(
    train: Train, fashion: Labelled, gray: Normalisation, make_parts: MakeParts, make_settings: MakeSettings
) -> None:
    parts = make_parts(GRAY, "global", "cluster")
    before = {role: pack(part) for role, part in parts.items()}
    for part in parts.values():
        for tensor in part.values():
            tensor.flags.writeable = False  # as arrays that were read from bytes are
    train(GRAY, parts, fashion[0][:20], fashion[1][:20], make_settings(), gray, [1])
    assert {role: pack(part) for role, part in parts.items()} == before


def test_float_pixels_train_as_their_bytes_do(
    train: Train, fashion: Labelled, gray: Normalisation, make_parts: MakeParts, make_settings: MakeSettings
) -> None:
    parts, settings = make_parts(GRAY, "global"), make_settings()
    x, y = fashion[0][:64], fashion[1][:64]
    from_bytes = train(GRAY, parts, x, y, settings, gray, [1])
    from_floats = train(GRAY, parts, (x / 255.0).astype(np.float32), y, settings, gray, [1])
    for name, tensor in from_bytes.parts["global"].items():
        np.testing.assert_allclose(from_floats.parts["global"][name], tensor, atol=1e-6)


def test_training_stops_between_steps_when_told(
    train: Train, fashion: Labelled, gray: Normalisation, make_parts: MakeParts, make_settings: MakeSettings
) -> None:
    done: list[int] = []
    with pytest.raises(Cancelled):
        train(
            GRAY,
            make_parts(GRAY, "global"),
            *fashion,
            make_settings(epochs=100),
            gray,
            [1],
            progress=lambda step, _: done.append(step),
            cancelled=lambda: len(done) == 3,
        )
    assert done == [1, 2, 3]


def test_what_does_not_fit_is_named(
    train: Train,
    fashion: Labelled,
    gray: Normalisation,
    rgb: Normalisation,
    make_parts: MakeParts,
    make_settings: MakeSettings,
) -> None:
    x, y = fashion[0][:8], fashion[1][:8]
    parts, settings = make_parts(GRAY, "global"), make_settings()
    with pytest.raises(ValueError, match="no part"):
        train(GRAY, {}, x, y, settings, gray, [1])
    with pytest.raises(ValueError, match="no samples"):
        train(GRAY, parts, x[:0], y[:0], settings, gray, [1])
    with pytest.raises(ValueError, match="28, 28, 1"):
        train(GRAY, parts, x[:, :27], y, settings, gray, [1])
    with pytest.raises(ValueError, match="labels must lie in"):
        train(GRAY, parts, x, y + 10, settings, gray, [1])
    with pytest.raises(ValueError, match="8 int64 labels"):
        train(GRAY, parts, x, y[:7], settings, gray, [1])
    with pytest.raises(ValueError, match="clusters"):
        train(GRAY, parts, x, y, make_settings(l2={"clusters": 1e-3}), gray, [1])
    with pytest.raises(ValueError, match="expected images"):
        train(GRAY, parts, x, y, settings, rgb, [1])
    wrong = {"global": {**parts["global"], "fc1.bias": np.zeros(3, dtype=np.float32)}}
    with pytest.raises(ValueError, match=r"fc1\.bias"):
        train(GRAY, wrong, x, y, settings, gray, [1])
