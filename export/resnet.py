"""The ONNX nodes of a ResNet-8 in evaluation mode: every batch normalisation inside its convolution."""

from __future__ import annotations

import numpy as np

from export.nodes import Nodes
from export.served import Term
from fedbac_edge.models.resnet import EPSILON, ResNet8
from fedbac_edge.parts.part import FloatArray, Part


def fold(part: Part, convolution: str, norm: str) -> tuple[FloatArray, FloatArray]:
    """(weight, bias) of a convolution that also does the normalisation behind it.

    w' = w gamma / sqrt(var + eps), b' = beta - mean gamma / sqrt(var + eps), per channel out; in float64.
    """
    gamma, beta, mean, variance = (
        part[f"{norm}.{name}"].astype(np.float64)
        for name in ("weight", "bias", "running_mean", "running_var")
    )
    scale = gamma / np.sqrt(variance + EPSILON)
    weight = part[f"{convolution}.weight"] * scale[:, None, None, None]
    return weight.astype(np.float32), (beta - mean * scale).astype(np.float32)


def write(nodes: Nodes, source: str, description: ResNet8, term: Term, output: str) -> str:
    """Normalised images (N, channels, height, width) at `source` -> coefficient * logits at `output`."""
    name, part = term.name, term.part

    def convolution(x: str, layer: str, norm: str, stride: int = 1) -> str:
        weight, bias = fold(part, layer, norm)
        size = weight.shape[2]
        place = f"{name}/{layer}"
        inputs = [x, nodes.weight(f"{place}.weight", weight), nodes.weight(f"{place}.bias", bias)]
        pads, strides = [size // 2] * 4, [stride, stride]
        return nodes.add("Conv", inputs, place, kernel_shape=[size, size], pads=pads, strides=strides)

    x = nodes.add("Relu", [convolution(source, "conv", "norm")], f"{name}/relu")
    for block, _, _, stride in description.blocks:
        straight = convolution(x, f"{block}.shortcut", f"{block}.norm3", stride) if stride > 1 else x
        x = convolution(x, f"{block}.conv1", f"{block}.norm1", stride)
        x = nodes.add("Relu", [x], f"{name}/{block}.relu1")
        x = convolution(x, f"{block}.conv2", f"{block}.norm2")
        x = nodes.add("Add", [x, straight], f"{name}/{block}.sum")
        x = nodes.add("Relu", [x], f"{name}/{block}.relu2")
    x = nodes.add("GlobalAveragePool", [x], f"{name}/pooled")
    x = nodes.add("Flatten", [x], f"{name}/features")
    weight = nodes.weight(f"{name}/fc.weight", term.coefficient * part["fc.weight"])
    bias = nodes.weight(f"{name}/fc.bias", term.coefficient * part["fc.bias"])
    return nodes.add("Gemm", [x, weight, bias], output, transB=1)
