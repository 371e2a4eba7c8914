"""The optimisation rule, written out in numpy, against every training path."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedbac_edge.learning.normalise import normalise
from fedbac_edge.learning.outcomes import LocalUpdate
from fedbac_edge.models.additive import Additive
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import Part
from fedbac_edge.vocabulary.training import LocalTraining, Normalisation

GRAY = LeNet()
Labelled = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
Train = Callable[..., LocalUpdate]


def gradient(parts: dict[str, Part], x: torch.Tensor, y: torch.Tensor) -> dict[str, dict[str, np.ndarray]]:
    """Gradient of the mean cross-entropy of the summed logits, by autograd."""
    additive = Additive(GRAY, parts)
    cross_entropy(additive(x), y).backward()  # type: ignore[no-untyped-call]
    return {
        role: {name: p.grad.numpy().astype(np.float64) for name, p in additive.part(role).named_parameters()}  # type: ignore[union-attr]
        for role in parts
    }


def by_hand(
    parts: dict[str, Part], x: torch.Tensor, y: torch.Tensor, settings: LocalTraining
) -> tuple[dict[str, Part], list[float]]:
    """Full-batch steps; returns the parts and the gradient norm before clipping at each step."""
    theta = {role: {name: t.astype(np.float64) for name, t in part.items()} for role, part in parts.items()}
    velocity = {role: {name: np.zeros_like(t) for name, t in part.items()} for role, part in theta.items()}
    norms = []
    for _ in range(settings.epochs):
        now = {r: {n: t.astype(np.float32) for n, t in part.items()} for r, part in theta.items()}
        grads = gradient(now, x, y)
        for role, weight in settings.l2.items():
            for name in grads[role]:
                grads[role][name] += 2 * weight * theta[role][name]
        norm = float(np.sqrt(sum(np.square(g).sum() for part in grads.values() for g in part.values())))
        norms.append(norm)
        scale = min(1.0, settings.clip_norm / (norm + 1e-6))
        for role, part in theta.items():
            for name in part:
                step = scale * grads[role][name] + settings.weight_decay * part[name]
                velocity[role][name] = settings.momentum * velocity[role][name] + step
                part[name] -= settings.learning_rate * velocity[role][name]
    return {r: {n: t.astype(np.float32) for n, t in part.items()} for r, part in theta.items()}, norms


def assert_same_change(found: dict[str, Part], expected: dict[str, Part], start: dict[str, Part]) -> None:
    """Hold the *change* of every tensor to 1e-3 of its largest entry, weights being large beside it."""
    for role in expected:
        for name in expected[role]:
            change = expected[role][name] - start[role][name]
            error = np.abs(found[role][name] - expected[role][name]).max()
            assert error <= 1e-3 * np.abs(change).max() + 1e-7, (role, name)


@pytest.mark.parametrize(
    "changes",
    [
        {"clip_norm": 1e6, "weight_decay": 0.0, "momentum": 0.0},
        {"clip_norm": 1e6, "weight_decay": 0.0, "momentum": 0.0, "l2": {"cluster": 0.5}},
        {"clip_norm": 0.05, "weight_decay": 0.0, "momentum": 0.0},
        {"clip_norm": 0.05, "weight_decay": 0.5, "momentum": 0.9},
        {"clip_norm": 0.05, "weight_decay": 0.5, "momentum": 0.9, "l2": {"cluster": 0.5, "global": 0.1}},
    ],
    ids=["plain", "l2", "clipped", "clipped before weight decay", "clipped with the l2 term"],
)
def test_three_full_batch_steps_follow_the_rule(
    train: Train,
    changes: dict[str, object],
    fashion: Labelled,
    gray: Normalisation,
    make_parts: Callable[..., dict[str, Part]],
    make_settings: Callable[..., LocalTraining],
) -> None:
    x, y = fashion[0][:48], fashion[1][:48]
    parts = make_parts(GRAY, "global", "cluster")
    settings = make_settings(epochs=3, batch_size=48, **changes)
    expected, norms = by_hand(parts, torch.from_numpy(normalise(x, gray)), torch.from_numpy(y), settings)
    # The case is worth its name only if the threshold is really crossed, or really is not.
    assert (min(norms) > settings.clip_norm) if settings.clip_norm < 1 else (max(norms) < settings.clip_norm)
    update = train(GRAY, parts, x, y, settings, gray, [1, 2, 3])
    assert update.steps == 3
    assert_same_change(update.parts, expected, parts)


def test_every_call_starts_with_zero_momentum(
    train: Train,
    fashion: Labelled,
    gray: Normalisation,
    make_parts: Callable[..., dict[str, Part]],
    make_settings: Callable[..., LocalTraining],
) -> None:
    x, y = fashion[0][:32], fashion[1][:32]
    parts, settings = make_parts(GRAY, "global"), make_settings(batch_size=32)
    first = train(GRAY, parts, x, y, settings, gray, [1])
    second = train(GRAY, first.parts, x, y, settings, gray, [1])
    tensors = torch.from_numpy(normalise(x, gray)), torch.from_numpy(y)
    expected, _ = by_hand(first.parts, *tensors, settings)
    assert_same_change(second.parts, expected, first.parts)
