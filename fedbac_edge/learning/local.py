"""Joint local training on the fastest path that this model and machine have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import msgspec

from fedbac_edge.learning.batches import batches, step_count
from fedbac_edge.learning.compiled import CompiledLeNet, kernel_for
from fedbac_edge.learning.compiler import NoKernel
from fedbac_edge.learning.fused import FusedLeNet
from fedbac_edge.learning.inputs import check_training
from fedbac_edge.learning.normalise import Images, Labels, normalise
from fedbac_edge.learning.outcomes import Cancelled, LocalUpdate
from fedbac_edge.learning.reference import train_reference
from fedbac_edge.learning.threads import torch_threads
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import Part
from fedbac_edge.vocabulary.training import Backend, LocalTraining, Normalisation


def train_jointly(
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
    backend: Backend | None = None,
) -> LocalUpdate:
    """Train role -> part, all of one architecture, on the sum of their logits (Fed-BAC, local objective).

    `x` is (N, H, W, C), uint8 or float32 in [0, 1]; `y` is (N,) int64. Samples are shuffled anew in each
    epoch by numpy's default_rng(seed). `progress(step, steps)` is called after each step; `cancelled()` is
    asked before each, and a true answer raises Cancelled. The parts given are not changed.

    `backend` fixes the path (see `best_backend`, the default); NoKernel is raised when "compiled" is asked
    for and cannot be had. Repeats bit for bit on one machine under one path and number of threads. Raises
    ValueError when data or parts do not fit the model, or `settings.l2` names a role that is not among the
    parts.
    """
    backend = backend or best_backend(model, device)
    if settings.turns:
        return _train_in_turns(
            model, parts, x, y, settings, normalisation, seed, device, progress, cancelled, backend
        )
    if backend == "reference":
        return train_reference(model, parts, x, y, settings, normalisation, seed, device, progress, cancelled)
    check_training(model, parts, x, y, settings)
    steps = step_count(len(y), settings.epochs, settings.batch_size)
    last_epoch = 0.0
    with (
        torch_threads(settings.threads),
        closing(_trainer(backend, model, parts, settings, device)) as trainer,
    ):
        for step, (epoch, chosen) in enumerate(
            batches(len(y), settings.epochs, settings.batch_size, seed), start=1
        ):
            if cancelled is not None and cancelled():
                raise Cancelled(f"stopped before step {step} of {steps}")
            loss = trainer.step(normalise(x[chosen], normalisation), y[chosen])
            if epoch == settings.epochs - 1:
                last_epoch += loss
            if progress is not None:
                progress(step, steps)
        return LocalUpdate(parts=trainer.dump(), samples=len(y), steps=steps, loss=last_epoch / len(y))


def _train_in_turns(
    model: Architecture,
    parts: Mapping[str, Part],
    x: Images,
    y: Labels,
    settings: LocalTraining,
    normalisation: Normalisation,
    seed: Sequence[int],
    device: str,
    progress: Callable[[int, int], None] | None,
    cancelled: Callable[[], bool] | None,
    backend: Backend,
) -> LocalUpdate:
    """Each turn trains its roles on what the others leave over; momentum begins at zero in each."""
    trained = dict(parts)
    steps = step_count(len(y), settings.epochs, settings.batch_size)
    done, loss = 0, 0.0
    for turn, roles in enumerate(settings.turns):
        count = len(settings.turns)
        share = msgspec.structs.replace(
            settings,
            epochs=settings.epochs // count + (turn < settings.epochs % count),
            turns=(),
            frozen=tuple(role for role in parts if role not in roles),
        )

        def tell(step: int, _: int, before: int = done) -> None:
            if progress is not None:
                progress(before + step, steps)

        update = train_jointly(
            model,
            trained,
            x,
            y,
            share,
            normalisation,
            [*seed, turn],
            device,
            tell,
            cancelled,
            backend,
        )
        trained, done, loss = update.parts, done + update.steps, update.loss
    return LocalUpdate(parts=trained, samples=len(y), steps=done, loss=loss)


def best_backend(model: Architecture, device: str = "cpu") -> Backend:
    """The fastest path for this model here: the compiled kernel (LeNets on a CPU with a C compiler, which
    runs at the first call), fused torch operations (LeNets elsewhere), else plain PyTorch."""
    if not isinstance(model, LeNet):
        return "reference"
    if device == "cpu":
        try:
            kernel_for(model)
        except NoKernel:
            return "fused"
        return "compiled"
    return "fused"


def _trainer(
    backend: Backend, model: Architecture, parts: Mapping[str, Part], settings: LocalTraining, device: str
) -> CompiledLeNet | FusedLeNet:
    if not isinstance(model, LeNet):
        raise ValueError(f"the {backend} path trains LeNets only, not {type(model).__name__}")
    if backend == "fused":
        return FusedLeNet(model, parts, settings, device)
    if device != "cpu":
        raise ValueError(f"the compiled path runs on the CPU, not on {device}")
    return CompiledLeNet(kernel_for(model), parts, settings)
