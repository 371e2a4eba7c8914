"""Typed messages as MessagePack maps with a wire version.

Bytes are first unpacked with msgpack, whose limits follow from the payload's own length (no header can ask
for more memory than the payload has), then structured by msgspec into one of the types that the caller
expects. Nothing is resolved by a name from the wire beyond that closed set.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgpack
import msgspec

WIRE_VERSION = 1

# How a map of the version before the newest becomes one of the newest. Version 1 is the first.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

T = TypeVar("T", bound=msgspec.Struct)


class WireError(ValueError):
    """The payload is not a message that was expected here; the message says why in a sentence."""


def encode(message: msgspec.Struct) -> bytes:
    """MessagePack bytes of a message, with its wire version. Equal messages give equal bytes."""
    fields = msgspec.to_builtins(message, builtin_types=(bytes,), order="deterministic")
    packed: bytes = msgpack.packb({"v": WIRE_VERSION, **fields})
    return packed


def decode(payload: bytes, *types: type[T]) -> T:
    """The message in `payload`, one of `types`. Raises WireError."""
    expected = " or ".join(str(kind.__struct_config__.tag) for kind in types)
    try:
        fields = msgpack.unpackb(payload, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise WireError(f"not MessagePack ({type(error).__name__}), expected {expected}") from error
    if not isinstance(fields, dict):
        raise WireError(f"a map was expected ({expected}), not {type(fields).__name__}")
    fields = _newest(fields)
    name = fields.get("type")
    for kind in types:
        if kind.__struct_config__.tag == name:
            try:
                return msgspec.convert(fields, kind)
            except msgspec.ValidationError as error:
                raise WireError(f"{name}: {error}") from error
    raise WireError(f"expected {expected}, not {str(name)[:40]!r}")


def _newest(fields: dict[str, Any]) -> dict[str, Any]:
    version = fields.pop("v", None)
    if version == WIRE_VERSION:
        return fields
    if isinstance(version, int) and version in UPGRADES:
        return UPGRADES[version](fields)
    raise WireError(
        f"wire version {str(version)[:20]} is not understood here: this software speaks "
        f"{', '.join(str(v) for v in sorted({WIRE_VERSION, *UPGRADES}))}; update the older side"
    )
