"""Normalisation inside the first convolution, so that a device hands over its pixels as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from export.served import ServedModel, Term
from fedbac_edge.parts.part import Part


def absorb(model: ServedModel) -> ServedModel:
    """The same logits from pixels 0..255: w' = w / (255 std), b' = b - sum(w mean / std).

    For LeNets alone, whose first convolution is not padded: every tap sees a pixel, so this is exact.
    Computed in float64.
    """
    mean = np.asarray(model.mean, np.float64)[None, :, None, None]
    std = np.asarray(model.std, np.float64)[None, :, None, None]
    terms = []
    for term in model.terms:
        weight = term.part["conv1.weight"].astype(np.float64) / std
        shift = (weight * mean).sum(axis=(1, 2, 3))
        part: Part = dict(term.part)
        part["conv1.weight"] = (weight / 255.0).astype(np.float32)
        part["conv1.bias"] = (term.part["conv1.bias"] - shift).astype(np.float32)
        terms.append(Term(term.name, part, term.coefficient))
    return replace(model, terms=tuple(terms))
