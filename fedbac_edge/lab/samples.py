"""The samples of a run, laid out so that worker processes share them without copies.

One folder of plain .npy files, opened as memory maps. Whose samples are whose stands in `Place`s.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets.samples import Samples

FILES = ("train_x", "train_y", "test_x", "test_y")


class Place(msgspec.Struct, frozen=True):
    """Samples `start` to `stop` of one of the two sets."""

    set: Literal["train", "test"]
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


NOTHING = Place("train", 0, 0)


@dataclass(frozen=True, eq=False)
class Sets:
    """All samples of both sets: x uint8 (N, H, W, C), y int64 (N,) of each. Maps of files, or arrays."""

    train_x: npt.NDArray[np.uint8]
    train_y: npt.NDArray[np.int64]
    test_x: npt.NDArray[np.uint8]
    test_y: npt.NDArray[np.int64]

    def at(self, place: Place) -> Samples:
        """Views, not copies."""
        x, y = (self.train_x, self.train_y) if place.set == "train" else (self.test_x, self.test_y)
        return Samples(x[place.start : place.stop], y[place.start : place.stop])


def write(folder: Path, train: Samples, test: Samples) -> None:
    """Lay out both sets."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = (train.x, train.y, test.x, test.y)
    for name, array in zip(FILES, arrays, strict=True):
        with (folder / f"{name}.npy").open("wb") as file:
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)


def opened(folder: Path) -> Sets:
    """The sets that were laid out there, as maps."""
    return Sets(**{name: _open(folder / f"{name}.npy") for name in FILES})


def _open(path: Path) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
