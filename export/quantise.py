"""int8 by static quantisation (QDQ), kept only where it earns its place.

Weights are int8 with a scale per output channel, activations uint8 with a scale per tensor, calibrated on
hold-out images. Weights use 7 of the 8 bits: processors without VNNI add two neighbouring products in 16 bits
and cut off what is larger, and 2 * 255 * 64 is not, so every processor computes the same sums. Raw pixels are
quantised by nature (scale 1, zero point 0), so nothing is converted on the way in, and the last layer stays
in float, so that logits are not rounded. Small networks are often *slower* in int8 and processors differ:
the decision is measured on the machine at hand and stored with its figures.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt
import onnx

from export.fusion import FusedWeights, fuse
from export.graph import INPUT, Source, assemble, build, fused
from export.nodes import Nodes
from export.normalisation import absorb
from export.served import ExportError, ServedModel
from export.session import Session
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import FloatArray

MOST_POINTS_LOST = 0.5
LARGEST_WEIGHT = 64
"""Two products with a uint8, 2 * 255 * 64 = 32,640, fit into 16 bits."""
_TAPS = ("conv1.relu", "conv2.relu", "fc1.relu", "fc2.relu")


@dataclass(frozen=True)
class Decision:
    """Whether int8 was kept, and the figures behind it. Accuracies in percent, times in microseconds."""

    kept: bool
    accuracy_float: float
    accuracy_int8: float
    p50_float: float
    p50_int8: float
    images: int

    def __str__(self) -> str:
        return (
            f"int8 {'kept' if self.kept else 'not kept'}: accuracy {self.accuracy_int8:.2f} % against "
            f"{self.accuracy_float:.2f} % in float on {self.images} images, {self.p50_int8:.1f} us against "
            f"{self.p50_float:.1f} us per image here"
        )


def decide(
    model: ServedModel, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.integer]
) -> tuple[onnx.ModelProto, Decision]:
    """The model to serve, int8 or float, and why; both take raw images.

    `images` (N, height, width, channels) and `labels` (N,) are the hold-out. int8 is kept when it loses at
    most 0.5 points of accuracy on it and answers faster on this machine, batch 1. The decision is stored as
    the property `int8` (JSON), the chosen form as `precision`.
    """
    if len(images) == 0 or len(images) != len(labels):
        raise ExportError(
            f"int8 needs a labelled hold-out, not {len(images)} images and {len(labels)} labels"
        )
    forms = {"float32": build(model), "int8": quantise(model, images)}
    sessions = [Session(proto.SerializeToString()) for proto in forms.values()]
    accuracy = [100.0 * float(np.mean(s.logits(images).argmax(axis=1) == labels)) for s in sessions]
    p50 = medians(sessions, images[:1])
    kept = accuracy[0] - accuracy[1] <= MOST_POINTS_LOST and p50[1] < p50[0]
    decision = Decision(kept, accuracy[0], accuracy[1], p50[0], p50[1], len(images))
    precision = "int8" if kept else "float32"
    proto = forms[precision]
    for key, value in (("int8", json.dumps(asdict(decision))), ("precision", precision)):
        proto.metadata_props.add(key=key, value=value)
    return proto, decision


def medians(
    sessions: Sequence[Session], image: npt.NDArray[np.uint8], *, rounds: int = 20, runs: int = 30
) -> list[float]:
    """Median microseconds per call of each session, measured in turns so that all meet the same machine."""
    times: list[list[int]] = [[] for _ in sessions]
    for turn in range(rounds + 2):
        for session, taken in zip(sessions, times, strict=True):
            for _ in range(runs):
                start = perf_counter_ns()
                session.logits(image)
                if turn >= 2:  # the first turns warm up
                    taken.append(perf_counter_ns() - start)
    return [float(np.median(taken)) / 1000.0 for taken in times]


def quantise(model: ServedModel, images: npt.NDArray[np.uint8]) -> onnx.ModelProto:
    """The int8 form of `model`, calibrated on `images` (N, height, width, channels), whatever it costs.

    Raises ExportError for architectures other than LeNet, and for sums of LeNets of different widths.
    """
    model.check()
    groups = model.groups()
    lenet = groups[0].architecture
    if len(groups) > 1 or not isinstance(lenet, LeNet):
        kinds = ", ".join(dict.fromkeys(type(group.architecture).__name__ for group in groups))
        unlike = f"{len(groups)} different networks ({kinds})" if len(groups) > 1 else kinds
        raise ExportError(f"int8 is written for sums of one LeNet only, not for {unlike}")
    model = groups[0]
    raw = absorb(model)
    weights = fuse(raw, lenet)
    steps = [max(top, 1e-6) / 255.0 for top in _largest_activations(raw, weights, images)]
    nodes = _QuantisedNodes()
    shape = np.array([0, 1, lenet.input_shape[1], lenet.input_shape[2] * lenet.input_shape[0]], np.int64)
    rows = nodes.add("Reshape", [INPUT, nodes.weight("pixels.shape", shape)], "rows")
    x = nodes.dequantise(rows, "pixels", 1.0)
    _layers(nodes, x, weights, lenet, steps)
    return assemble(nodes, model, "uint8", {"logits": ["N", lenet.classes]})


def _layers(
    nodes: _QuantisedNodes, x: str, weights: FusedWeights, lenet: LeNet, steps: Sequence[float]
) -> None:
    out, channels, height, width = weights.conv1.shape
    conv1 = weights.conv1.transpose(0, 2, 3, 1).reshape(out, 1, height, width * channels)
    x = nodes.convolution(x, "conv1", conv1, weights.bias1, (1.0, steps[0]), strides=[1, channels])
    x = nodes.pool(x, "conv1", steps[0])
    x = nodes.convolution(
        x, "conv2", weights.conv2, weights.bias2, (steps[0], steps[1]), group=weights.groups2
    )
    x = nodes.pool(x, "conv2", steps[1])
    x = nodes.convolution(x, "fc1", weights.fc1, weights.fc1_bias, (steps[1], steps[2]), group=weights.groups)
    x = nodes.convolution(x, "fc2", weights.fc2, weights.fc2_bias, (steps[2], steps[3]), group=weights.groups)
    matrix: FloatArray = np.stack(weights.last).sum(axis=0, dtype=np.float32)
    bias: FloatArray = np.stack(weights.last_bias).sum(axis=0, dtype=np.float32)
    inputs = [nodes.add("Flatten", [x], "features"), nodes.weight("last.weight", matrix)]
    nodes.add("Gemm", [*inputs, nodes.weight("last.bias", bias)], "logits", transB=1)


def _largest_activations(
    raw: ServedModel, weights: FusedWeights, images: npt.NDArray[np.uint8], most: int = 1024
) -> list[float]:
    """Largest value behind each ReLU over at most `most` images, evenly taken; nothing is clipped."""
    nodes = Nodes()
    fused(nodes, Source(nodes, raw, "uint8").rows(), weights, raw, "uint8", False)
    outputs: dict[str, Sequence[str | int]] = {"logits": ["N", len(raw.classes)]}
    for tap in _TAPS:
        nodes.add("ReduceMax", [tap], f"{tap}.top", axes=[1, 2, 3], keepdims=0)
        outputs[f"{tap}.top"] = ["N"]
    session = Session(assemble(nodes, raw, "uint8", outputs).SerializeToString())
    chosen = images[np.linspace(0, len(images) - 1, min(len(images), most)).astype(int)]
    return [float(top.max()) for top in session.run(chosen, [f"{tap}.top" for tap in _TAPS])]


class _QuantisedNodes(Nodes):
    """Nodes in pairs of QuantizeLinear and DequantizeLinear, which runtimes replace by integer kernels."""

    def dequantise(self, source: str, name: str, step: float) -> str:
        return self.add("DequantizeLinear", [source, *self._scale(name, step)], f"{name}.float")

    def requantise(self, source: str, name: str, step: float) -> str:
        inputs = [source, *self._scale(name, step)]
        return self.dequantise(self.add("QuantizeLinear", inputs, f"{name}.uint8"), f"{name}.again", step)

    def pool(self, source: str, name: str, step: float) -> str:
        out = self.add("MaxPool", [source], f"{name}.pool", kernel_shape=[2, 2], strides=[2, 2])
        return self.requantise(out, f"{name}.pooled", step)

    def convolution(
        self,
        source: str,
        name: str,
        weight: FloatArray,
        bias: FloatArray,
        steps: tuple[float, float],
        *,
        group: int = 1,
        strides: Sequence[int] = (1, 1),
    ) -> str:
        """Convolution and ReLU; `steps` are the sizes of one unit before and behind it."""
        tops = np.abs(weight).max(axis=(1, 2, 3))
        scale = (np.maximum(tops, 1e-8) / LARGEST_WEIGHT).astype(np.float32)
        whole = np.rint(weight / scale[:, None, None, None]).astype(np.int8)
        bias_scale = (scale * steps[0]).astype(np.float32)
        # A channel whose weights are all (nearly) zero has a tiny scale: its bias must still fit into int32.
        limit = 2**31 - 1
        whole_bias = np.clip(np.rint(bias / bias_scale.astype(np.float64)), -limit, limit).astype(np.int32)
        inputs = [source]
        for kind, values, unit in (("weight", whole, scale), ("bias", whole_bias, bias_scale)):
            stored = [
                self.weight(f"{name}.{kind}", values),
                self.weight(f"{name}.{kind}.scale", unit),
                self.weight(f"{name}.{kind}.zero", np.zeros(len(values), values.dtype)),
            ]
            inputs.append(self.add("DequantizeLinear", stored, f"{name}.{kind}.float", axis=0))
        out = self.add(
            "Conv", inputs, name, group=group, strides=list(strides), kernel_shape=list(weight.shape[2:])
        )
        return self.requantise(self.add("Relu", [out], f"{name}.relu"), name, steps[1])

    def _scale(self, name: str, step: float) -> list[str]:
        scale = self.weight(f"{name}.scale", np.array(step, np.float32))
        return [scale, self.weight(f"{name}.zero", np.array(0, np.uint8))]
