"""Where a run's data lie for its worker processes, as memory maps: by client, labelled samples first.

Labels that a client has not are gone from the files, so no method can look at them by mistake.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets.annotation import Annotation
from fedbac_edge.datasets.samples import UNLABELLED, Samples
from fedbac_edge.learning.settings import Normalisation
from fedbac_edge.models.catalog import architecture
from fedbac_edge.semi.method import Bench, Client, Holding, Method, method_of
from fedbac_edge.semi.study import Study
from fedbac_edge.simulation.presets import MODELS

PLAN = "plan.json"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The study, and each client's (first sample, end of its labelled ones, end)."""

    study: Study
    places: tuple[tuple[int, int, int], ...]


class Hall:
    """A laid-out data set and the study that learns on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plan = msgspec.json.decode((folder / PLAN).read_bytes(), type=Plan)
        self.study = self.plan.study

    @cached_property
    def method(self) -> Method:
        """The method with its options."""
        return method_of(self.study.method, self.study.options)

    @cached_property
    def bench(self) -> Bench:
        """What every client knows."""
        about = MODELS[self.study.data]
        return Bench(
            model=architecture(self.study.architecture, about.input, len(about.classes)),
            normalisation=Normalisation(mean=about.mean, std=about.std),
            training=self.study.training,
            rounds=self.study.rounds,
            seed=self.study.seed,
        )

    @cached_property
    def holdings(self) -> tuple[Holding, ...]:
        """Who has how much."""
        return tuple(
            Holding(number, middle - start, stop - middle)
            for number, (start, middle, stop) in enumerate(self.plan.places)
        )

    def client(self, number: int) -> Client:
        """A client with views of its samples."""
        x, y = self._train
        start, middle, stop = self.plan.places[number]
        return Client(
            number, Samples(x[start:middle], y[start:middle]), Samples(x[middle:stop], y[middle:stop])
        )

    def test(self, shard: int, shards: int) -> Samples:
        """One of so many consecutive pieces of the test set."""
        x, y = self._test
        start, stop = (len(y) * k // shards for k in (shard, shard + 1))
        return Samples(x[start:stop], y[start:stop])

    @cached_property
    def _train(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        return _open(self.folder / "train_x.npy"), _open(self.folder / "train_y.npy")

    @cached_property
    def _test(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        return _open(self.folder / "test_x.npy"), _open(self.folder / "test_y.npy")


def lay_out(folder: Path, study: Study, split: Annotation, train: Samples, test: Samples) -> Hall:
    """Write the files."""
    folder.mkdir(parents=True, exist_ok=True)
    places, order, labels, at = [], [], [], 0
    for labelled, unlabelled in zip(split.labelled, split.unlabelled, strict=True):
        places.append((at, at + len(labelled), at + len(labelled) + len(unlabelled)))
        order += [labelled, unlabelled]
        labels += [train.y[labelled], np.full(len(unlabelled), UNLABELLED, np.int64)]
        at = places[-1][2]
    for name, array in {
        "train_x": train.x[np.concatenate(order)],
        "train_y": np.concatenate(labels),
        "test_x": test.x,
        "test_y": test.y,
    }.items():
        with (folder / f"{name}.npy").open("wb") as file:
            np.save(file, np.ascontiguousarray(array), allow_pickle=False)
    (folder / PLAN).write_bytes(msgspec.json.encode(Plan(study=study, places=tuple(places))))
    return Hall(folder)


def _open(path: Path) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
