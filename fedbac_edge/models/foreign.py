"""Models of a user: "module:factory" in the federation's file.

`factory(input_shape, classes)` returns a description (`description.Architecture`) that also has
`network() -> torch.nn.Module`, where torch is imported; the module's state dict is named as in `schema()`.

The name comes over the wire to gateways and devices, and importing a module runs it. So nothing is imported
that the machine's owner has not named himself in FEDBAC_MODELS.
"""

from __future__ import annotations

import importlib
import os

from fedbac_edge.models.description import Architecture, UnknownArchitecture

ALLOWED = "FEDBAC_MODELS"
"""Variable with the models that may be imported here: "module:factory", several with commas."""


def architecture(name: str, input_shape: tuple[int, int, int], classes: int) -> Architecture:
    """The model of `name`. Raises UnknownArchitecture when it is not allowed, not there, or does not fit."""
    allowed = {word.strip() for word in os.environ.get(ALLOWED, "").split(",")}
    if name not in allowed:
        raise UnknownArchitecture(
            f"the model {name!r} runs code of its own, which this machine does not allow; "
            f"if you know it, set {ALLOWED}={name}"
        )
    module, _, factory = name.partition(":")
    try:
        model = getattr(importlib.import_module(module), factory)(input_shape, classes)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UnknownArchitecture(f"the model {name!r} cannot be made here: {error}") from error
    if not isinstance(model, Architecture):
        raise UnknownArchitecture(
            f"the model {name!r} is no description: it needs input_shape, classes, schema() and init(rng)"
        )
    if (tuple(model.input_shape), model.classes) != (input_shape, classes):
        raise UnknownArchitecture(
            f"the model {name!r} takes {tuple(model.input_shape)} and tells {model.classes} classes apart, "
            f"not {input_shape} and {classes}"
        )
    return model
