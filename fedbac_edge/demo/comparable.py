"""Why hold-outs and test images do not agree where few devices have labels, in figures that can be compared.

A hold-out consists of labelled images, so it has the classes of the devices that have labels. The test images
have all classes alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets import holdout, npz
from fedbac_edge.datasets.samples import UNLABELLED


@dataclass(frozen=True)
class Class:
    """A class: its labelled images in training, and the share of its test images that are named rightly."""

    name: str
    labels: int
    test_accuracy: float


@dataclass(frozen=True)
class Comparison:
    """What the hold-outs are, and the test images as they would be with the hold-outs' classes."""

    holdout_samples: int
    holdout_devices: int
    holdout_accuracy: float | None
    """As the last round told it: mean over sites."""
    test_as_held_out: float | None
    """Test accuracy with each class weighing as in a site's hold-outs: mean over sites."""
    classes: tuple[Class, ...]


def compare(
    data: Path,
    names: Sequence[str],
    y: npt.NDArray[np.int64],
    right: npt.NDArray[np.bool_],
    holdout_accuracy: float | None,
) -> Comparison:
    """`data`: shards by gateway; `y`, `right`: of all test images (N,), label and success."""
    count = len(names)
    per_class = np.array([right[y == c].mean() if (y == c).any() else 0.0 for c in range(count)])
    labels = np.zeros(count, dtype=np.int64)
    devices, samples, sites = 0, 0, []
    for gateway in sorted(data.glob("gw*")):
        here = np.zeros(count, dtype=np.int64)
        for shard in sorted(gateway.glob("dev-*.npz")):
            trained, held = holdout.split(npz.read(shard, allow_unlabelled=True))
            labels += np.bincount(trained.y[trained.y != UNLABELLED], minlength=count)
            here += np.bincount(held.y, minlength=count)
            devices += bool(len(held))
        samples += int(here.sum())
        if here.any():
            sites.append(float(here @ per_class / here.sum()))
    return Comparison(
        holdout_samples=samples,
        holdout_devices=devices,
        holdout_accuracy=holdout_accuracy,
        test_as_held_out=float(np.mean(sites)) if sites else None,
        classes=tuple(
            Class(name, int(number), float(share))
            for name, number, share in zip(names, labels, per_class, strict=True)
        ),
    )
