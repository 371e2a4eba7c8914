"""A part: a named tensor map, and its canonical bytes.

A part ("global", "cluster-3", ...) is what travels, what is averaged and what is hashed. Its bytes are
safetensors: header and sizes are checked before anything is allocated and nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

FloatArray = npt.NDArray[np.float32]
Part = dict[str, FloatArray]
Schema = Mapping[str, tuple[int, ...]]


class PartError(ValueError):
    """The bytes are not the part that the federation's model describes."""


def pack(part: Mapping[str, npt.NDArray[np.floating]]) -> bytes:
    """Canonical bytes of `part`: float32, tensors in name order; equal parts give equal bytes."""
    return save({name: np.asarray(part[name], np.float32, order="C") for name in sorted(part)})


def unpack(data: bytes, schema: Schema) -> Part:
    """Read a part back and hold it to `schema` (tensor name -> shape, all float32).

    Raises PartError naming the first tensor that differs. A size that cannot be right is refused before
    the arrays are made.
    """
    tensors = read_tensors(data, {name: (np.dtype(np.float32), shape) for name, shape in schema.items()})
    return {name: tensors[name] for name in schema}  # safetensors gives them in no fixed order


def read_tensors(data: bytes, layout: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> dict[str, Any]:
    """Read safetensors that must hold exactly the tensors of `layout`: name -> (dtype, shape).

    Raises PartError naming the first tensor that differs. A size that cannot be right is refused before
    the arrays are made.
    """
    expected = sum(dtype.itemsize * prod(shape) for dtype, shape in layout.values())
    if not expected <= len(data) <= expected + 256 * (len(layout) + 4):
        raise PartError(
            f"a part of this model holds {expected} bytes of weights, these are {len(data)} bytes"
        )
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise PartError(f"not readable as safetensors: {error}") from error
    if set(tensors) != set(layout):
        raise PartError(f"expected the tensors {sorted(layout)}, found {sorted(tensors)}")
    for name, (dtype, shape) in layout.items():
        tensor = tensors[name]
        if tensor.dtype != dtype or tensor.shape != tuple(shape):
            raise PartError(f"{name}: expected {dtype} {tuple(shape)}, found {tensor.dtype} {tensor.shape}")
    return tensors


def digest(data: bytes) -> str:
    """Content hash of canonical bytes: sha256, 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def is_finite(part: Part) -> bool:
    """False when any tensor holds a NaN or an infinity."""
    return all(bool(np.isfinite(tensor).all()) for tensor in part.values())


def is_statistic(name: str) -> bool:
    """True for a tensor that a batch normalisation measures: "...running_mean", "...running_var", as torch
    calls them. Such tensors are not trained, so they have no step that could be coarsened or shortened."""
    return name.rpartition(".")[2] in ("running_mean", "running_var")


def has_variances(part: Part) -> bool:
    """False when a running variance is below zero: its root would be no number."""
    return all(bool((t >= 0).all()) for name, t in part.items() if name.endswith("running_var"))


def distance(part: Part, base: Part) -> float:
    """Euclidean norm of part - base over all tensors, in float64."""
    squares = 0.0
    for name in sorted(part):
        step = np.subtract(part[name], base[name], dtype=np.float64)
        squares += float(np.square(step, out=step).sum())
    return float(np.sqrt(squares))
