"""Self-test vectors: inputs that every device can make for itself, and logits computed without a runtime.

The expected logits come from the networks in plain numpy and float64, written from the definition of their
layers and sharing nothing with the exporter or onnxruntime: a wrong graph, a wrong kernel, a damaged file
all show.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedbac_edge.models.catalog import LeNet
from fedbac_edge.models.resnet import EPSILON, ResNet8
from fedbac_edge.signing.manifest import Vector

if TYPE_CHECKING:
    from export.served import ServedModel
    from fedbac_edge.parts.part import Part

COUNT = 4
TOLERANCE = 1e-3
"""Largest difference between a logit and its expected value."""
MARGIN = 0.02
"""The best class of a vector leads by so much: rounding cannot change it."""
_TRIED = 200

Float64 = npt.NDArray[np.float64]
Pixels = npt.NDArray[np.uint8]


def image(shape: tuple[int, int, int], index: int) -> Pixels:
    """Input number `index` for images of `shape` (channels, height, width): (height, width, channels) uint8.

    Bytes of SHAKE-256, the same everywhere and for ever. Even numbers are noise; odd ones are blocks of 4 x 4
    equal pixels, which reach values that noise averages away.
    """
    channels, height, width = shape
    cell = 4 if index % 2 else 1
    rows, columns = -(-height // cell), -(-width // cell)
    data = hashlib.shake_256(f"fedbac-edge self-test {index}".encode()).digest(rows * columns * channels)
    grid = np.frombuffer(data, np.uint8).reshape(rows, columns, channels)
    return grid.repeat(cell, axis=0).repeat(cell, axis=1)[:height, :width].copy()


def of_model(model: ServedModel, count: int = COUNT) -> tuple[Vector, ...]:
    """Vectors for `model`, a sum of the catalogue's networks. Inputs without a clear best class are left out.

    A model that has no opinion about anything (fresh weights) gets the clearest of what was tried.
    """
    found: list[tuple[float, Vector]] = []
    for index in range(_TRIED):
        values = logits(model, image(model.architecture.input_shape, index))
        first, second = np.sort(values)[[-1, -2]]
        found.append((float(first - second), Vector(index=index, logits=tuple(values.tolist()))))
        if sum(margin >= MARGIN for margin, _ in found) == count:
            break
    clear = sorted(found, key=lambda each: -min(each[0], MARGIN))[:count]
    return tuple(vector for _, vector in clear)


def logits(model: ServedModel, pixels: Pixels) -> Float64:
    """Logits (classes,) of one image (height, width, channels): the sum over the parts, in float64."""
    x = (pixels.transpose(2, 0, 1) / 255.0 - _column(model.mean)) / _column(model.std)
    terms = []
    for term in model.terms:
        match model.of(term):
            case LeNet():
                terms.append(term.coefficient * lenet(term.part, x))
            case ResNet8() as description:
                terms.append(term.coefficient * resnet(description, term.part, x))
            case other:
                raise TypeError(f"no reference is written for {type(other).__name__}")
    summed: Float64 = np.sum(terms, axis=0, dtype=np.float64)
    return summed


def lenet(part: Part, x: Float64) -> Float64:
    """One LeNet on one normalised image (channels, height, width)."""
    for layer in ("conv1", "conv2"):
        x = _pooled(_rectified(_convolved(x, part[f"{layer}.weight"], part[f"{layer}.bias"])))
    x = x.reshape(-1)
    for layer in ("fc1", "fc2"):
        x = _rectified(part[f"{layer}.weight"].astype(np.float64) @ x + part[f"{layer}.bias"])
    last: Float64 = part["fc3.weight"].astype(np.float64) @ x + part["fc3.bias"]
    return last


def resnet(description: ResNet8, part: Part, x: Float64) -> Float64:
    """One ResNet-8, normalising by its running statistics, on one normalised image."""

    def layer(x: Float64, convolution: str, norm: str, stride: int = 1) -> Float64:
        weight = part[f"{convolution}.weight"]
        edge = weight.shape[2] // 2
        framed = np.pad(x, ((0, 0), (edge, edge), (edge, edge)))
        out = _convolved(framed, weight, np.zeros(len(weight), np.float32))[:, ::stride, ::stride]
        gamma, beta, mean, variance = (
            part[f"{norm}.{name}"].astype(np.float64)[:, None, None]
            for name in ("weight", "bias", "running_mean", "running_var")
        )
        normalised: Float64 = (out - mean) / np.sqrt(variance + EPSILON) * gamma + beta
        return normalised

    x = _rectified(layer(x, "conv", "norm"))
    for block, _, _, stride in description.blocks:
        straight = layer(x, f"{block}.shortcut", f"{block}.norm3", stride) if stride > 1 else x
        x = _rectified(layer(x, f"{block}.conv1", f"{block}.norm1", stride))
        x = _rectified(layer(x, f"{block}.conv2", f"{block}.norm2") + straight)
    last: Float64 = part["fc.weight"].astype(np.float64) @ x.mean(axis=(1, 2)) + part["fc.bias"]
    return last


def _convolved(x: Float64, weight: npt.NDArray[np.float32], bias: npt.NDArray[np.float32]) -> Float64:
    """Cross-correlation without padding: (in, h, w) * (out, in, kh, kw) -> (out, h - kh + 1, w - kw + 1)."""
    windows = np.lib.stride_tricks.sliding_window_view(x, weight.shape[2:], axis=(1, 2))
    summed: Float64 = np.tensordot(weight.astype(np.float64), windows, axes=([1, 2, 3], [0, 3, 4]))
    return summed + bias[:, None, None]


def _pooled(x: Float64) -> Float64:
    """Largest of every 2 x 2 pixels; an odd last row or column is dropped."""
    channels, height, width = x.shape
    pairs = x[:, : height // 2 * 2, : width // 2 * 2].reshape(channels, height // 2, 2, width // 2, 2)
    largest: Float64 = pairs.max(axis=(2, 4))
    return largest


def _rectified(x: Float64) -> Float64:
    return np.maximum(x, 0.0)


def _column(values: tuple[float, ...]) -> Float64:
    return np.asarray(values, np.float64)[:, None, None]
