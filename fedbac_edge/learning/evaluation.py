"""Counting what a served model gets right: a coefficient-weighted sum of the logits of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedbac_edge.learning.inputs import check_data, check_part
from fedbac_edge.learning.normalise import Images, Labels, normalise
from fedbac_edge.learning.settings import Evaluation, Normalisation
from fedbac_edge.learning.threads import torch_threads
from fedbac_edge.models.additive import load, network
from fedbac_edge.models.catalog import Architecture
from fedbac_edge.parts import Part


def evaluate(
    model: Architecture,
    served: Sequence[tuple[Part, float]],
    x: Images,
    y: Labels,
    normalisation: Normalisation,
    device: str = "cpu",
    batch_size: int = 512,
    threads: int = 1,
) -> Evaluation:
    """Evaluate sum over (part, coefficient) of coefficient * logits(x; part) on images (N, H, W, C).

    Raises ValueError when nothing is served or data or parts do not fit the model. No samples: zero counts.
    """
    if not served:
        raise ValueError("a served model needs at least one part")
    return _evaluate(model, served, {"": None}, x, y, normalisation, device, batch_size, threads)[""]


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
) -> dict[str, Evaluation]:
    """Evaluate shared + candidate for every candidate (coefficient 1), name by name.

    The shared logits are computed once for all candidates: one gateway's share of the M * K_max forward
    passes that precede an assignment (arXiv 2605.11815) is K_max + 1 networks instead of 2 K_max.
    """
    return _evaluate(model, shared, candidates, x, y, normalisation, device, batch_size, threads)


def _evaluate(
    model: Architecture,
    shared: Sequence[tuple[Part, float]],
    candidates: Mapping[str, Part | None],
    x: Images,
    y: Labels,
    normalisation: Normalisation,
    device: str,
    batch_size: int,
    threads: int,
) -> dict[str, Evaluation]:
    check_data(model, x, y)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, not {batch_size}")
    for position, (part, _) in enumerate(shared):
        check_part(model, f"served part {position}", part)
    for name, candidate in candidates.items():
        if candidate is not None:
            check_part(model, name, candidate)
    correct = dict.fromkeys(candidates, 0)
    loss_sum = dict.fromkeys(candidates, 0.0)
    with torch_threads(threads), torch.inference_mode():
        weighted = [(_ready(model, part, device), coefficient) for part, coefficient in shared]
        modules = {
            name: None if part is None else _ready(model, part, device) for name, part in candidates.items()
        }
        for images, labels in _batches(x, y, normalisation, device, batch_size):
            base = torch.zeros((len(labels), model.classes), device=device)
            for module, coefficient in weighted:
                base += coefficient * module(images)
            for name, candidate_module in modules.items():
                logits = base if candidate_module is None else base + candidate_module(images)
                correct[name] += int((logits.argmax(dim=1) == labels).sum())
                # Summed in float64: thousands of samples are added, and the sums of devices are compared.
                loss_sum[name] += float(cross_entropy(logits, labels, reduction="none").double().sum())
    return {name: Evaluation(len(y), correct[name], loss_sum[name]) for name in candidates}


def _ready(model: Architecture, part: Part, device: str) -> nn.Module:
    module = network(model)
    load(module, part)
    return module.to(device).eval()


def _batches(
    x: Images, y: Labels, normalisation: Normalisation, device: str, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(y), batch_size):
        images = normalise(x[start : start + batch_size], normalisation)
        yield (
            torch.from_numpy(images).to(device),
            torch.from_numpy(y[start : start + batch_size]).to(device),
        )
