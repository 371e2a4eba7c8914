"""Where Fashion-MNIST lies on this machine, and how to get it when it does not."""

from __future__ import annotations

import os
from pathlib import Path

from fedbac_edge.datasets.samples import DataError

NAME = "fashion-mnist"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def folder() -> Path:
    """The folder of the four IDX files: `FEDBAC_FASHION_MNIST`, or Debian's. Raises DataError."""
    place = Path(os.environ.get("FEDBAC_FASHION_MNIST", DEBIAN))
    if not (place / "train-images-idx3-ubyte.gz").is_file():
        raise DataError(
            place,
            "Fashion-MNIST is not there",
            "On Debian and Ubuntu: apt-get install dataset-fashion-mnist. Elsewhere put its four "
            "*-ubyte.gz files into a folder and set FEDBAC_FASHION_MNIST to it",
        )
    return place
