"""SVHN, cropped digits: train_32x32.mat and test_32x32.mat. For the laboratory: it needs SciPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedbac_edge.datasets.labels import align
from fedbac_edge.datasets.limits import refuse_impossible, refuse_oversize
from fedbac_edge.datasets.samples import DataError, Samples

_SOURCE = "Give train_32x32.mat of the cropped digits (X: 32x32x3xN uint8, y: Nx1)"


def read(path: Path, classes: Sequence[str]) -> Samples:
    """X (H, W, 3, N) as uint8 (N, H, W, 3); y, where 10 stands for the digit 0, by the classes' names.

    Raises DataError, also when SciPy is not installed.
    """
    try:
        from scipy.io import loadmat, whosmat
    except ImportError as error:
        raise DataError(path, "reading .mat files needs SciPy", 'pip install "fedbac-edge[lab]"') from error
    try:
        declared = {name: shape for name, shape, _ in whosmat(path)}
        if not {"X", "y"} <= set(declared):
            raise DataError(
                path, f"no variables X and y; it holds {', '.join(declared) or 'nothing'}", _SOURCE
            )
        count = sum(math.prod(declared[name]) for name in ("X", "y"))
        refuse_impossible(path, count, path.stat().st_size)
        refuse_oversize(path, count)
        content = loadmat(path, variable_names=["X", "y"])
        images, labels = content["X"], content["y"]
    except DataError:
        raise
    except NotImplementedError as error:
        raise DataError(path, "a MATLAB 7.3 (HDF5) file", f"Save it with -v7. {_SOURCE}") from error
    except Exception as error:  # SciPy raises many kinds on damaged files
        raise DataError(path, f"cannot be read as a .mat file: {error}", _SOURCE) from error
    if getattr(images, "dtype", None) != np.uint8 or images.ndim != 4 or images.shape[2] != 3:
        raise DataError(path, f"X is {getattr(images, 'dtype', type(images))} {np.shape(images)}", _SOURCE)
    if getattr(labels, "dtype", np.dtype(object)).kind not in "uif" or labels.size != images.shape[3]:
        raise DataError(path, f"X holds {images.shape[3]:,} images, y is {np.shape(labels)}", _SOURCE)
    flat = labels.ravel()
    wrong = np.flatnonzero(~((flat >= 0) & (flat <= 10) & (flat == np.floor(flat))))
    if len(wrong):
        raise DataError(
            path, f"the label {flat[wrong[0]]} of image {wrong[0]} is not between 1 and 10", _SOURCE
        )
    y = flat.astype(np.int64) % 10
    x = np.ascontiguousarray(images.transpose(3, 0, 1, 2))
    return Samples(x, align(y, [str(digit) for digit in range(10)], classes, path))
