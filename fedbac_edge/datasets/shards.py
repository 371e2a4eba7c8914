"""A partitioned data set as files: one archive per device, one test set per gateway, and what was cut.

    DIR/gw1/dev-1-1.npz ...   x uint8 (N, height, width, channels), y uint8 (N,); where labels are missing
                              y is int16 with -1 in their place, and a device without any has no y
    DIR/gw1/test.npz          the site's share of the test set, for judging only
    DIR/partition.npz         which device owns which sample (`Partition.load`)
    DIR/annotation.npz        which of them carry a label, where some do not (`Annotation.load`)
    DIR/partition.json        the same in words: settings, hash, counts, proportions

The folder is written beside its place and moved there whole. Equal settings give equal bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbac_edge.datasets.annotation import Annotation
from fedbac_edge.datasets.partition import Partition
from fedbac_edge.datasets.samples import UNLABELLED, Samples

DESCRIPTION = "partition.json"


class Occupied(ValueError):
    """The folder holds something that no earlier run of ours wrote."""


@dataclass(frozen=True)
class Shard:
    """Samples of one device, or one gateway's test set (`device` empty): per class, and without a label."""

    gateway: str
    device: str
    per_class: tuple[int, ...]
    unlabelled: int = 0

    @property
    def labelled(self) -> int:
        """How many carry a label."""
        return sum(self.per_class)

    @property
    def samples(self) -> int:
        """How many in all."""
        return self.labelled + self.unlabelled


def describe(partition: Partition, train: Samples, test: Samples, classes: int) -> list[Shard]:
    """Every device in order, and after each gateway's devices its test set."""
    shards = []
    for m, (clients, judged) in enumerate(zip(partition.train, partition.test, strict=True), 1):
        for i, indices in enumerate(clients, 1):
            y = train.y[indices]
            bare = int((y == UNLABELLED).sum())
            shards.append(Shard(f"gw{m}", f"dev-{m}-{i}", _counts(y, classes), bare))
        shards.append(Shard(f"gw{m}", "", _counts(test.y[judged], classes)))
    return shards


def write(
    directory: Path,
    partition: Partition,
    train: Samples,
    test: Samples,
    about: Mapping[str, Any],
    annotation: Annotation | None = None,
) -> list[Shard]:
    """Write the folder, replacing an earlier partition there; devices without samples get no file.

    With an `annotation` only the labels that it leaves are written; `train` has them all.
    `about` (class names under "classes", where the data came from ...) goes into partition.json.
    Raises Occupied when the folder holds something else.
    """
    if annotation is not None:
        train = Samples(train.x, annotation.hide(train.y))
    shards = describe(partition, train, test, len(about["classes"]))
    with _replacing(directory) as place:
        for m, (clients, judged) in enumerate(zip(partition.train, partition.test, strict=True), 1):
            (place / f"gw{m}").mkdir()
            for i, indices in enumerate(clients, 1):
                if len(indices):
                    _save(place / f"gw{m}" / f"dev-{m}-{i}.npz", train.take(indices))
            _save(place / f"gw{m}" / "test.npz", test.take(judged))
        partition.save(place / "partition.npz")
        description: dict[str, Any] = {
            "hash": partition.digest,
            **about,
            "form": partition.form,
            "alpha_server": partition.alpha_server,
            "alpha_client": partition.alpha_client,
            "seed": partition.seed,
            "counts": {
                f"{shard.gateway}/{shard.device or 'test'}": list(shard.per_class) for shard in shards
            },
            "server_shares": partition.server_shares.tolist(),
            "client_shares": [shares.tolist() for shares in partition.client_shares],
        }
        if annotation is not None:
            annotation.save(place / "annotation.npz")
            described = ("setting", "share", "alpha", "seed", "digest")
            description["annotation"] = {name: getattr(annotation, name) for name in described}
            description["unlabelled"] = {f"{s.gateway}/{s.device}": s.unlabelled for s in shards if s.device}
        (place / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    return shards


def _counts(labels: np.ndarray[Any, np.dtype[np.int64]], classes: int) -> tuple[int, ...]:
    return tuple(np.bincount(labels[labels != UNLABELLED], minlength=classes).tolist())


def _save(path: Path, samples: Samples) -> None:
    """Stored, not compressed: quick, and the same bytes every time (numpy writes no time of day)."""
    with path.open("wb") as file:
        bare = samples.y == UNLABELLED
        if bare.all():
            np.savez(file, x=samples.x)
        else:
            np.savez(file, x=samples.x, y=samples.y.astype(np.int16 if bare.any() else np.uint8))


@contextlib.contextmanager
def _replacing(directory: Path) -> Iterator[Path]:
    """A fresh folder beside `directory` that takes its place at the end, or goes without a trace."""
    if directory.exists() and not directory.is_dir():
        raise Occupied(f"{directory} is a file; give a folder")
    if directory.is_dir() and any(directory.iterdir()) and not (directory / DESCRIPTION).is_file():
        raise Occupied(f"{directory} holds other files; give a new folder")
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
    try:
        fresh, old = work / "new", work / "old"
        fresh.mkdir()
        yield fresh
        if directory.exists():
            os.replace(directory, old)
        os.replace(fresh, directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)
