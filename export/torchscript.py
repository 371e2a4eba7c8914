"""The served model as frozen TorchScript, for hosts that run torch anyway.

`Served` is the plain sum over the architectures' torch modules, for any architecture; `FusedServed` runs
several LeNets of equal widths as one network with the weights of `export.fusion` (no padding of channels:
torch's kernels gain nothing from it). A sum of unlike networks is the sum of such pieces.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, max_pool2d

from export.fusion import fuse
from export.metadata import properties
from export.normalisation import absorb
from export.served import ExportError, InputKind, ServedModel
from fedbac_edge.host.files import write_bytes
from fedbac_edge.models.additive import load, network
from fedbac_edge.models.catalog import LeNet


class Served(nn.Module):
    """Forward: images of `input_kind` -> logits (N, classes), or with `part_logits` also each part's
    logits."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: ServedModel, input_kind: InputKind, *, part_logits: bool = False) -> None:
        super().__init__()
        self.networks = nn.ModuleList(network(model.of(term)) for term in model.terms)
        for module, term in zip(self.networks, model.terms, strict=True):
            load(module, term.part)
        self.coefficients = [term.coefficient for term in model.terms]
        self.raw = input_kind == "uint8"
        self.part_logits = part_logits
        for name, values in (("mean", model.mean), ("std", model.std)):
            self.register_buffer(name, torch.tensor(values).reshape(1, -1, 1, 1))

    def forward(self, image: Tensor) -> tuple[Tensor, ...] | Tensor:
        """(N, H, W, C) uint8 or (N, C, H, W) float, see `export.graph.build`."""
        if self.raw:
            image = (image.permute(0, 3, 1, 2).to(torch.float32) / 255.0 - self.mean) / self.std
        parts = [c * module(image) for c, module in zip(self.coefficients, self.networks, strict=True)]
        logits = parts[0]
        for part in parts[1:]:
            logits = logits + part
        return (logits, *parts) if self.part_logits else logits


class FusedServed(nn.Module):
    """A sum of LeNets as one network: shared convolutions (see `export.fusion`), batched linear layers."""

    conv1: Tensor
    bias1: Tensor
    conv2: Tensor
    bias2: Tensor
    fc1: Tensor
    fc1_bias: Tensor
    fc2: Tensor
    fc2_bias: Tensor
    last: Tensor
    last_bias: Tensor

    def __init__(self, model: ServedModel, lenet: LeNet, input_kind: InputKind) -> None:
        super().__init__()
        self.raw = input_kind == "uint8"
        weights = fuse(absorb(model) if self.raw else model, lenet, block=1)
        self.groups, self.groups2 = weights.groups, weights.groups2
        third, fourth = lenet.widths[2:]
        arrays = {
            "conv1": weights.conv1,
            "bias1": weights.bias1,
            "conv2": weights.conv2,
            "bias2": weights.bias2,
            "fc1": weights.fc1.reshape(self.groups, third, -1).swapaxes(1, 2),
            "fc1_bias": weights.fc1_bias.reshape(self.groups, 1, third),
            "fc2": weights.fc2.reshape(self.groups, fourth, third).swapaxes(1, 2),
            "fc2_bias": weights.fc2_bias.reshape(self.groups, 1, fourth),
            "last": np.stack(weights.last).sum(axis=0, dtype=np.float32),
            "last_bias": np.stack(weights.last_bias).sum(axis=0, dtype=np.float32),
        }
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(array)))

    def forward(self, image: Tensor) -> Tensor:
        """(N, H, W, C) uint8 or (N, C, H, W) float -> (N, classes)."""
        x = image.permute(0, 3, 1, 2).to(torch.float32) if self.raw else image
        x = max_pool2d(torch.relu(conv2d(x, self.conv1, self.bias1)), 2)
        x = max_pool2d(torch.relu(conv2d(x, self.conv2, self.bias2, groups=self.groups2)), 2)
        x = x.reshape(x.shape[0], self.groups, -1).transpose(0, 1)  # (parts, N, features)
        x = torch.relu(torch.baddbmm(self.fc1_bias, x, self.fc1))
        x = torch.relu(torch.baddbmm(self.fc2_bias, x, self.fc2))
        return linear(x.transpose(0, 1).flatten(1), self.last, self.last_bias)


class Sum(nn.Module):
    """Pieces that read the same images, added up."""

    def __init__(self, pieces: Iterable[nn.Module]) -> None:
        super().__init__()
        self.pieces = nn.ModuleList(pieces)

    def forward(self, image: Tensor) -> Tensor:
        """What the pieces take -> (N, classes)."""
        first, *others = self.pieces
        logits: Tensor = first(image)
        for piece in others:
            logits = logits + piece(image)
        return logits


def build(
    model: ServedModel, *, input_kind: InputKind = "uint8", fuse: bool = True
) -> torch.jit.ScriptModule:
    """Frozen TorchScript of `model`: one image batch in, logits (N, classes) out, any batch size.

    Raises ExportError when the parts do not fit the model.
    """
    model.check()
    groups = model.groups() if fuse else [model]
    pieces = [
        FusedServed(group, group.architecture, input_kind)
        if fuse and isinstance(group.architecture, LeNet)
        else Served(group, input_kind)
        for group in groups
    ]
    module = pieces[0] if len(pieces) == 1 else Sum(pieces)
    with torch.no_grad(), warnings.catch_warnings():
        # Newer torch points everyone to torch.export; the devices' runtimes still load TorchScript.
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(  # type: ignore[no-untyped-call]
            module.eval(), example(model, input_kind), check_trace=False
        )
        frozen: torch.jit.ScriptModule = torch.jit.freeze(traced)
    return frozen


def example(model: ServedModel, input_kind: InputKind) -> Tensor:
    """Two blank images: one could freeze the batch size into the trace."""
    channels, height, width = model.architecture.input_shape
    if input_kind == "uint8":
        return torch.zeros((2, height, width, channels), dtype=torch.uint8)
    if input_kind == "float":
        return torch.zeros((2, channels, height, width))
    raise ExportError(f'the input kind is "uint8" or "float", not {input_kind!r}')


def save(script: torch.jit.ScriptModule, model: ServedModel, input_kind: InputKind, path: str | Path) -> Path:
    """Write the script with the same metadata as the ONNX file, as `metadata.json` inside the archive."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(
            script, buffer, _extra_files={"metadata.json": json.dumps(properties(model, input_kind))}
        )
    return write_bytes(buffer.getvalue(), path)
