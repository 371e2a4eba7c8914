"""Error feedback as transactions: what an encoding could not express is owed, and counts exactly once.

One event encodes an update: its bytes go to the outbox and the residual that they would leave is stored as
*pending*, both in one transaction, so a crash afterwards sends the same bytes again and never encodes twice.
Only when the receiver has counted the update does the pending residual replace the one that was owed; a
refused or abandoned update leaves the old one. A receipt can be lost, so every training task says which
update of this sender counted last, and settles what is still pending.

A residual belongs to one part: when a role is played by another part (the site's cluster has changed) it is
dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import msgspec

from fedbac_edge.parts.encodings import WITH_RESIDUAL, Encoding, encode
from fedbac_edge.parts.part import Schema, digest, pack, unpack
from fedbac_edge.protocol.events import Keep
from fedbac_edge.vocabulary.terms import Parts


class Residual(msgspec.Struct, frozen=True):
    """What is owed to the part of this name: the hash of a kept blob, canonical bytes."""

    part: str
    hash: str


class Feedback(msgspec.Struct, kw_only=True):
    """A sender's debts, by role; part of its machine's state."""

    owed: dict[str, Residual] = {}
    pending: dict[str, Residual] = {}
    """Owed instead, once the update of `round` has counted."""
    round: int = 0


def begin(state: Feedback, parts: Parts, counted: int) -> None:
    """A training task came: `counted` is the round of this sender's last update that counted, 0 for none."""
    settle(state, state.round, counted == state.round)
    state.owed = {r: owed for r, owed in state.owed.items() if r in parts and owed.part == parts[r].name}


def settle(state: Feedback, round: int, accepted: bool) -> None:
    """The update of `round` counted, or never will."""
    if state.pending and round == state.round:
        # A role that this update did not have, for want of its kind of samples, is still owed to.
        state.owed, state.pending = {**state.owed, **state.pending} if accepted else state.owed, {}


def encode_update(
    state: Feedback,
    encoding: Encoding,
    round: int,
    base: Parts,
    trained: Mapping[str, bytes],
    blobs: Mapping[str, bytes],
    schemas: Mapping[str, Schema],
) -> tuple[dict[str, bytes], list[Keep]]:
    """Role -> the bytes that travel for `trained` (role -> canonical bytes), and the residuals to keep.

    Raises PartError: a step that has no finite form in this encoding.
    """
    if encoding == "float32":
        return dict(trained), []
    encoded: dict[str, bytes] = {}
    pending: dict[str, Residual] = {}
    keeps: list[Keep] = []
    for role, data in sorted(trained.items()):
        ref, owed, schema = base[role], state.owed.get(role), schemas[role]
        residual = unpack(blobs[owed.hash], schema) if owed is not None and owed.part == ref.name else None
        encoded[role], left = encode(
            encoding, unpack(data, schema), unpack(blobs[ref.hash], schema), residual
        )
        if left is not None:
            stored = pack(left)
            keeps.append(Keep(digest(stored), stored))
            pending[role] = Residual(ref.name, digest(stored))
    if encoding in WITH_RESIDUAL:
        state.pending, state.round = pending, round
    return encoded, keeps


def kept(state: Feedback) -> Set[str]:
    """Hashes of the blobs that are owed, or may be."""
    return {residual.hash for roles in (state.owed, state.pending) for residual in roles.values()}
