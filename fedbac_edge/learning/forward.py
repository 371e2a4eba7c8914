"""Logits of single parts, by the fastest path that this model and machine have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fedbac_edge.learning.compiled import kernel_for
from fedbac_edge.learning.compiler import NoKernel
from fedbac_edge.models.additive import load, network
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import FloatArray, Part
from fedbac_edge.vocabulary.training import Backend

Logits = Callable[[FloatArray], FloatArray]


def logits_of(model: Architecture, part: Part, device: str = "cpu", backend: Backend | None = None) -> Logits:
    """A function from normalised images (N, C, H, W) to this part's logits (N, classes), float32.

    The compiled kernel for LeNets on a CPU, torch otherwise; a `backend` other than "compiled" means torch.
    Raises NoKernel when "compiled" is asked for and cannot be had.
    """
    if device == "cpu" and isinstance(model, LeNet) and backend in (None, "compiled"):
        try:
            return _compiled(model, part)
        except NoKernel:
            if backend == "compiled":
                raise
    return torch_logits(model, part, device)


def _compiled(model: LeNet, part: Part) -> Logits:
    kernel = kernel_for(model)
    row, work = kernel.rows([part])[0], kernel.workspace(1)
    return lambda x: kernel.logits(x, row, work)


def torch_logits(model: Architecture, part: Part, device: str = "cpu") -> Logits:
    """The same through torch, on any device."""
    module = network(model)
    load(module, part)
    module.to(device).eval()

    def logits(x: FloatArray) -> FloatArray:
        with torch.inference_mode():
            found = module(torch.from_numpy(x).to(device)).cpu().numpy()
        return np.asarray(found, dtype=np.float32)

    return logits
