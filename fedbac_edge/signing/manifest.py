"""What is signed: the manifest of one site's model in one release, and an operator's order to go back.

The signature is over the manifest's bytes as they travel, so no receiver has to write them again to check
them. They are MessagePack with the keys of every map in order: equal manifests give equal bytes.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from fedbac_edge.vocabulary.terms import Cluster, Count, Hash, Instance, Name, Round, Text

MANIFEST = "release 1"
"""What a manifest is signed as; a signature for one purpose is none for another."""
ORDER = "order 1"
MOST_VECTORS = 16

Number = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Axis = Annotated[int, Meta(ge=1, le=100_000)]
T = TypeVar("T", bound=msgspec.Struct)


class Vector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One self-test: for the input `vectors.image(shape, index)` these `logits` must come out, in float."""

    index: Annotated[int, Meta(ge=0, le=10_000)]
    logits: Annotated[tuple[float, ...], Meta(min_length=2, max_length=100_000)]


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model of one site in one release: that of its cluster.

    (`founded`, `number`) only ever grows for a federation's name: `founded` is when its cloud began to make
    releases, in seconds since 1970, `number` counts them. A device takes nothing that is not newer.
    """

    federation: Name
    instance: Instance
    founded: Count
    number: Number
    model: Number
    """The release that brought this model first; less than `number` after a rollback."""
    site: Name
    """The gateway whose devices serve it."""
    cluster: Cluster
    round: Round
    """The last round whose training is in the parts."""
    hash: Hash
    """sha256 of the ONNX file."""
    size: Annotated[int, Meta(ge=1, le=2**40)]
    parts: dict[Name, Hash]
    accuracy: float | None = None
    """On the labelled hold-outs of the cluster's sites; None: never measured."""
    accuracy_round: Round | None = None
    """The round after which that was measured: with releases inside a campaign often the one before."""
    input: tuple[Axis, Axis, Axis]
    """(channels, height, width) of the raw pixels that it takes."""
    vectors: Annotated[tuple[Vector, ...], Meta(min_length=1, max_length=MOST_VECTORS)]
    created_by: Text

    @property
    def order(self) -> tuple[int, int]:
        """What grows from release to release."""
        return self.founded, self.number


class RollbackOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator's order: publish the model of release `to` again, as the release after `after`.

    It is good for one moment in one federation only, so that it cannot be played back later.
    """

    federation: Name
    instance: Instance
    after: Number
    to: Number


class Unreadable(ValueError):
    """Signed bytes that are not what they should be."""


def canonical(value: msgspec.Struct) -> bytes:
    """The bytes that are signed."""
    return msgspec.msgpack.encode(msgspec.to_builtins(value, order="deterministic"))


def read(data: bytes, kind: type[T]) -> T:
    """A value out of signed bytes, once their signature is checked. Raises Unreadable."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Unreadable(f"not a {kind.__name__} that this software knows: {error}") from error
