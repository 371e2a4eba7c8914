"""The data of one device: opened once, split into training samples and hold-out, described in a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np

from fedbac_edge.datasets import holdout
from fedbac_edge.datasets.samples import UNLABELLED, DataError, Samples
from fedbac_edge.datasets.sources import KINDS, load


class MissingData(DataError):
    """A device wants to join without any data; the command line ends with exit code 2 on it."""

    def __init__(self, edge: str = "gw1") -> None:
        super().__init__(
            "--data",
            "no data was given, and a device joins a federation to train on its own",
            f"Give {KINDS}, for example: fedbac-agent join --edge {edge} --data photos/",
        )

    def __reduce__(self) -> tuple[type[DataError], tuple[str, str, str]]:
        return DataError, (self.where, self.what, self.remedy)


@dataclass(frozen=True, eq=False)
class DeviceData:
    """A device's samples for one federation, as uint8: `train` to train on, `holdout` never trained on.

    Where the federation's method has no use for unlabelled samples, `train` has none; they are counted all
    the same. All of `holdout` is labelled.
    """

    classes: tuple[str, ...]
    train: Samples
    holdout: Samples
    unlabelled: int = 0
    """Samples without a label that were found."""
    turned_gray: int = 0
    """Colour pictures that a federation of gray ones got."""
    passed_over: str = ""
    """What lies beside the samples and is not among them; "" when nothing does."""

    @classmethod
    def open(
        cls,
        path: str | PathLike[str] | None,
        *,
        classes: Sequence[str],
        input_shape: tuple[int, int, int],
        resize: bool = False,
        strict: bool = False,
        takes_unlabelled: bool = False,
        method: str = "this federation's method",
        holdout_fraction: float = 0.1,
        edge: str = "gw1",
    ) -> DeviceData:
        """Open `--data PATH` for a federation with these `classes` and this `input_shape` (C, H, W).

        `takes_unlabelled`: its `method` learns from samples without labels too; else they are left out.
        `edge` only completes the example in a message. Raises MissingData without a path, DataError
        when the data does not fit, or has no labels and needs some; all say what to do.
        """
        if path is None or not str(path).strip():
            raise MissingData(edge)
        samples = load(
            path,
            classes=classes,
            input_shape=input_shape,
            resize=resize,
            allow_unlabelled=True,
            strict=strict,
        )
        unlabelled = int(np.count_nonzero(samples.y == UNLABELLED))
        if unlabelled == len(samples) and not takes_unlabelled:
            raise DataError(
                path,
                f"{unlabelled:,} images, none of them labelled, and {method} learns from labelled ones only",
                "Label some: as y of an .npz, as train-labels-idx1-ubyte beside IDX images, or pictures in a "
                f"folder for each class, such as {classes[0]}/001.png. Or join a "
                'federation that takes unlabelled images: method hassle, or [training] unlabelled = "pseudo"',
            )
        used = samples if takes_unlabelled else samples.labelled()
        train, held = holdout.split(used, holdout_fraction)
        return cls(
            tuple(classes), train, held, unlabelled, samples.turned_gray, samples.passed_over.sentence()
        )

    @property
    def labelled(self) -> int:
        """Samples with a label, held out or not."""
        return sum(self.label_counts.values())

    @property
    def samples(self) -> int:
        """All samples that were found: with and without a label, held out or not."""
        return self.labelled + self.unlabelled

    @property
    def label_counts(self) -> dict[str, int]:
        """Labelled samples of each class, held-out ones included, in the order of the class list."""
        counts = np.zeros(len(self.classes), dtype=np.int64)
        for part in (self.train, self.holdout):
            counts += np.bincount(part.y[part.y != UNLABELLED], minlength=len(self.classes))
        return dict(zip(self.classes, counts.tolist(), strict=True))

    def summary(self) -> str:
        """One line for a person: "5,412 samples, 10 classes, 541 held out", or "1,200 images, 120 labelled,
        3 of 10 classes, 12 held out"."""
        if self.unlabelled and not self.labelled:
            pieces = [f"{self.samples:,} images, none labelled"]
        else:
            present = sum(count > 0 for count in self.label_counts.values())
            known = len(self.classes)
            classes = f"{known} classes" if present == known else f"{present} of {known} classes"
            found = (
                f"{self.samples:,} images, {self.labelled:,} labelled"
                if self.unlabelled
                else f"{self.samples:,} samples"
            )
            pieces = [found, classes, f"{len(self.holdout):,} held out"]
        if self.unlabelled and len(self.train.labelled()) == len(self.train):
            pieces.append("the unlabelled ones are left out, this federation learns from labels only")
        if self.turned_gray:
            pieces.append(f"{self.turned_gray:,} colour pictures turned gray, as this federation's are")
        if self.passed_over:
            pieces.append(self.passed_over)
        return ", ".join(pieces)
