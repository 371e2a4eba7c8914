"""The fast paths against plain PyTorch: every tensor, many shapes; and which path is chosen when."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedbac_edge.learning.compiled import CompiledLeNet, kernel_for
from fedbac_edge.learning.fused import FusedLeNet
from fedbac_edge.learning.local import best_backend, train_jointly
from fedbac_edge.learning.normalise import normalise
from fedbac_edge.learning.reference import train_reference
from fedbac_edge.models.additive import Additive
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import Part
from fedbac_edge.vocabulary.training import Backend, LocalTraining, Normalisation

GRAY = LeNet()
RGB = LeNet(input_shape=(3, 32, 32))
# Nothing divides anything: sizes that leave rows and columns unpooled, widths that leave partial blocks.
ODD = LeNet(input_shape=(3, 31, 30), classes=7, widths=(7, 13, 33, 21))
Labelled = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
MakeParts = Callable[..., dict[str, Part]]
MakeSettings = Callable[..., LocalTraining]


@pytest.fixture
def data(fashion: Labelled, colour: Labelled) -> Callable[[LeNet, int], Labelled]:
    """The first images for a model, cut to its size."""

    def take(model: LeNet, count: int) -> Labelled:
        channels, height, width = model.input_shape
        x, y = fashion if channels == 1 else colour
        return np.ascontiguousarray(x[:count, :height, :width]), y[:count] % model.classes

    return take


def change(after: Part, before: Part) -> Part:
    return {name: after[name] - before[name] for name in before}


def assert_close(found: Part, expected: Part, tolerance: float) -> None:
    """Hold each tensor to `tolerance` of its largest entry: single entries may cancel to nearly nothing."""
    for name, tensor in expected.items():
        np.testing.assert_allclose(
            found[name], tensor, rtol=0, atol=tolerance * np.abs(tensor).max(), err_msg=name
        )


@pytest.mark.parametrize("samples", [1, 5, 64])
@pytest.mark.parametrize("roles", [["a"], ["a", "b"], ["a", "b", "c"]], ids=len)
@pytest.mark.parametrize("model", [GRAY, RGB, ODD], ids=["gray", "rgb", "odd"])
def test_the_gradient_of_one_step_is_that_of_autograd(
    backend: Backend,
    samples: int,
    roles: list[str],
    model: LeNet,
    data: Callable[[LeNet, int], Labelled],
    gray: Normalisation,
    rgb: Normalisation,
    make_parts: MakeParts,
    make_settings: MakeSettings,
) -> None:
    parts, (x, y) = make_parts(model, *roles), data(model, samples)
    settings = make_settings()
    images = normalise(x, gray if model.input_shape[0] == 1 else rgb)
    found: dict[str, Part]
    if backend == "fused":
        fused = FusedLeNet(model, parts, settings, "cpu")
        loss = fused.differentiate(images, y)
        found = {r: {n: g[i].numpy() for n, g in fused.grads.items()} for i, r in enumerate(roles)}
    else:
        compiled = CompiledLeNet(kernel_for(model), parts, settings)
        loss, _ = compiled.differentiate(images, y)
        found = dict(zip(roles, map(compiled.kernel.tensors, compiled.gradients[0]), strict=True))
    expected_loss, expected = autograd(model, parts, images, y)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for role in roles:
        assert_close(found[role], expected[role], 1e-4)


def autograd(
    model: LeNet, parts: dict[str, Part], images: npt.NDArray[np.float32], y: npt.NDArray[np.int64]
) -> tuple[float, dict[str, Part]]:
    """Summed loss, and gradients of the mean loss, in float64."""
    additive = Additive(model, parts).double()
    loss = cross_entropy(additive(torch.from_numpy(images).double()), torch.from_numpy(y))
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {}
    for role in parts:
        named = additive.part(role).named_parameters()
        gradients[role] = {name: p.grad.numpy() for name, p in named if p.grad is not None}
    return loss.item() * len(y), gradients


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("model", "roles"), [(GRAY, ["global", "cluster"]), (RGB, ["global", "cluster", "own"])]
)
def test_two_epochs_end_where_plain_pytorch_ends(
    backend: Backend,
    threads: int,
    model: LeNet,
    roles: list[str],
    data: Callable[[LeNet, int], Labelled],
    gray: Normalisation,
    rgb: Normalisation,
    make_parts: MakeParts,
    make_settings: MakeSettings,
) -> None:
    """150 samples in batches of 64: the short last batch (22) is part of it."""
    parts, (x, y) = make_parts(model, *roles), data(model, 150)
    settings = make_settings(epochs=2, l2={"cluster": 1e-2}, threads=threads)
    normalisation = gray if model.input_shape[0] == 1 else rgb
    expected = train_reference(model, parts, x, y, settings, normalisation, [3])
    found = train_jointly(model, parts, x, y, settings, normalisation, [3], backend=backend)
    assert (found.samples, found.steps) == (expected.samples, expected.steps) == (150, 6)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    for role in roles:
        moved = change(expected.parts[role], parts[role])
        assert_close(change(found.parts[role], parts[role]), moved, 1e-3)


def test_a_diverged_part_says_so(
    backend: Backend,
    data: Callable[[LeNet, int], Labelled],
    gray: Normalisation,
    make_parts: MakeParts,
    make_settings: MakeSettings,
) -> None:
    """Not a number must reach the result, where it is refused, and not vanish in a maximum or a clip."""
    parts, (x, y) = make_parts(GRAY, "global"), data(GRAY, 8)
    parts["global"]["fc1.weight"][3, 3] = np.nan
    settings = make_settings()
    update = train_jointly(GRAY, parts, x, y, settings, gray, [1], backend=backend)
    assert np.isnan(update.loss) or not all(np.isfinite(t).all() for t in update.parts["global"].values())


@pytest.mark.usefixtures("kernel")
def test_the_kernel_is_chosen_where_it_can_be_had() -> None:
    assert best_backend(GRAY) == "compiled"
    assert best_backend(GRAY, "cuda") == "fused"


def test_a_model_that_is_no_lenet_has_the_reference_path_only(
    fashion: Labelled, gray: Normalisation, make_parts: MakeParts, make_settings: MakeSettings
) -> None:
    class Other:
        input_shape, classes = (1, 28, 28), 10

        def schema(self) -> dict[str, tuple[int, ...]]:
            return GRAY.schema()

        def init(self, rng: np.random.Generator) -> Part:
            return GRAY.init(rng)

    assert best_backend(Other()) == "reference"
    parts, settings = make_parts(GRAY, "global"), make_settings()
    with pytest.raises(ValueError, match="LeNets only, not Other"):
        train_jointly(Other(), parts, *fashion, settings, gray, [1], backend="fused")
