"""From pixels as a sensor gives them to what a network reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedbac_edge.parts.part import FloatArray
from fedbac_edge.vocabulary.training import Normalisation

Images = npt.NDArray[Any]
Labels = npt.NDArray[np.int64]


def normalise(x: Images, normalisation: Normalisation) -> FloatArray:
    """(N, H, W, C) pixels -> contiguous float32 (N, C, H, W), (x - mean) / std for each channel.

    uint8 stands for x/255; float32 is taken as already in [0, 1]. Raises ValueError for any other dtype or
    when the channels are not those of the normalisation.
    """
    if x.ndim != 4 or x.shape[3] != len(normalisation.mean):
        raise ValueError(f"expected images (N, H, W, {len(normalisation.mean)}), found {x.shape}")
    if x.dtype not in (np.uint8, np.float32):
        raise ValueError(f"expected uint8 pixels, or float32 in [0, 1], found {x.dtype}")
    full = 255.0 if x.dtype == np.uint8 else 1.0
    mean = np.asarray(normalisation.mean, dtype=np.float64)
    std = np.asarray(normalisation.std, dtype=np.float64)
    # (x / full - mean) / std as one multiplication and one addition.
    scale = (1.0 / (full * std)).astype(np.float32).reshape(-1, 1, 1)
    shift = (-mean / std).astype(np.float32).reshape(-1, 1, 1)
    out = np.empty((x.shape[0], x.shape[3], x.shape[1], x.shape[2]), dtype=np.float32)
    np.multiply(x.transpose(0, 3, 1, 2), scale, out=out, dtype=np.float32)
    out += shift
    return out
