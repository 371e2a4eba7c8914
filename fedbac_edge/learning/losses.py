"""Losses of logits, each with its gradient: what a trainee's backward pass is given. numpy, no torch.

Every loss is a mean over the batch and returns (loss, gradient by the logits); logits are (N, classes). Sums
are made in float64, gradients are float32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedbac_edge.learning.normalise import Labels
from fedbac_edge.parts.part import FloatArray

Loss = tuple[float, FloatArray]
_Wide = npt.NDArray[np.float64]


def softmax(logits: npt.NDArray[np.floating]) -> FloatArray:
    """(N, classes) probabilities."""
    return np.exp(_log_softmax(logits)).astype(np.float32)


def cross_entropy(logits: FloatArray, y: Labels) -> Loss:
    """Mean cross-entropy against labels (N,)."""
    _some(logits)
    rows, logs = np.arange(len(y)), _log_softmax(logits)
    gradient = np.exp(logs)
    gradient[rows, y] -= 1.0
    return -float(logs[rows, y].mean()), (gradient / len(y)).astype(np.float32)


def soft_cross_entropy(logits: FloatArray, q: npt.NDArray[np.floating], tau: float = 1.0) -> Loss:
    """Mean of -sum_c q_c log softmax(logits / tau)_c against probabilities q (N, classes), rows of which sum
    to one.

    No factor tau^2. KL(q || softmax(logits / tau)) has this gradient and is smaller by the entropy of q.
    """
    _some(logits)
    logs = _log_softmax(logits / tau)
    gradient = (np.exp(logs) - q) / (tau * len(q))
    return -float((q * logs).sum(axis=1).mean()), gradient.astype(np.float32)


def divergence(logits: FloatArray, q: npt.NDArray[np.floating], tau: float = 1.0) -> Loss:
    """Mean of KL(q || softmax(logits / tau)), with soft_cross_entropy's gradient."""
    cross, gradient = soft_cross_entropy(logits, q, tau)
    return cross - float(entropy(q).mean()), gradient


def entropy(q: npt.NDArray[np.floating]) -> _Wide:
    """(N,) entropies of probabilities (N, classes), in nats."""
    wide = q.astype(np.float64)
    return np.asarray(-(wide * np.log(np.maximum(wide, 1e-300))).sum(axis=1))


def squared_probabilities(logits: FloatArray, q: npt.NDArray[np.floating]) -> Loss:
    """Mean over batch AND classes of (softmax(logits) - q)^2: the consistency loss of MixMatch
    (arXiv 1905.02249, equation 4)."""
    _some(logits)
    p = np.exp(_log_softmax(logits))
    difference = p - q
    slope = 2.0 * difference / difference.size
    gradient = p * (slope - (slope * p).sum(axis=1, keepdims=True))
    return float(np.square(difference).mean()), gradient.astype(np.float32)


def _log_softmax(logits: npt.NDArray[np.floating]) -> _Wide:
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _some(logits: FloatArray) -> None:
    if not len(logits):
        raise ValueError("a mean over no samples has no value: leave an empty batch out")
