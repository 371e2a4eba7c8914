"""Checks before any work: a wrong shape or label is named here, not met deep inside a kernel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedbac_edge.learning.normalise import Images, Labels
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import Part
from fedbac_edge.vocabulary.training import LocalTraining


def check_data(model: Architecture, x: Images, y: Labels) -> None:
    """Hold images (N, H, W, C) and labels (N,) to the model; raises ValueError saying what differs."""
    channels, height, width = model.input_shape
    if x.ndim != 4 or x.shape[1:] != (height, width, channels):
        raise ValueError(f"the model reads images (N, {height}, {width}, {channels}), found {x.shape}")
    if x.dtype not in (np.uint8, np.float32):
        raise ValueError(f"expected uint8 pixels, or float32 in [0, 1], found {x.dtype}")
    if y.shape != x.shape[:1] or y.dtype != np.int64:
        raise ValueError(f"expected {x.shape[0]} int64 labels, found {y.dtype} {y.shape}")
    if len(y) and not (int(y.min()) >= 0 and int(y.max()) < model.classes):
        raise ValueError(f"labels must lie in 0..{model.classes - 1}, found {int(y.min())}..{int(y.max())}")


def check_part(model: Architecture, name: str, part: Part) -> None:
    """Hold one part to the model's schema; raises ValueError naming the first tensor that differs."""
    schema = model.schema()
    if set(part) != set(schema):
        raise ValueError(f"{name}: expected the tensors {sorted(schema)}, found {sorted(part)}")
    for tensor, shape in schema.items():
        if part[tensor].shape != shape or part[tensor].dtype != np.float32:
            found = f"{part[tensor].dtype} {part[tensor].shape}"
            raise ValueError(f"{name}, {tensor}: expected float32 {shape}, found {found}")


def check_training(
    model: Architecture, parts: Mapping[str, Part], x: Images, y: Labels, settings: LocalTraining
) -> None:
    """Everything a training needs; raises ValueError saying what is missing or wrong."""
    if not parts:
        raise ValueError("there is no part to train")
    for role, part in parts.items():
        check_part(model, role, part)
    if unknown := sorted(set(settings.l2) - set(parts)):
        raise ValueError(f"l2 names {unknown}, but the parts in training are {sorted(parts)}")
    if not set(parts) - set(settings.frozen):
        raise ValueError("every part is frozen: there is nothing to train")
    check_data(model, x, y)
    if not len(y):
        raise ValueError("there are no samples to train on")
