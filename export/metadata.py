"""The properties stored inside an exported file, so that a file explains itself far from its federation."""

from __future__ import annotations

import json

from export.served import ServedModel
from fedbac_edge.parts.part import digest, pack

RESERVED = ("parts", "classes", "normalisation", "input")


def properties(model: ServedModel, input_kind: str) -> dict[str, str]:
    """Metadata of `model`: its own strings, and what follows from the model.

    `parts` is a JSON list of {name, coefficient, hash}, `classes` a JSON list of labels, `normalisation` a
    JSON map of mean and std (pixels scaled to 0..1), `input` a JSON map of kind ("uint8" or "float") and
    shape (channels, height, width).
    """
    derived = {
        "parts": [
            {"name": term.name, "coefficient": term.coefficient, "hash": digest(pack(term.part))}
            for term in model.terms
        ],
        "classes": list(model.classes),
        "normalisation": {"mean": list(model.mean), "std": list(model.std)},
        "input": {"kind": input_kind, "shape": list(model.architecture.input_shape)},
    }
    stored = {key: value for key, value in model.metadata.items() if key not in RESERVED}
    stored |= {key: json.dumps(value, ensure_ascii=False) for key, value in derived.items()}
    return stored
