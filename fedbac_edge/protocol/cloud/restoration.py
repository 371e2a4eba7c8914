"""A cloud that was restored from an older backup: how that is noticed, and what begins anew.

The fleet has gone on after the backup was made: it has done rounds that the restored cloud has not held. So
the cloud begins a new *generation* of its instance. Models, clusters and the count of rounds stay as they are
in the backup. Gateways and devices drop what belongs to rounds that are gone, and keep what they know of
each other. The first half of an instance names the federation, the second half its generation.

Two things tell it: `fedbac restore`, which leaves a mark in the state, and a peer that has seen a later state
of the same federation. The second is believed only before that gateway's first report to this process: a
cloud that holds rounds is not an old copy, whatever gateways say.
"""

from __future__ import annotations

import hashlib

from fedbac_edge.protocol import collecting
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.events import Action, Log, Settle
from fedbac_edge.protocol.messages import Taken

NAMES = 4
"""Leading digits of an instance that stay the same in all its generations."""
REMEMBERED = 20
"""Former instances that are remembered: their specification may still be on its way to us."""


def is_kin(instance: str, other: str) -> bool:
    """True for two generations of one federation."""
    return instance != other and instance[:NAMES] == other[:NAMES]


def next_instance(instance: str, *drawn: str | float) -> str:
    """The instance of the next generation, a function of the old one and of what is `drawn`."""
    tail = len(instance) - NAMES
    for attempt in range(1000):
        text = repr((instance, *drawn, attempt))
        found = instance[:NAMES] + hashlib.sha256(text.encode()).hexdigest()[:tail]
        if found != instance:
            return found
    raise AssertionError("a hash that never changes")


def is_ahead(state: CloudState, gateway: str, taken: Taken) -> bool:
    """True when a gateway has been given a task of this instance that this cloud has not come to yet."""
    if taken.instance != state.instance or gateway in state.proven:
        return False
    evaluated = taken.kind == "evaluate" and state.phase == "training"
    return taken.round > state.round or (evaluated and taken.round == state.round)


def was_succeeded(state: CloudState, instance: str) -> bool:
    """True when the broker holds the specification of a later generation: a backup was restored before."""
    return is_kin(instance, state.instance) and instance not in state.former and not state.proven


def prove(state: CloudState, gateway: str) -> None:
    """A report of this gateway counted: it and this cloud are in the same round."""
    if gateway not in state.proven:
        state.proven = (*state.proven, gateway)


def renew(state: CloudState, why: str, now: float) -> list[Action]:
    """Begin the next generation; the open phase is the caller's to begin again."""
    before = state.instance
    drawn = state.restored or f"{now} {state.session}"
    state.former = (*state.former, before)[-REMEMBERED:]
    state.instance, state.restored = next_instance(before, drawn), ""
    dropped = [Settle(collecting.task_key(gateway)) for gateway in state.collecting.waiting]
    state.collecting, state.reports, state.scores = collecting.Collecting(), {}, {}
    state.last_update, state.silent, state.timers = {}, (), {}
    line = Log("restored", state.instance, state.round, {"before": before, "why": why})
    return [*dropped, line]
