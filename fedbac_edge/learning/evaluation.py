"""Counting what a served model gets right: a coefficient-weighted sum of the logits of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedbac_edge.learning.forward import logits_of
from fedbac_edge.learning.inputs import check_data, check_part
from fedbac_edge.learning.normalise import Images, Labels, normalise
from fedbac_edge.learning.settings import Backend, Evaluation, Normalisation
from fedbac_edge.learning.threads import torch_threads
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts import FloatArray, Part


def evaluate(
    model: Architecture,
    served: Sequence[tuple[Part, float]],
    x: Images,
    y: Labels,
    normalisation: Normalisation,
    device: str = "cpu",
    batch_size: int = 512,
    threads: int = 1,
    backend: Backend | None = None,
) -> Evaluation:
    """Evaluate sum over (part, coefficient) of coefficient * logits(x; part) on images (N, H, W, C).

    `threads` are torch's, where torch computes; `backend` fixes the path (the fastest by default). Raises
    ValueError when nothing is served, or data or parts do not fit the model. No samples: zero counts.
    """
    if not served:
        raise ValueError("a served model needs at least one part")
    *shared, last = served
    return _evaluate(model, shared, {"": last}, x, y, normalisation, device, batch_size, threads, backend)[""]


def evaluate_candidates(
    model: Architecture,
    shared: Sequence[tuple[Part, float]],
    candidates: Mapping[str, Part],
    x: Images,
    y: Labels,
    normalisation: Normalisation,
    device: str = "cpu",
    batch_size: int = 512,
    threads: int = 1,
    backend: Backend | None = None,
) -> dict[str, Evaluation]:
    """Evaluate shared + candidate for every candidate (coefficient 1), name by name.

    The shared logits are computed once for all candidates: one gateway's share of the M * K_max forward
    passes that precede an assignment (arXiv 2605.11815) is K_max + 1 networks instead of 2 K_max.
    """
    weighted = {name: (part, 1.0) for name, part in candidates.items()}
    return _evaluate(model, shared, weighted, x, y, normalisation, device, batch_size, threads, backend)


def _evaluate(
    model: Architecture,
    shared: Sequence[tuple[Part, float]],
    candidates: Mapping[str, tuple[Part, float]],
    x: Images,
    y: Labels,
    normalisation: Normalisation,
    device: str,
    batch_size: int,
    threads: int,
    backend: Backend | None,
) -> dict[str, Evaluation]:
    check_data(model, x, y)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    for position, (part, _) in enumerate(shared):
        check_part(model, f"shared part {position}", part)
    for name, (part, _) in candidates.items():
        check_part(model, f"part {name!r}", part)
    totals = {name: Evaluation(0, 0, 0.0) for name in candidates}
    with torch_threads(threads):
        base = [(logits_of(model, part, device, backend), coefficient) for part, coefficient in shared]
        tips = {name: (logits_of(model, part, device, backend), c) for name, (part, c) in candidates.items()}
        for start in range(0, len(y), batch_size):
            images = normalise(x[start : start + batch_size], normalisation)
            labels = y[start : start + batch_size]
            common = np.zeros((len(labels), model.classes), dtype=np.float32)
            for logits, coefficient in base:
                common += np.float32(coefficient) * logits(images)
            for name, (logits, coefficient) in tips.items():
                more = count(common + np.float32(coefficient) * logits(images), labels)
                totals[name] = add(totals[name], more)
    return totals


def count(logits: FloatArray, labels: Labels) -> Evaluation:
    """Count one batch: logits (N, classes), labels (N,).

    Cross-entropies are computed and summed in float64: thousands are added, and devices are compared.
    """
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]
    correct = np.count_nonzero(logits.argmax(axis=1) == labels)
    return Evaluation(count=len(labels), correct=int(correct), loss_sum=float(losses.sum()))


def add(one: Evaluation, other: Evaluation) -> Evaluation:
    """The evaluation of both sets of samples together."""
    return Evaluation(
        count=one.count + other.count,
        correct=one.correct + other.correct,
        loss_sum=one.loss_sum + other.loss_sum,
    )
