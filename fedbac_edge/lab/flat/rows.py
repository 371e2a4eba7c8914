"""A run's figures, one JSON line per round: `metrics.jsonl`. Lines are whole or not there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from fedbac_edge.lab import folder as run_folder
from fedbac_edge.lab.flat.study import StudyError
from fedbac_edge.lab.folder import Lines
from fedbac_edge.parts.part import Part

FLOAT_BYTES = 4


class Score(msgspec.Struct, frozen=True):
    """Accuracy in [0, 1] and mean cross-entropy on the test set."""

    accuracy: float
    loss: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One round. Bytes are float32 weights, once per client and direction (the paper's rule)."""

    round: int
    phase: Literal["train"] = "train"
    view: str
    """The served model that `accuracy` and `loss` are of."""
    accuracy: float
    loss: float
    views: dict[str, Score]
    training_loss: float
    """The clients' own, as the method defines it: compare it within one method only."""
    clients: tuple[int, ...]
    steps: int
    """Optimiser steps of all clients."""
    up_bytes: int
    down_bytes: int
    wall_s: float
    """The only figure that differs between two runs of one study."""


def size(parts: Mapping[str, Part]) -> int:
    """Bytes of the weights."""
    return FLOAT_BYTES * sum(tensor.size for part in parts.values() for tensor in part.values())


def read(path: Path) -> list[Row]:
    """The whole lines of a metrics file; none when it is not there. Raises StudyError naming the line."""
    return run_folder.read_rows(path, Row, StudyError)


def opened(path: Path, last: int) -> Lines[Row]:
    """The file, open for appending, with the rounds up to `last` alone."""
    return Lines(path, [row for row in read(path) if row.round <= last])
