"""A test set out of a folder of pictures, which holds one set only: a fifth of it, chosen by content.

Archives bring a test set of their own. A folder has none, and what is trained on must not be tested on.
Copies of one picture fall on the same side, whatever they are called and wherever they lie.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedbac_edge.datasets.holdout import content_hashes
from fedbac_edge.datasets.samples import DataError, Samples

SHARE = 5
"""One picture of so many different ones is for the test."""


def for_test(samples: Samples, folder: Path) -> tuple[Samples, Samples]:
    """(to train on, to test on), each in the order of `samples`. Raises DataError for copies of one picture.

    The largest hashes are for the test: a device holds out the smallest ones (`holdout`).
    """
    hashes = content_hashes(samples.x)
    different = np.unique(hashes)
    if len(different) < 2:
        raise DataError(
            folder,
            f"a test set is taken out of it, and it holds {len(different)} different picture",
            "Give at least two that differ; some tens for each class make a test worth having",
        )
    least = different[-max(1, len(different) // SHARE)]
    return samples.take(hashes < least), samples.take(hashes >= least)
