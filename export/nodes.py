"""The nodes and weights of an ONNX graph while it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

DENORMAL = 1e-30


class Nodes:
    """Nodes and weights of a graph being written, with names that say where they stand."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, array: npt.NDArray[Any]) -> str:
        """Store a constant; weights too small to matter become zero, since denormals slow x86 30 times."""
        if array.dtype.kind == "f":
            array = array.astype(np.float32)
            array[np.abs(array) < DENORMAL] = 0.0
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Append one node with one output."""
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output
