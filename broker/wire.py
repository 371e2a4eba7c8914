"""Typed messages as MessagePack maps: `{"v": wire version, "m": {"type": ..., fields}}`.

msgspec reads the version and the envelope first (the message inside is only skipped over, nothing is made of
it), then the message straight into one of the types that the caller expects. No header can ask for more
memory than the payload has, and nothing is resolved by a name from the wire beyond that closed set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from broker import versions

WIRE_VERSION = 2

# How a map of the version before the newest becomes one of the newest, and back. We write the older of
# the two: a peer one version behind reads it, and so does a peer one ahead. What the older one has
# no words for (None) is written in the newest. Version 1 needs no rewriting to be read: its fields mean the
# same in version 2, where those that it does not have are defaults.
UPGRADES: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]] | None] = {1: None}
DOWNGRADES: Mapping[int, Callable[[dict[str, Any]], dict[str, Any] | None]] = {1: versions.to_1}

T = TypeVar("T", bound=msgspec.Struct)

# What msgspec raises for bytes that are no MessagePack, for wrong types, and for nesting without end.
_UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


class WireError(ValueError):
    """The payload is not a message that was expected here; the message says why in a sentence."""


class _Version(msgspec.Struct):
    """All that is asked of a payload before its version is known: a newer one may look otherwise."""

    v: int


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    v: int
    m: msgspec.Raw


class _Kind(msgspec.Struct):
    """The one field of a message that tells its type; the others are skipped."""

    type: str = ""


_versions = msgspec.msgpack.Decoder(_Version)
_envelopes = msgspec.msgpack.Decoder(_Envelope)
_kinds = msgspec.msgpack.Decoder(_Kind)


def encode(message: msgspec.Struct) -> bytes:
    """MessagePack bytes of a message, in the oldest version that is understood here and can say it.

    Equal messages give equal bytes.
    """
    newest = msgspec.to_builtins(message, builtin_types=(bytes,))
    for version, rewritten in DOWNGRADES.items():
        older = rewritten(newest)
        if older is not None:
            return msgspec.msgpack.encode(_Envelope(version, msgspec.Raw(_ordered(older))))
    return msgspec.msgpack.encode(_Envelope(WIRE_VERSION, msgspec.Raw(_ordered(versions.to_2(newest)))))


def decode(payload: bytes, *types: type[T]) -> T:
    """The message in `payload`, one of `types`. Raises WireError."""
    expected = " or ".join(str(kind.__struct_config__.tag) for kind in types)
    known = {WIRE_VERSION, *UPGRADES}
    try:
        version = _versions.decode(payload).v
        envelope = _envelopes.decode(payload) if version in known else None
    except _UNREADABLE as error:
        raise WireError(f"not a message of this software ({error}), expected {expected}") from error
    if envelope is None:
        speaks = ", ".join(str(number) for number in sorted(known))
        raise WireError(
            f"wire version {version} is not understood here: this software speaks {speaks}; "
            "update the older side"
        )
    rewritten = UPGRADES.get(version)
    if rewritten is None:
        return _typed(envelope.m, types, expected)
    return _upgraded(envelope, rewritten, types, expected)


def _ordered(message: object) -> bytes:
    """MessagePack with the keys of every map in order (msgspec's own packing orders text keys only)."""
    plain = msgspec.to_builtins(message, builtin_types=(bytes,), order="deterministic")
    return msgspec.msgpack.encode(plain)


def _typed(message: msgspec.Raw | bytes, types: tuple[type[T], ...], expected: str) -> T:
    try:
        name = _kinds.decode(message).type
        for kind in types:
            if kind.__struct_config__.tag == name:
                return msgspec.msgpack.decode(message, type=kind)
    except _UNREADABLE as error:
        raise WireError(f"expected {expected}: {error}") from error
    raise WireError(f"expected {expected}, not {name[:40]!r}")


def _upgraded(
    envelope: _Envelope,
    rewritten: Callable[[dict[str, Any]], dict[str, Any]],
    types: tuple[type[T], ...],
    expected: str,
) -> T:
    """A message of the version before: rewritten as the newest, then held to the same types."""
    try:
        fields = msgspec.msgpack.decode(envelope.m, type=dict[str, Any])
        newest = _ordered(rewritten(fields))
    except (*_UNREADABLE, KeyError, TypeError) as error:
        raise WireError(f"version {envelope.v} of {expected} cannot be read: {error!r}"[:400]) from error
    return _typed(newest, types, expected)
