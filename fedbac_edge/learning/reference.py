"""Local training in plain PyTorch, to be read next to the paper; every faster path is held to it.

Fed-BAC, arXiv 2605.11815, local objective, for the parts theta_r with roles r:

    mean cross-entropy of (sum_r logits(x; theta_r)) + sum_r lambda_r ||theta_r||^2

all parts trained jointly by SGD with momentum and weight decay, the gradient of the whole objective clipped
at one global norm before weight decay, a fresh optimiser for every call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedbac_edge.learning.batches import batches, step_count
from fedbac_edge.learning.inputs import check_training
from fedbac_edge.learning.normalise import Images, Labels, normalise
from fedbac_edge.learning.outcomes import Cancelled, LocalUpdate
from fedbac_edge.learning.threads import torch_threads
from fedbac_edge.models.additive import Additive
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import Part
from fedbac_edge.vocabulary.training import LocalTraining, Normalisation


def squared_norm(module: nn.Module) -> Tensor:
    """||theta||^2 over all weights and biases."""
    return torch.stack([parameter.square().sum() for parameter in module.parameters()]).sum()


def objective(model: Additive, x: Tensor, y: Tensor, l2: Mapping[str, float]) -> tuple[Tensor, Tensor]:
    """(the objective, its cross-entropy alone) on one batch."""
    loss = cross_entropy(model(x), y)
    penalty = sum((l2[role] * squared_norm(model.part(role)) for role in l2), start=torch.zeros_like(loss))
    return loss + penalty, loss


def train_reference(
    model: Architecture,
    parts: Mapping[str, Part],
    x: Images,
    y: Labels,
    settings: LocalTraining,
    normalisation: Normalisation,
    seed: Sequence[int],
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> LocalUpdate:
    """See `local.train_jointly`, which has the same arguments and result."""
    check_training(model, parts, x, y, settings)
    steps = step_count(len(y), settings.epochs, settings.batch_size)
    with torch_threads(settings.threads):
        additive = Additive(model, parts).to(device)
        for role in settings.frozen:
            additive.part(role).requires_grad_(False).eval()  # nor do its running statistics change
        l2 = {role: value for role, value in settings.l2.items() if role not in settings.frozen}
        trained = [weights for weights in additive.parameters() if weights.requires_grad]
        optimiser = torch.optim.SGD(
            trained,
            lr=settings.learning_rate,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
        last_epoch = 0.0
        for step, (epoch, chosen) in enumerate(
            batches(len(y), settings.epochs, settings.batch_size, seed), start=1
        ):
            if cancelled is not None and cancelled():
                raise Cancelled(f"stopped before step {step} of {steps}")
            images = torch.from_numpy(normalise(x[chosen], normalisation)).to(device)
            labels = torch.from_numpy(y[chosen]).to(device)

            optimiser.zero_grad()
            total, loss = objective(additive, images, labels, l2)
            total.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(trained, settings.clip_norm)
            optimiser.step()

            if epoch == settings.epochs - 1:
                last_epoch += loss.item() * len(chosen)
            if progress is not None:
                progress(step, steps)
        return LocalUpdate(parts=additive.dump(), samples=len(y), steps=steps, loss=last_epoch / len(y))
