"""A file's class names against the federation's class list: by name, never by position or alphabet.

Two devices that lack different classes would otherwise number their classes differently and train each
other's labels.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from os import PathLike

import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets.samples import DataError


def position(name: str, classes: Sequence[str]) -> int | None:
    """Where `name` stands in the class list, or None.

    The comparison is exact up to Unicode normalisation: some file systems store an accented name decomposed.
    """
    wanted = unicodedata.normalize("NFC", name)
    for index, known in enumerate(classes):
        if unicodedata.normalize("NFC", known) == wanted:
            return index
    return None


def listing(classes: Sequence[str], most: int = 20) -> str:
    """The class list for an error message, shortened when it is long."""
    shown = ", ".join(repr(name) for name in classes[:most])
    return shown if len(classes) <= most else f"{shown} and {len(classes) - most} more"


def align(
    y: npt.NDArray[np.int64], names: Sequence[str], classes: Sequence[str], where: str | PathLike[str]
) -> npt.NDArray[np.int64]:
    """Turn a file's own label numbers into positions in the federation's class list.

    `y`: int64 (N,), each a position in the file's `names`. Only classes that occur need to be known. A
    federation whose classes are the bare numbers "0", "1", ... takes the file's numbers as they are.
    Raises DataError naming the first class that the federation does not know.
    """
    if list(classes) == [str(number) for number in range(len(classes))]:
        return y
    table = np.full(len(names), -1, dtype=np.int64)
    for number in np.unique(y).tolist():
        if not 0 <= number < len(names):
            raise DataError(
                where,
                f"label {number} has no name: the file names {len(names)} classes",
                "The file is damaged: copy it again from its source",
            )
        found = position(names[number], classes)
        if found is None:
            raise DataError(
                where,
                f"the class {names[number]!r} is not one of the federation's: {listing(classes)}",
                "Join a federation that has this class, or give data of the classes above",
            )
        table[number] = found
    return table[y]
