"""The weights that a federation begins from, when an earlier one has learned them already.

    fedbac init --from STATE | models/   ->  federation.toml, and federation.weights beside it
    fedbac cloud run, for the first time ->  the parts of round 0: what fits is taken, the rest is drawn

The file holds the parts of the earlier federation with the classes that they know, so that federation.toml
can be edited in between: a class that is new gets fresh rows in the last layer, a cluster that is new gets
the network of one that there was.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from fedbac_edge.methods import method
from fedbac_edge.methods.method import Role
from fedbac_edge.models.catalog import architecture
from fedbac_edge.parts.part import FloatArray, PartError, digest, pack, unpack
from fedbac_edge.settings.federation import Federation

EXPORTED = "parts.weights"
"""The name that `fedbac export` gives it, beside its models."""


class Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part -> canonical bytes after `round`, and what they are parts of; `places`: site -> cluster."""

    federation: Federation
    round: int
    places: dict[str, int]
    parts: dict[str, bytes]


class BadWeights(ValueError):
    """The file is not what the federation begins from, or does not fit it; a sentence."""


def beside(file: Path) -> Path:
    """Where the weights lie of the federation that `file` describes: federation.toml, federation.weights."""
    return file.with_suffix(".weights")


def encode(weights: Weights) -> bytes:
    """Equal weights give equal bytes."""
    return msgspec.msgpack.encode(weights, order="deterministic")


def decode(data: bytes) -> Weights:
    """Raises BadWeights."""
    try:
        return msgspec.msgpack.decode(data, type=Weights)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadWeights(f"these are no weights of a federation: {error}") from error


def load(file: Path, federation: Federation) -> dict[str, bytes] | None:
    """The first parts of the federation that `file` describes; None: all are drawn. Raises BadWeights."""
    if not federation.model.start:
        return None
    place = beside(file)
    try:
        data = place.read_bytes()
    except OSError as error:
        raise BadWeights(
            f"the weights that {federation.name} begins from cannot be read at {place} ({error.strerror}): "
            "put them there, or take start out of [model]"
        ) from error
    if digest(data) != federation.model.start:
        raise BadWeights(f"{place} is not the file that start in [model] names")
    return fitted(decode(data), federation)


def fitted(weights: Weights, federation: Federation) -> dict[str, bytes]:
    """Part -> canonical bytes for `federation`, as many as can be taken over. Raises BadWeights."""
    used, model = method(federation), federation.model
    network = architecture(model.architecture, model.input, len(model.classes))
    older = weights.federation
    before = architecture(older.model.architecture, older.model.input, len(older.model.classes))
    drawn = used.initial(network, federation.seed)
    old_schemas = {role: each.schema() for role, each in method(older).architectures(before).items()}
    wider = architecture(model.architecture, model.input, len(model.classes) + 1)
    heads = {
        role: _heads(used.architectures(network)[role].schema(), each.schema())
        for role, each in used.architectures(wider).items()
    }
    taken: dict[str, bytes] = {}
    for name, role in used.parts().items():
        source = _source(name, role, weights)
        if source is None or role.name not in old_schemas:
            continue
        try:
            part = unpack(weights.parts[source], old_schemas[role.name])
        except PartError as error:
            raise BadWeights(f"the part {source} of {older.name} is damaged: {error}") from error
        fresh = drawn[name]
        if part.keys() != fresh.keys():
            raise BadWeights(f"the part {source} of {older.name} is of another network than {name}")
        for tensor, drawn_values in fresh.items():
            if tensor in heads[role.name]:
                part[tensor] = _by_class(part[tensor], drawn_values, older.model.classes, model.classes)
            elif part[tensor].shape != drawn_values.shape:
                raise BadWeights(
                    f"{tensor} of {source} has the shape {part[tensor].shape} in {older.name}, and "
                    f"{drawn_values.shape} here: architecture and input in [model] have to stay as they were"
                )
        taken[name] = pack(part)
    if not taken:
        raise BadWeights(f"the method {federation.method.name} has no network that {older.name} has")
    return taken


def _source(name: str, role: Role, weights: Weights) -> str | None:
    """The part to take: of the same name, else that of another cluster, in turn."""
    if name in weights.parts:
        return name
    others = sorted(each for each in weights.parts if each.rpartition("-")[0] == role.name)
    if role.scope == "global" or not others:
        return None
    return others[int(name.rpartition("-")[2]) % len(others)]


def _heads(schema: dict[str, tuple[int, ...]], wider: dict[str, tuple[int, ...]]) -> set[str]:
    """The tensors with a row for each class: those that one class more makes longer."""
    return {name for name, shape in schema.items() if wider[name] != shape}


def _by_class(
    before: FloatArray, drawn: FloatArray, known: tuple[str, ...], wanted: tuple[str, ...]
) -> FloatArray:
    """Row by row of `wanted`: that of `before` for a class that was known, else the drawn one."""
    if before.shape[1:] != drawn.shape[1:]:
        raise BadWeights("the last layer has another width: architecture and input in [model] have to stay")
    rows = [before[known.index(name)] if name in known else drawn[index] for index, name in enumerate(wanted)]
    return np.stack(rows).astype(np.float32)
