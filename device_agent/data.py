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
    """A device's samples for one federation, as uint8: `train` to train on, `holdout` never trained on."""

    classes: tuple[str, ...]
    train: Samples
    holdout: Samples
    turned_gray: int = 0
    """Colour pictures that a federation of gray ones got."""

    @classmethod
    def open(
        cls,
        path: str | PathLike[str] | None,
        *,
        classes: Sequence[str],
        input_shape: tuple[int, int, int],
        resize: bool = False,
        allow_unlabelled: bool = False,
        holdout_fraction: float = 0.1,
        edge: str = "gw1",
    ) -> DeviceData:
        """Open `--data PATH` for a federation with these `classes` and this `input_shape` (C, H, W).

        `edge` only completes the example in a message. Raises MissingData without a path, DataError
        when the data does not fit; both say what to do.
        """
        if path is None or not str(path).strip():
            raise MissingData(edge)
        samples = load(
            path, classes=classes, input_shape=input_shape, resize=resize, allow_unlabelled=allow_unlabelled
        )
        train, held = holdout.split(samples, holdout_fraction)
        return cls(tuple(classes), train, held, samples.turned_gray)

    @property
    def samples(self) -> int:
        """All samples, held out or not."""
        return len(self.train) + len(self.holdout)

    @property
    def label_counts(self) -> dict[str, int]:
        """Labelled samples of each class, held-out ones included, in the order of the class list."""
        counts = np.zeros(len(self.classes), dtype=np.int64)
        for part in (self.train, self.holdout):
            counts += np.bincount(part.y[part.y != UNLABELLED], minlength=len(self.classes))
        return dict(zip(self.classes, counts.tolist(), strict=True))

    @property
    def unlabelled(self) -> int:
        """Samples without a label."""
        return self.samples - sum(self.label_counts.values())

    def summary(self) -> str:
        """One line for a person: "5,412 samples, 10 classes, 541 held out"."""
        present = sum(count > 0 for count in self.label_counts.values())
        known = len(self.classes)
        classes = f"{known} classes" if present == known else f"{present} of {known} classes"
        pieces = [f"{self.samples:,} samples", classes, f"{len(self.holdout):,} held out"]
        if self.unlabelled:
            pieces.append(f"{self.unlabelled:,} unlabelled")
        if self.turned_gray:
            pieces.append(f"{self.turned_gray:,} colour pictures turned gray, as this federation's are")
        return ", ".join(pieces)
