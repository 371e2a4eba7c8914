"""Counting what a served model gets right: a coefficient-weighted sum of the logits of its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedbac_edge.learning.forward import logits_of
from fedbac_edge.learning.inputs import check_data, check_part
from fedbac_edge.learning.normalise import Images, Labels, normalise
from fedbac_edge.learning.outcomes import Evaluation
from fedbac_edge.learning.threads import torch_threads
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import FloatArray, Part
from fedbac_edge.vocabulary.training import Backend, Normalisation


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
    networks = {f"shared part {i}": (model, part) for i, (part, _) in enumerate(served)}
    terms = [(f"shared part {i}", coefficient) for i, (_, coefficient) in enumerate(served)]
    return evaluate_sums(networks, {"": terms}, x, y, normalisation, device, batch_size, threads, backend)[""]


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
    networks = {f"shared part {i}": (model, part) for i, (part, _) in enumerate(shared)}
    common = [(f"shared part {i}", coefficient) for i, (_, coefficient) in enumerate(shared)]
    networks |= {f"part {name!r}": (model, part) for name, part in candidates.items()}
    sums = {name: [*common, (f"part {name!r}", 1.0)] for name in candidates}
    return evaluate_sums(networks, sums, x, y, normalisation, device, batch_size, threads, backend)


def evaluate_sums(
    networks: Mapping[str, tuple[Architecture, Part]],
    sums: Mapping[str, Sequence[tuple[str, float]]],
    x: Images,
    y: Labels,
    normalisation: Normalisation,
    device: str = "cpu",
    batch_size: int = 512,
    threads: int = 1,
    backend: Backend | None = None,
) -> dict[str, Evaluation]:
    """Evaluate several sums of (network, coefficient) at once, name by name.

    The networks may be of unlike architectures with the same inputs and classes; each one's logits are
    computed once per batch, for all sums that it is in. A sum adds its terms in their order.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    for name, (model, part) in networks.items():
        check_data(model, x, y)
        check_part(model, name, part)
    totals = {name: Evaluation(0, 0, 0.0) for name in sums}
    with torch_threads(threads):
        logits = {name: logits_of(model, part, device, backend) for name, (model, part) in networks.items()}
        for start in range(0, len(y), batch_size):
            images = normalise(x[start : start + batch_size], normalisation)
            labels = y[start : start + batch_size]
            # A copy each: a path may use its output again for its next network.
            found = {name: np.array(compute(images)) for name, compute in logits.items()}
            for name, terms in sums.items():
                total = np.zeros_like(next(iter(found.values())))
                for network, coefficient in terms:
                    total = total + np.float32(coefficient) * found[network]
                totals[name] = add(totals[name], count(total, labels))
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
