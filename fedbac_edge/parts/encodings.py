"""How a trained part travels: as it is, or as its step from the base in fewer bits.

- `float32`: the part's canonical bytes; the receiver gets the very bits that were trained.
- `float16`: the step (part - base) in half precision: half the bytes.
- `int8`: the step in 255 levels, one scale per tensor: a quarter of the bytes. What the levels cannot express
  is not lost: the sender keeps it as a *residual* and adds it to its next step (error feedback: Seide et al.,
  "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error Feedback Fixes SignSGD",
  ICML 2019). `protocol/gateway/feedback.py` says when a residual counts.

Running statistics of batch normalisations travel as they are in every encoding: they are few, and a variance
that rounding takes below zero, or close to it, would ruin the network.

Every operation is a float32 operation on single elements, so equal inputs give equal bytes on every machine.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from safetensors.numpy import save

from fedbac_edge.parts.part import (
    FloatArray,
    Part,
    PartError,
    Schema,
    has_variances,
    is_finite,
    is_statistic,
    pack,
    read_tensors,
    unpack,
)

Encoding = Literal["float32", "float16", "int8"]
NAMES: tuple[Encoding, ...] = get_args(Encoding)
WITH_RESIDUAL: frozenset[Encoding] = frozenset({"int8"})
"""Encodings whose sender keeps what was not expressed."""

LEVELS = 127
"""int8: whole numbers from -127 to 127 times the scale."""
SCALES = "#scales"
"""int8: the tensor of scales, float32, one per tensor in the order of their names. No model has this name."""
_SMALLEST_SCALE = np.finfo(np.float32).tiny


class EncodingError(PartError):
    """The step cannot be expressed in this encoding: it is no finite number there."""


def encode(encoding: Encoding, part: Part, base: Part, residual: Part | None) -> tuple[bytes, Part | None]:
    """The bytes that travel for `part`, trained from `base`, and the residual that they leave.

    All float32, same tensors and shapes. `residual` is what the sender still owes (None: nothing); only
    encodings in WITH_RESIDUAL look at it and return a new one. Raises EncodingError.
    """
    if encoding == "float32":
        return pack(part), None
    with np.errstate(over="ignore", invalid="ignore"):
        exact = {name: np.asarray(part[name], np.float32, order="C") for name in part if is_statistic(name)}
        steps = {name: np.asarray(part[name] - base[name]) for name in sorted(part) if name not in exact}
        if encoding == "float16":
            halves = {name: np.asarray(step, np.float16) for name, step in steps.items()}
            _check(halves, encoding)
            return save({**halves, **exact}), None
        if residual is not None:
            steps = {name: np.asarray(step + residual[name]) for name, step in steps.items()}
        _check(steps, encoding)
        levels: dict[str, Any] = {}
        scales = np.empty(len(steps), np.float32)
        left: Part = {}
        for index, (name, step) in enumerate(steps.items()):
            scales[index] = _scale(step)
            rounded = np.clip(np.rint(step / scales[index]), -LEVELS, LEVELS)
            levels[name] = np.asarray(rounded, np.int8)
            left[name] = np.asarray(step - rounded * scales[index], np.float32)
    _check(left, encoding)
    nothing = {name: np.zeros_like(tensor) for name, tensor in exact.items()}
    return save({**levels, **exact, SCALES: scales}), {**left, **nothing}


def decode(encoding: Encoding, data: bytes, base: Part, schema: Schema) -> Part:
    """The part that `data` stands for, on top of `base` (float32, of `schema`).

    Size, names, types and shapes are checked before arrays are made, then scales (finite, positive) and the
    numbers of the result (finite, no variance below zero). Raises PartError.
    """
    if encoding == "float32":
        return _finite(unpack(data, schema))
    exact = {name: (np.dtype(np.float32), shape) for name, shape in schema.items() if is_statistic(name)}
    stepped = {name: shape for name, shape in schema.items() if name not in exact}
    with np.errstate(over="ignore", invalid="ignore"):
        if encoding == "float16":
            halves = read_tensors(
                data, {**{name: (np.dtype(np.float16), s) for name, s in stepped.items()}, **exact}
            )
            steps = {name: halves[name].astype(np.float32) for name in stepped}
            return _sum(base, steps, {name: halves[name] for name in exact})
        levels = read_tensors(
            data,
            {
                **{name: (np.dtype(np.int8), shape) for name, shape in stepped.items()},
                **exact,
                SCALES: (np.dtype(np.float32), (len(stepped),)),
            },
        )
        scales = levels[SCALES]
        if not (np.isfinite(scales).all() and (scales > 0).all()):
            raise PartError("a scale is not a finite number above zero")
        by_name = dict(zip(sorted(stepped), scales, strict=True))
        steps = {name: levels[name].astype(np.float32) * by_name[name] for name in stepped}
        return _sum(base, steps, {name: levels[name] for name in exact})


def _scale(step: FloatArray) -> np.float32:
    """The largest entry takes the last level; a tensor without any step still needs a scale above zero."""
    largest = np.abs(step).max(initial=np.float32(0))
    return np.float32(max(np.float32(largest / np.float32(LEVELS)), _SMALLEST_SCALE))


def _check(tensors: dict[str, Any], encoding: Encoding) -> None:
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise EncodingError(f"{name}: the step from the base is too large for {encoding}")


def _sum(base: Part, steps: Part, exact: Part) -> Part:
    # asarray: numpy makes a scalar of a sum without dimensions.
    moved = {name: np.asarray(base[name] + step) for name, step in steps.items()}
    return _finite({name: moved[name] if name in moved else exact[name] for name in base})


def _finite(part: Part) -> Part:
    if not is_finite(part):
        raise PartError("holds a number that is not finite")
    if not has_variances(part):
        raise PartError("holds a variance below zero")
    return part
