"""The ONNX graph of a served model, written node by node: no exporter and no torch in between.

Operator set 17 and IR 8 are low on purpose: onnxruntime 1.16 (2023) loads them. The batch is dynamic, all
weights are inside the file, and normalisation and layout are part of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from export import fusion, resnet
from export.metadata import properties
from export.nodes import Nodes
from export.normalisation import absorb
from export.served import ExportError, InputKind, ServedModel, Term
from fedbac_edge.host.files import write_bytes
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.models.resnet import ResNet8
from fedbac_edge.parts.part import FloatArray

OPSET = 17
IR_VERSION = 8
INPUT = "image"


def writes(model: ServedModel) -> bool:
    """True when `build` knows every architecture of the sum; others go through torch (`export.exporter`)."""
    return all(isinstance(model.of(term), (LeNet, ResNet8)) for term in model.terms)


def build(
    model: ServedModel,
    *,
    input_kind: InputKind = "uint8",
    fuse: bool = True,
    part_logits: bool = False,
    block: int = fusion.BLOCK,
) -> onnx.ModelProto:
    """The graph of `model`: input `image`, output `logits` (N, classes) float32.

    `input_kind` "uint8" takes raw images (N, height, width, channels); "float" takes (N, channels, height,
    width) that are normalised already. With `part_logits` there is one more output `logits.<part>` per
    part, its coefficient included, so that they add up to `logits`. LeNets of equal widths run as one
    network; `fuse=False` keeps one branch per part (for comparison). `block` 16 suits processors with
    onnxruntime's blocked convolutions (x86); where there are none, 1 is faster. Raises ExportError when the
    model does not fit its parts or has an architecture that is not built in.
    """
    if input_kind not in ("uint8", "float"):
        raise ExportError(f'the input kind is "uint8" or "float", not {input_kind!r}')
    model.check()
    nodes = Nodes()
    source = Source(nodes, model, input_kind)
    pieces = model.groups() if fuse else model.singles()
    totals: list[str] = []
    for number, piece in enumerate(pieces):
        prefix = "" if len(pieces) == 1 else f"{number}/"
        if isinstance(piece.architecture, LeNet) and len(piece.terms) > 1:
            raw = absorb(piece) if source.raw else piece
            weights = fusion.fuse(raw, piece.architecture, block)
            totals.append(fused(nodes, source.rows(), weights, raw, input_kind, part_logits, prefix))
            continue
        for single in piece.singles():
            alone = len(model.terms) == 1 and not part_logits
            output = "logits" if alone else f"logits.{single.terms[0].name}"
            totals.append(_branch(nodes, source, single, input_kind, output))
    if totals != ["logits"]:
        nodes.add("Sum", totals, "logits")
    outputs = ["logits", *(f"logits.{term.name}" for term in model.terms if part_logits)]
    return assemble(nodes, model, input_kind, {name: ["N", model.architecture.classes] for name in outputs})


def assemble(
    nodes: Nodes, model: ServedModel, input_kind: InputKind, outputs: dict[str, Sequence[str | int]]
) -> onnx.ModelProto:
    """A checked model file of the nodes written so far, its metadata that of `model`."""
    channels, height, width = model.architecture.input_shape
    raw = input_kind == "uint8"
    shape: list[int | str] = ["N", height, width, channels] if raw else ["N", channels, height, width]
    graph = helper.make_graph(
        nodes.nodes,
        "served",
        [helper.make_tensor_value_info(INPUT, TensorProto.UINT8 if raw else TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in outputs.items()],
        nodes.weights,
    )
    proto = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="fedbac-edge",
    )
    helper.set_model_props(proto, properties(model, input_kind))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def write(proto: onnx.ModelProto, path: str | Path) -> Path:
    """Write one self-contained file; a reader sees the old file or the whole new one, never a part."""
    return write_bytes(proto.SerializeToString(deterministic=True), path)


class Source:
    """What the first layers read; each form of the image is written when a layer asks for it."""

    def __init__(self, nodes: Nodes, model: ServedModel, input_kind: InputKind) -> None:
        self.raw = input_kind == "uint8"
        self._nodes, self._model = nodes, model
        self._made: dict[str, str] = {}

    def rows(self) -> str:
        """For LeNets: raw (N, height, width, channels) as one channel (N, 1, height, width * channels).

        Only a reshape: the first convolution steps over `channels` columns at a time, so nothing is
        transposed. Normalised floats as they are.
        """
        return self._once("rows", self._rows) if self.raw else INPUT

    def normalised(self) -> str:
        """For networks whose first convolution is padded: (N, channels, height, width), normalised."""
        return self._once("normalised", self._normalised) if self.raw else INPUT

    def _once(self, form: str, make: Callable[[], str]) -> str:
        if form not in self._made:
            self._made[form] = make()
        return self._made[form]

    def _cast(self) -> str:
        return self._once("cast", lambda: self._nodes.add("Cast", [INPUT], "pixels", to=TensorProto.FLOAT))

    def _rows(self) -> str:
        channels, height, width = self._model.architecture.input_shape
        cast = self._cast()
        shape = self._nodes.weight("pixels.shape", np.array([0, 1, height, width * channels], np.int64))
        return self._nodes.add("Reshape", [cast, shape], "rows")

    def _normalised(self) -> str:
        mean, std = (
            np.asarray(v, np.float64).reshape(1, -1, 1, 1) for v in (self._model.mean, self._model.std)
        )
        planes = self._nodes.add("Transpose", [self._cast()], "planes", perm=[0, 3, 1, 2])
        scaled = self._nodes.add("Mul", [planes, self._nodes.weight("scale", 1 / (255.0 * std))], "scaled")
        return self._nodes.add("Add", [scaled, self._nodes.weight("shift", -mean / std)], "normalised")


def _first(
    nodes: Nodes, source: str, name: str, weight: FloatArray, bias: FloatArray, input_kind: InputKind
) -> str:
    """First convolution, ReLU and pooling; for raw images the channels are interleaved along the columns."""
    strides = [1, 1]
    if input_kind == "uint8":
        out, channels, height, width = weight.shape
        weight = weight.transpose(0, 2, 3, 1).reshape(out, 1, height, width * channels)
        strides = [1, channels]
    return convolution(nodes, source, name, weight, bias, strides=strides)


def convolution(
    nodes: Nodes,
    source: str,
    name: str,
    weight: FloatArray,
    bias: FloatArray,
    *,
    group: int = 1,
    strides: Sequence[int] = (1, 1),
    pool: bool = True,
) -> str:
    """Convolution (out, in / group, kh, kw), ReLU, and pooling by two unless `pool` is False."""
    inputs = [source, nodes.weight(f"{name}.weight", weight), nodes.weight(f"{name}.bias", bias)]
    kernel = list(weight.shape[2:])
    out = nodes.add("Conv", inputs, name, group=group, strides=list(strides), kernel_shape=kernel)
    out = nodes.add("Relu", [out], f"{name}.relu")
    if pool:
        out = nodes.add("MaxPool", [out], f"{name}.pool", kernel_shape=[2, 2], strides=[2, 2])
    return out


def linear(nodes: Nodes, source: str, name: str, weight: FloatArray, bias: FloatArray, output: str) -> str:
    """One linear layer (out, in)."""
    inputs = [source, nodes.weight(f"{name}.weight", weight), nodes.weight(f"{name}.bias", bias)]
    return nodes.add("Gemm", inputs, output, transB=1)


def _branch(nodes: Nodes, source: Source, model: ServedModel, input_kind: InputKind, output: str) -> str:
    """The network of a model with one part, its coefficient in the last layer."""
    match model.architecture:
        case LeNet():
            raw = absorb(model) if source.raw else model
            return _lenet(nodes, source.rows(), raw.terms[0], input_kind, output)
        case ResNet8() as description:
            return resnet.write(nodes, source.normalised(), description, model.terms[0], output)
    kind = type(model.architecture).__name__
    raise ExportError(f"no graph is written here for {kind}; export it through torch")


def _lenet(nodes: Nodes, source: str, term: Term, input_kind: InputKind, output: str) -> str:
    name, part = term.name, term.part
    x = _first(nodes, source, f"{name}/conv1", part["conv1.weight"], part["conv1.bias"], input_kind)
    x = convolution(nodes, x, f"{name}/conv2", part["conv2.weight"], part["conv2.bias"])
    x = nodes.add("Flatten", [x], f"{name}/features")
    for layer in ("fc1", "fc2"):
        weight, bias = part[f"{layer}.weight"], part[f"{layer}.bias"]
        x = linear(nodes, x, f"{name}/{layer}", weight, bias, f"{name}/{layer}")
        x = nodes.add("Relu", [x], f"{name}/{layer}.relu")
    weight = (term.coefficient * part["fc3.weight"]).astype(np.float32)
    bias = (term.coefficient * part["fc3.bias"]).astype(np.float32)
    return linear(nodes, x, f"{name}/fc3", weight, bias, output)


def fused(
    nodes: Nodes,
    source: str,
    weights: fusion.FusedWeights,
    model: ServedModel,
    input_kind: InputKind,
    part_logits: bool,
    prefix: str = "",
) -> str:
    """All parts in one pass (see `export.fusion`); part logits are further rows of the last product.

    Returns the output that holds their sum: "logits" after `prefix`.
    """
    total = f"{prefix}logits"
    x = _first(nodes, source, f"{prefix}conv1", weights.conv1, weights.bias1, input_kind)
    x = convolution(nodes, x, f"{prefix}conv2", weights.conv2, weights.bias2, group=weights.groups2)
    for layer, weight, shift in (
        ("fc1", weights.fc1, weights.fc1_bias),
        ("fc2", weights.fc2, weights.fc2_bias),
    ):
        x = convolution(nodes, x, f"{prefix}{layer}", weight, shift, group=weights.groups, pool=False)
    x = nodes.add("Flatten", [x], f"{prefix}features")
    matrix: FloatArray = np.stack(weights.last).sum(axis=0, dtype=np.float32)
    bias: FloatArray = np.stack(weights.last_bias).sum(axis=0, dtype=np.float32)
    if not part_logits:
        return linear(nodes, x, f"{prefix}last", matrix, bias, total)
    rows = [matrix, *weights.last]
    stacked_bias = np.concatenate([bias, *weights.last_bias])
    stacked = linear(nodes, x, f"{prefix}last", np.concatenate(rows), stacked_bias, f"{prefix}stacked")
    outputs = [total, *(f"logits.{term.name}" for term in model.terms)]
    sizes = nodes.weight(f"{prefix}sizes", np.full(len(outputs), len(bias), np.int64))
    nodes.nodes.append(helper.make_node("Split", [stacked, sizes], outputs, name=f"{prefix}parts", axis=1))
    return total
