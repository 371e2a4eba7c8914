"""ONNX for architectures that have no graph of their own here: torch's exporter, held on a short leash.

`dynamo` is said explicitly, because its default changed between versions and one of the two needs another
package and writes newer operator sets; the example has two images, so that the batch stays dynamic; the
result is refused when it is not one self-contained file of the promised operator set.
"""

from __future__ import annotations

import io
import warnings

import onnx
import torch
from onnx import helper

from export.graph import INPUT, IR_VERSION, OPSET
from export.inspection import refers_to_other_files
from export.metadata import properties
from export.nodes import DENORMAL
from export.served import ExportError, InputKind, ServedModel
from export.torchscript import Served, example


def build(
    model: ServedModel, *, input_kind: InputKind = "uint8", part_logits: bool = False
) -> onnx.ModelProto:
    """The same inputs, outputs and metadata as `export.graph.build`, for any registered torch architecture.

    Raises ExportError when torch cannot export the module or the result breaks a promise.
    """
    model.check()
    outputs = ["logits"]
    if part_logits:
        outputs += [f"logits.{term.name}" for term in model.terms]
    module = Served(model, input_kind, part_logits=part_logits).eval()
    buffer = io.BytesIO()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                module,
                (example(model, input_kind),),
                buffer,  # type: ignore[arg-type]  # the annotation forgets files; one path would allow two files
                input_names=[INPUT],
                output_names=outputs,
                opset_version=OPSET,
                dynamic_axes={name: {0: "N"} for name in (INPUT, *outputs)},
                dynamo=False,
            )
    except (RuntimeError, torch.onnx.errors.OnnxExporterError) as error:
        raise ExportError(f"torch cannot export this architecture: {error}") from error
    proto = onnx.load_from_string(buffer.getvalue())
    if refers_to_other_files(buffer.getvalue()):
        raise ExportError("the exported model is not one self-contained file")
    if proto.opset_import[0].version > OPSET:
        raise ExportError(f"the exported model needs operator set {proto.opset_import[0].version}")
    proto.ir_version = IR_VERSION
    for tensor in proto.graph.initializer:
        flush_denormals(tensor)
    helper.set_model_props(proto, properties(model, input_kind))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def flush_denormals(tensor: onnx.TensorProto) -> None:
    """Set float32 weights below 1e-30 to zero, in place."""
    if tensor.data_type == onnx.TensorProto.FLOAT:
        array = onnx.numpy_helper.to_array(tensor).copy()
        array[abs(array) < DENORMAL] = 0.0
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
