"""What stands retained with the broker, and is published again: our specification, and what a client misses.

Another cloud may write its own specification over ours. Then we say again whose federation it is, but not at
once each time, lest two clouds shout at each other.
"""

from __future__ import annotations

from collections.abc import Set

from fedbac_edge import __version__
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.events import Action, Channel, Log, Repeat, Send
from fedbac_edge.protocol.messages import Missing, Spec
from fedbac_edge.settings.federation import Federation

RECLAIM = "reclaim"
"""The timer that puts the specification back."""
RECLAIM_S = 10.0
REPEAT_S = 5.0
"""What is retained goes out again at most so often, however many ask for it."""


def specification(federation: Federation, state: CloudState) -> Send:
    """What the federation is."""
    spec = Spec(federation=federation, instance=state.instance, software=__version__)
    return Send(Channel("spec"), spec, retain=True)


def timers(state: CloudState) -> dict[str, float]:
    """When the specification is put back."""
    return {} if state.reclaims is None else {RECLAIM: state.reclaims}


def is_ours(federation: Federation, state: CloudState, spec: Spec) -> bool:
    """What the broker holds: ours, or that of another cloud, or ours from before the roster grew."""
    state.contested = (spec.instance, spec.federation) != (state.instance, federation)
    return not state.contested


def reclaim(federation: Federation, state: CloudState, now: float, at_last: bool = False) -> list[Action]:
    """Say again whose federation it is, if that is contested; at most every RECLAIM_S seconds."""
    if not state.contested:
        return []
    if not at_last and now - state.reclaimed < RECLAIM_S:
        state.reclaims = state.reclaimed + RECLAIM_S
        return []
    state.reclaimed, state.reclaims = now, None
    return [specification(federation, state)]


def repeat(state: CloudState, kept: Set[str], gateway: str, missing: Missing, now: float) -> list[Action]:
    """Publish again what a client at this site waits for in vain, of the blobs that are `kept`."""
    asked = [(hash, Repeat(hash)) for hash in missing.hashes if hash in kept]
    if missing.release:
        asked.append((gateway, Repeat(Channel("release", gateway))))
    recent = {what: when for what, when in state.repeated.items() if now - when < REPEAT_S}
    due = {what: action for what, action in asked if what not in recent}
    state.repeated = {**recent, **dict.fromkeys(due, now)}
    if not due:
        return []
    return [Log("published again", gateway, state.round, {"what": sorted(due)}), *due.values()]
