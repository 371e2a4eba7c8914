"""Samples without a label, labelled by the model that was served: self-training for methods whose parts are
trained jointly.

y^ = argmax of the served sum of logits (for Fed-BAC h(x; G) + f(x; K)), hard, made once from the downloaded
parts and kept for the whole training. Labelled and pseudo-labelled samples are one set then: the objective is

    (n_L * mean CE over the labelled + n_U * mean CE over the pseudo-labelled) / (n_L + n_U)

so that each kind weighs what a device has of it. Not in the Fed-BAC paper, which knows labelled samples only;
the threshold is FixMatch's (arXiv 2001.07685, equation 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedbac_edge.datasets.samples import UNLABELLED, Samples
from fedbac_edge.learning.forward import logits_of
from fedbac_edge.learning.inputs import check_part
from fedbac_edge.learning.losses import softmax
from fedbac_edge.learning.normalise import normalise
from fedbac_edge.learning.outcomes import Cancelled
from fedbac_edge.learning.threads import torch_threads
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import Part
from fedbac_edge.vocabulary.training import Backend, Normalisation

CHUNK = 512
"""Images at once."""


def pseudo_labelled(
    model: Architecture,
    served: Sequence[tuple[Part, float]],
    samples: Samples,
    normalisation: Normalisation,
    confidence: float = 0.0,
    *,
    threads: int = 1,
    device: str = "cpu",
    backend: Backend | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Samples:
    """`samples` with labels for those that have none: argmax of sum over (part, coefficient) of coefficient *
    logits, where its probability is at least `confidence`; the others are left out. Order and given labels
    stay.

    `threads` are torch's, `backend` fixes the path (the fastest by default). Raises ValueError when nothing
    is served or a part does not fit the model, Cancelled once `cancelled()` was true.
    """
    if not served:
        raise ValueError("a served model needs at least one part")
    bare = np.flatnonzero(samples.y == UNLABELLED)
    if not len(bare):
        return samples
    for position, (part, _) in enumerate(served):
        check_part(model, f"served part {position}", part)
    y = samples.y.copy()
    with torch_threads(threads):
        networks = [(logits_of(model, part, device, backend), np.float32(c)) for part, c in served]
        for start in range(0, len(bare), CHUNK):
            if cancelled is not None and cancelled():
                raise Cancelled("stopped while samples were given labels")
            chosen = bare[start : start + CHUNK]
            x = normalise(samples.x[chosen], normalisation)
            total = np.zeros((len(chosen), model.classes), dtype=np.float32)
            for logits, coefficient in networks:
                total += coefficient * logits(x)
            sure = softmax(total).max(axis=1) >= confidence
            y[chosen] = np.where(sure, total.argmax(axis=1), UNLABELLED)
    return Samples(samples.x, y, samples.turned_gray).labelled()
