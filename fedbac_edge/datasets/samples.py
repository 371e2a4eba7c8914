"""What every reader returns, and the one error that every reader raises."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike

import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets.picture_files import PassedOver
from fedbac_edge.datasets.shown import shown

UNLABELLED = -1
"""The label of a sample that has no label."""


class DataError(ValueError):
    """Data that cannot be trained on: where it lies, what is wrong with it, what a person can do."""

    def __init__(self, where: str | PathLike[str], what: str, remedy: str) -> None:
        # All three go to ValueError, so that the error survives the way back from a worker process.
        self.where, self.what, self.remedy = shown(str(where)), shown(what), shown(remedy)
        super().__init__(self.where, self.what, self.remedy)

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. {self.remedy}"


@dataclass(frozen=True, eq=False)
class Samples:
    """Images and their labels.

    `x`: uint8 (N, H, W, C), 0 to 255, as stored: the federation's normalisation is applied in training.
    `y`: int64 (N,), positions in the federation's class list, or UNLABELLED where the caller allowed it.
    `turned_gray`: how many were colour pictures before they were read. `passed_over`: files beside them that
    are not among them. Neither is kept by `take`.
    """

    x: npt.NDArray[np.uint8]
    y: npt.NDArray[np.int64]
    turned_gray: int = 0
    passed_over: PassedOver = field(default_factory=PassedOver)

    def __len__(self) -> int:
        return len(self.x)

    def take(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.integer]) -> Samples:
        """A copy of the chosen samples: a mask of length N, or positions."""
        return Samples(self.x[chosen], self.y[chosen])

    def labelled(self) -> Samples:
        """The samples that carry a label; self when all of them do."""
        mask = self.y != UNLABELLED
        return self if bool(mask.all()) else self.take(mask)
