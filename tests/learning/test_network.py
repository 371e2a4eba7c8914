"""Networks in training and losses with their gradients, against torch's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedbac_edge.learning.losses import (
    Loss,
    cross_entropy,
    divergence,
    soft_cross_entropy,
    softmax,
    squared_probabilities,
)
from fedbac_edge.learning.network import AutogradTrainee, Trainee, trainee
from fedbac_edge.models.additive import load
from fedbac_edge.models.additive import network as module_of
from fedbac_edge.models.catalog import LeNet, architecture, shrunk
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import FloatArray

RNG = np.random.default_rng(3)
LOGITS = (3.0 * RNG.normal(size=(7, 10))).astype(np.float32)
Y = RNG.integers(0, 10, 7)
Q = softmax(2.0 * RNG.normal(size=(7, 10)))
MODELS = [LeNet(), shrunk(LeNet(), 4), shrunk(LeNet((3, 32, 32)), 1)]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda z: cross_entropy(z, Y), lambda z: functional.cross_entropy(z, torch.from_numpy(Y))),
        (
            lambda z: soft_cross_entropy(z, Q),
            lambda z: functional.cross_entropy(z, torch.from_numpy(Q.astype(np.float64))),
        ),
        (
            lambda z: divergence(z, Q, tau=2.0),
            lambda z: functional.kl_div(
                functional.log_softmax(z / 2.0, dim=1),
                torch.from_numpy(Q.astype(np.float64)),
                reduction="batchmean",
            ),
        ),
        (
            lambda z: squared_probabilities(z, Q),
            lambda z: functional.mse_loss(
                functional.softmax(z, dim=1), torch.from_numpy(Q.astype(np.float64))
            ),
        ),
    ],
)
def test_loss_and_gradient_are_torchs(
    ours: Callable[[FloatArray], Loss], theirs: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    loss, gradient = ours(LOGITS)
    z = torch.from_numpy(LOGITS.astype(np.float64)).requires_grad_()
    expected = theirs(z)
    expected.backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert gradient.dtype == np.float32
    np.testing.assert_allclose(gradient, z.grad.numpy(), atol=1e-7, rtol=1e-5)


def test_a_mean_over_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        cross_entropy(LOGITS[:0], Y[:0])


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_the_compiled_path_trains_as_autograd_does(model: LeNet) -> None:
    """Five steps of a loss that is no cross-entropy, with a pull, clipping, decay and momentum."""
    rng = np.random.default_rng(0)
    part, centre = model.init(rng), model.init(rng)
    x = rng.normal(size=(37, *model.input_shape)).astype(np.float32)
    q = softmax(rng.normal(size=(37, model.classes)))
    compiled, plain = trainee(model, part, backend="compiled"), trainee(model, part, backend="reference")
    assert isinstance(plain, AutogradTrainee)
    np.testing.assert_allclose(compiled.logits(x), plain.logits(x), atol=1e-4)
    for _ in range(5):
        for network in (compiled, plain):
            _train(network, x, q, centre)
    for name, tensor in plain.dump().items():
        found = compiled.dump()[name]
        np.testing.assert_allclose(found, tensor, atol=2e-4 * max(1.0, np.abs(tensor).max()))
        assert not np.array_equal(found, part[name])


def _train(network: Trainee, x: FloatArray, q: FloatArray, centre: dict[str, FloatArray]) -> None:
    _, gradient = squared_probabilities(network.forward(x), q)
    network.backward(gradient)
    _, gradient = cross_entropy(network.forward(x[:9]), q[:9].argmax(axis=1))
    network.backward(gradient)  # gradients add up
    network.pull(centre, 0.01)
    network.step(0.05, 0.9, 1e-3, 0.5)


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("count", [1, 37])
def test_both_paths_learn_beside_another_network(model: LeNet, count: int) -> None:
    """The loss by its definition in float64, and the step that it makes on both paths."""
    rng = np.random.default_rng(0)
    part = model.init(rng)
    x = rng.normal(size=(count, *model.input_shape)).astype(np.float32)
    y = rng.integers(0, model.classes, count)
    beside = (3.0 * rng.normal(size=(count, model.classes))).astype(np.float32)
    q = softmax(40.0 * rng.normal(size=(count, model.classes)))  # some probabilities are zero
    module = module_of(model)
    load(module, part)
    module.double()
    f = module(torch.from_numpy(x.astype(np.float64)))
    wide = torch.from_numpy(q.astype(np.float64))
    expected = functional.cross_entropy(f / 2.0, wide) + 0.5 * functional.cross_entropy(
        f + torch.from_numpy(beside.astype(np.float64)), torch.from_numpy(y)
    )
    expected.backward()  # type: ignore[no-untyped-call]
    for backend in ("compiled", "reference"):
        network = trainee(model, part, backend=backend)
        assert network.learn_beside(x, y, beside, q, 2.0, 0.5) == pytest.approx(expected.item(), rel=1e-5)
        network.step(1.0, 0.0, 0.0, None)
        for name, weights in module.named_parameters():
            assert weights.grad is not None
            np.testing.assert_allclose(part[name] - network.dump()[name], weights.grad.numpy(), atol=1e-5)


def test_a_pull_alone_moves_straight_to_its_centre() -> None:
    model = shrunk(LeNet(), 4)
    rng = np.random.default_rng(0)
    part, centre = model.init(rng), model.init(rng)
    for backend in ("compiled", "reference"):
        network = trainee(model, part, backend=backend)
        network.pull(centre, 0.25)
        network.step(1.0, 0.0, 0.0, None)
        for name, tensor in network.dump().items():
            np.testing.assert_allclose(tensor, part[name] + 0.25 * (centre[name] - part[name]), atol=1e-6)


@pytest.mark.parametrize(
    "model", [LeNet(), architecture("resnet8", (3, 32, 32), 10)], ids=["lenet", "resnet8"]
)
def test_backward_follows_forward_once(model: Architecture) -> None:
    network = trainee(model, model.init(np.random.default_rng(0)))
    with pytest.raises(ValueError, match="forward"):
        network.backward(LOGITS)


def test_batch_norm_learns_its_statistics_in_training_only() -> None:
    model = shrunk(architecture("resnet8", (3, 32, 32), 10), 1)
    rng = np.random.default_rng(0)
    part = model.init(rng)
    network = trainee(model, part)
    x = rng.normal(size=(4, 3, 32, 32)).astype(np.float32)
    network.logits(x)
    measured = [name for name in part if "running" in name]
    assert measured
    assert all(np.array_equal(network.dump()[name], part[name]) for name in measured)
    network.forward(x)
    assert not any(np.array_equal(network.dump()[name], part[name]) for name in measured)
    before = network.dump()
    network.pull(model.init(rng), 1.0)
    network.step(0.1, 0.9, 0.1, None)
    assert all(np.array_equal(network.dump()[name], before[name]) for name in measured)
