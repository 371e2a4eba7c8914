"""The samples of a simulated federation, laid out so that worker processes share them without copies.

One folder of plain .npy files, opened as memory maps: each device's training samples are one consecutive
piece, so are its held-out ones, those of all devices of a gateway together, and each gateway's test set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets import holdout
from fedbac_edge.datasets.partition import Partition
from fedbac_edge.datasets.samples import UNLABELLED, Samples
from fedbac_edge.federation import Federation

PLAN = "plan.json"
FILES = ("train_x", "train_y", "test_x", "test_y")


class Place(msgspec.Struct, frozen=True):
    """Samples `start` to `stop` of one of the two sets."""

    set: Literal["train", "test"]
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


NOTHING = Place("train", 0, 0)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Where whose samples lie."""

    train: dict[str, Place]
    """Device -> what it trains on."""
    holdout: dict[str, Place]
    """Device -> what it never trains on."""
    held: dict[str, Place]
    """Gateway -> the hold-outs of all its devices."""
    test: dict[str, Place]
    """Gateway -> its share of the test set, in the order of the classes."""


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


def opened(folder: Path) -> Sets:
    """The sets that were laid out there, as maps."""
    return Sets(**{name: _open(folder / f"{name}.npy") for name in FILES})


class Grounds:
    """A laid-out data set, and the federation that learns on it in MessagePack, as it goes to workers."""

    def __init__(self, folder: Path, federation: bytes) -> None:
        self.folder, self.federation = folder, federation

    @cached_property
    def description(self) -> Federation:
        """The federation."""
        return msgspec.msgpack.decode(self.federation, type=Federation)

    @cached_property
    def plan(self) -> Plan:
        """Where whose samples lie."""
        return msgspec.json.decode((self.folder / PLAN).read_bytes(), type=Plan)

    def samples(self, place: Place) -> Samples:
        """Views of the maps, not copies."""
        return self.sets.at(place)

    def counts(self, device: str) -> tuple[int, int]:
        """Samples that a device trains on, and those of them without labels."""
        own = self.samples(self.plan.train[device])
        return len(own), int(np.count_nonzero(own.y == UNLABELLED))

    def per_class(self, place: Place) -> tuple[Place, ...]:
        """A place in the order of the classes, cut into these; empty where there are no samples of one."""
        y = self.samples(place).y
        ends = np.searchsorted(y, np.arange(len(self.description.model.classes)), side="right")
        starts = [0, *ends[:-1].tolist()]
        return tuple(
            Place(place.set, place.start + begin, place.start + end)
            for begin, end in zip(starts, ends.tolist(), strict=True)
        )

    @cached_property
    def sets(self) -> Sets:
        """All samples, as maps of the files."""
        return opened(self.folder)


def lay_out(
    folder: Path,
    federation: Federation,
    partition: Partition,
    train: Samples,
    test: Samples,
) -> Grounds:
    """Write the files. With `evaluation = "test"` nothing is held out (the paper's protocol)."""
    folder.mkdir(parents=True, exist_ok=True)
    fraction = 0.0 if federation.evaluation == "test" else 0.1
    order: list[npt.NDArray[np.int64]] = []
    places: dict[str, dict[str, Place]] = {"train": {}, "holdout": {}, "held": {}, "test": {}}
    at = 0

    def place(indices: npt.NDArray[np.int64]) -> Place:
        nonlocal at
        order.append(indices)
        at += len(indices)
        return Place("train", at - len(indices), at)

    for (gateway, devices), clients in zip(_roster(federation), partition.train, strict=True):
        cuts = [_split(train, indices, fraction) for indices in clients]
        for device, (kept, _) in zip(devices, cuts, strict=True):
            places["train"][device] = place(kept)
        first = at
        for device, (_, held) in zip(devices, cuts, strict=True):
            places["holdout"][device] = place(held)
        places["held"][gateway] = Place("train", first, at)
    everything = np.concatenate(order)
    _write(folder / "train_x.npy", train.x[everything])
    _write(folder / "train_y.npy", train.y[everything])

    at = 0
    by_class = [indices[np.argsort(test.y[indices], kind="stable")] for indices in partition.test]
    for (gateway, _), indices in zip(_roster(federation), by_class, strict=True):
        places["test"][gateway] = Place("test", at, at + len(indices))
        at += len(indices)
    judged = np.concatenate(by_class)
    _write(folder / "test_x.npy", test.x[judged])
    _write(folder / "test_y.npy", test.y[judged])
    (folder / PLAN).write_bytes(msgspec.json.encode(Plan(**places)))
    return Grounds(folder, msgspec.msgpack.encode(federation))


def _roster(federation: Federation) -> list[tuple[str, tuple[str, ...]]]:
    """Gateways and devices in name order: server m of the partition is the m-th name."""
    gateways: Mapping[str, tuple[str, ...]] = federation.gateways
    return [(gateway, tuple(sorted(gateways[gateway]))) for gateway in sorted(gateways)]


def _split(
    train: Samples, indices: npt.NDArray[np.int64], fraction: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A client's indices: (to train on, held out), by `datasets.holdout`."""
    if not fraction or not len(indices):
        return indices, indices[:0]
    held = holdout.held_out(train.take(indices), fraction)
    return indices[~held], indices[held]


def _write(path: Path, array: npt.NDArray[np.generic]) -> None:
    with path.open("wb") as file:
        np.save(file, np.ascontiguousarray(array), allow_pickle=False)


def _open(path: Path) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
