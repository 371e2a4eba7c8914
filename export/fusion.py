"""Several LeNets as one: the weights of a network whose last layer adds the parts up.

The image is read once: the parts' first convolutions are stacked along the output channels. The second
convolutions are one dense block-diagonal convolution, or a grouped one where that is less work. The linear
layers up to the last run as grouped convolutions over the 4x4 (RGB: 5x5) grid, and the last layers, laid
side by side, are one product whose inner dimension is that of all parts: the sum over the parts costs
nothing.

Channels are rounded up to the block of onnxruntime's blocked convolution kernels (NCHWc, 16 floats on
AVX-512), because one odd channel count makes it convert layouts around every pooling. The zeros stay zeros
through ReLU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from export.served import ServedModel
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import FloatArray

BLOCK = 16


@dataclass(frozen=True)
class FusedWeights:
    """Weights of the fused network; convolutions (out, in / groups, kh, kw), last layer (classes, in)."""

    conv1: FloatArray
    bias1: FloatArray
    conv2: FloatArray
    bias2: FloatArray
    groups2: int
    fc1: FloatArray
    fc1_bias: FloatArray
    fc2: FloatArray
    fc2_bias: FloatArray
    groups: int
    last: tuple[FloatArray, ...]
    last_bias: tuple[FloatArray, ...]


def fuse(model: ServedModel, lenet: LeNet, block: int = BLOCK) -> FusedWeights:
    """Weights that compute sum(coefficient * f(x; part)) in one pass; `last` has one matrix per part.

    The matrices of `last` all take the features of all parts (zeros for the others' features), so their sum
    gives the served logits and each alone gives coefficient * f(x; part).
    """
    parts = [term.part for term in model.terms]
    count = len(parts)
    first, second, third, fourth = lenet.widths
    height, width = lenet.grid
    wide2, wide3, wide4 = (_round_up(n, block) for n in (second, third, fourth))

    dense1 = _round_up(count * first, block)
    grouped1 = count * _round_up(first, block)
    # Multiply-adds of both convolutions, in units of 25 taps: choose the cheaper of the two layouts. A group
    # of one block of outputs leaves the kernel's accumulators half empty: measured 1.6 times the time.
    pixels1 = lenet.input_shape[0] * (lenet.input_shape[1] - 4) * (lenet.input_shape[2] - 4)
    pixels2 = ((lenet.input_shape[1] - 4) // 2 - 4) * ((lenet.input_shape[2] - 4) // 2 - 4)
    slow = 1.6 if wide2 == block else 1.0
    dense = pixels1 * dense1 + pixels2 * dense1 * count * wide2
    grouped = pixels1 * grouped1 + slow * pixels2 * grouped1 * wide2
    groups2 = 1 if dense <= grouped else count
    share1 = dense1 if groups2 == 1 else grouped1 // count

    conv1 = np.zeros((dense1 if groups2 == 1 else grouped1, *parts[0]["conv1.weight"].shape[1:]), np.float32)
    bias1 = np.zeros(conv1.shape[0], np.float32)
    conv2 = np.zeros((count * wide2, share1, 5, 5), np.float32)
    for index, part in enumerate(parts):
        start = index * (first if groups2 == 1 else share1)
        conv1[start : start + first] = part["conv1.weight"]
        bias1[start : start + first] = part["conv1.bias"]
        column = start if groups2 == 1 else 0
        rows = slice(index * wide2, index * wide2 + second)
        conv2[rows, column : column + first] = part["conv2.weight"]

    fc1 = [_pad(p["fc1.weight"].reshape(third, second, height, width), (wide3, wide2)) for p in parts]
    fc2 = [_pad(p["fc2.weight"].reshape(fourth, third, 1, 1), (wide4, wide3)) for p in parts]
    last = []
    for index, term in enumerate(model.terms):
        matrix = np.zeros((lenet.classes, count * wide4), np.float32)
        matrix[:, index * wide4 : index * wide4 + fourth] = term.coefficient * term.part["fc3.weight"]
        last.append(matrix)
    return FusedWeights(
        conv1=conv1,
        bias1=bias1,
        conv2=conv2,
        bias2=np.concatenate([_pad(p["conv2.bias"], (wide2,)) for p in parts]),
        groups2=groups2,
        fc1=np.concatenate(fc1),
        fc1_bias=np.concatenate([_pad(p["fc1.bias"], (wide3,)) for p in parts]),
        fc2=np.concatenate(fc2),
        fc2_bias=np.concatenate([_pad(p["fc2.bias"], (wide4,)) for p in parts]),
        groups=count,
        last=tuple(last),
        last_bias=tuple((t.coefficient * t.part["fc3.bias"]).astype(np.float32) for t in model.terms),
    )


def _round_up(count: int, block: int) -> int:
    return -(-count // block) * block


def _pad(array: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """`array` with zeros behind it along its leading axes, up to `shape`."""
    grown = np.zeros((*shape, *array.shape[len(shape) :]), np.float32)
    grown[tuple(slice(0, n) for n in array.shape)] = array
    return grown
