"""The cloud's parts: the newest generation, and the one before, which devices score again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedbac_edge.methods.method import Method, View
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import digest, pack
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.events import Action, Announce, Keep, Log, Withdraw
from fedbac_edge.vocabulary.terms import PartRef, Parts


def begin(
    state: CloudState, method: Method, model: Architecture, seed: int, start: Mapping[str, bytes]
) -> list[Action]:
    """Fresh parts by the method's law, but for those of `start`."""
    drawn = {name: pack(part) for name, part in method.initial(model, seed).items()} | dict(start)
    state.parts = {name: PartRef(name, digest(data), len(data)) for name, data in drawn.items()}
    keeps = [Keep(digest(data), data) for data in drawn.values()]
    return [*keeps, *(Announce(state.parts[name], 0) for name in sorted(state.parts))]


def advance(state: CloudState, method: Method, fresh: Mapping[str, bytes]) -> list[Action]:
    """Make `fresh` the newest generation: store, publish what changed, clear what is older than two."""
    before = {ref.hash for ref in (*state.parts.values(), *state.previous.values())}
    state.earlier = state.previous if method.looks_back else {}
    state.previous = state.parts
    made = {name: PartRef(name, digest(data), len(data)) for name, data in sorted(fresh.items())}
    state.parts = {**state.parts, **made}
    after = {ref.hash for ref in (*state.parts.values(), *state.previous.values())}
    return [
        *(Keep(made[name].hash, data) for name, data in sorted(fresh.items())),
        *(Announce(ref, state.round) for ref in made.values() if ref != state.previous[ref.name]),
        *(Withdraw(hash) for hash in sorted(before - after)),
    ]


def warm(state: CloudState, copies: Mapping[str, str]) -> list[Action]:
    """Option: a cluster that becomes active begins with the network its first server leaves."""
    actions: list[Action] = []
    for name, source in copies.items():
        origin = state.parts[source]
        state.parts[name] = PartRef(name, origin.hash, origin.size)
        actions += [
            Log("warm start", name, state.round, {"from": source}),
            Announce(state.parts[name], state.round),
        ]
    return actions


def whole(method: Method, generation: Mapping[str, PartRef], cluster: int) -> Parts:
    """Role -> part at a site of `cluster`, all of one generation; empty for one that never was."""
    return {role: generation[name] for role, name in method.served(cluster).items()} if generation else {}


def of_view(
    method: Method,
    view: View,
    newest: Mapping[str, PartRef],
    previous: Mapping[str, PartRef],
    cluster: int,
) -> Parts:
    """Role -> part of a view at a site of `cluster`; before the first round all are of the newest."""
    names = method.served(cluster)
    return {
        term.role: (previous if term.generation and previous else newest)[names[term.role]]
        for term in view.terms
    }


def served(method: Method, state: CloudState, cluster: int) -> Parts:
    """Role -> part that a site of `cluster` serves now."""
    return of_view(method, method.served_view, state.parts, state.previous, cluster)


def hashes(state: CloudState) -> dict[str, Any]:
    """The newest generation by content, for the ledger."""
    return {"parts": {name: ref.hash for name, ref in sorted(state.parts.items())}}
