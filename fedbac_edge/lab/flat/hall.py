"""Where a study's data lie for its workers: by client, labelled samples first.

Labels that a client has not are gone from the files, so no method can look at them by mistake.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np

from fedbac_edge.datasets.annotation import Annotation
from fedbac_edge.datasets.samples import UNLABELLED, Samples
from fedbac_edge.lab import samples
from fedbac_edge.lab.engine import Run
from fedbac_edge.lab.flat.method import Bench, Client, Holding, Method, method_of
from fedbac_edge.lab.flat.study import Study
from fedbac_edge.lab.samples import Place, Sets
from fedbac_edge.models.catalog import architecture
from fedbac_edge.settings.pictures import MODELS
from fedbac_edge.vocabulary.training import Normalisation


class Hall:
    """A laid-out data set and the study that learns on it."""

    def __init__(self, folder: Path, study: Study, places: tuple[tuple[Place, Place], ...]) -> None:
        self.study, self.places = study, places
        """`places`: each client's labelled samples, and its unlabelled ones."""
        self.run = Run("flat", folder, msgspec.msgpack.encode(study))
        """For an engine."""

    @cached_property
    def method(self) -> Method:
        """The method with its options."""
        return method_of(self.study.method, self.study.options)

    @cached_property
    def bench(self) -> Bench:
        """What every client knows."""
        return bench_of(self.study)

    @cached_property
    def sets(self) -> Sets:
        """All samples, as maps of the files."""
        return samples.opened(self.run.folder)

    @cached_property
    def holdings(self) -> tuple[Holding, ...]:
        """How much each client has."""
        return tuple(Holding(number, *map(len, places)) for number, places in enumerate(self.places))

    def client(self, number: int) -> Client:
        """A client with views of its samples."""
        return Client(number, *map(self.sets.at, self.places[number]))


def bench_of(study: Study) -> Bench:
    """What every client knows."""
    about = MODELS[study.data]
    return Bench(
        model=architecture(study.architecture, about.input, len(about.classes)),
        normalisation=Normalisation(mean=about.mean, std=about.std),
        training=study.training,
        rounds=study.rounds,
        seed=study.seed,
    )


def lay_out(folder: Path, study: Study, split: Annotation, train: Samples, test: Samples) -> Hall:
    """Write the files."""
    places, order, labels, at = [], [], [], 0
    for labelled, unlabelled in zip(split.labelled, split.unlabelled, strict=True):
        middle, end = at + len(labelled), at + len(labelled) + len(unlabelled)
        places.append((Place("train", at, middle), Place("train", middle, end)))
        order += [labelled, unlabelled]
        labels += [train.y[labelled], np.full(len(unlabelled), UNLABELLED, np.int64)]
        at = end
    samples.write(folder, Samples(train.x[np.concatenate(order)], np.concatenate(labels)), test)
    return Hall(folder, study, tuple(places))
