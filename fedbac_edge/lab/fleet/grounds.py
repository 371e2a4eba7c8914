"""The samples of a simulated federation, laid out for workers (`samples`).

Each device's training samples are one consecutive piece, so are its held-out ones, those of all devices of a
gateway together, and each gateway's test set.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets import holdout
from fedbac_edge.datasets.partition import Partition
from fedbac_edge.datasets.samples import UNLABELLED, Samples
from fedbac_edge.lab.engine import Run
from fedbac_edge.lab.samples import Place, Sets, opened, write
from fedbac_edge.settings.federation import Federation

PLAN = "plan.json"


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


class Grounds:
    """A laid-out data set, and the federation that learns on it."""

    def __init__(self, folder: Path, federation: Federation) -> None:
        self.folder, self.federation = folder, federation
        self.run = Run("fleet", folder, msgspec.msgpack.encode(federation))
        """For an engine."""

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
        ends = np.searchsorted(y, np.arange(len(self.federation.model.classes)), side="right")
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

    at = 0
    by_class = [indices[np.argsort(test.y[indices], kind="stable")] for indices in partition.test]
    for (gateway, _), indices in zip(_roster(federation), by_class, strict=True):
        places["test"][gateway] = Place("test", at, at + len(indices))
        at += len(indices)
    judged = np.concatenate(by_class)
    write(folder, train.take(everything), test.take(judged))
    (folder / PLAN).write_bytes(msgspec.json.encode(Plan(**places)))
    return Grounds(folder, federation)


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
