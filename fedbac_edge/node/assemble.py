"""The three tiers and serving, ready to run: state machine, store and topics put together.

What a tier listens to stands here in one place; `runtime` and `simulation` start tiers from here alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from broker import topics
from fedbac_edge.federation_file import reading
from fedbac_edge.node.node import LEDGER_ROUNDS, Node
from fedbac_edge.node.store import Store, StoreDamaged, StoreError
from fedbac_edge.protocol import collecting, messages
from fedbac_edge.protocol.cloud.machine import Cloud
from fedbac_edge.protocol.cloud.releasing import Signer
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.device.machine import Device
from fedbac_edge.protocol.device.state import DeviceState, Profile
from fedbac_edge.protocol.gateway.machine import Gateway
from fedbac_edge.protocol.gateway.state import GatewayState
from fedbac_edge.protocol.serving import Serving, ServingState
from fedbac_edge.settings import live
from fedbac_edge.settings.federation import Federation

S = TypeVar("S", bound=msgspec.Struct)


def cloud(
    federation: Federation,
    instance: str,
    store: Store,
    wall: Callable[[], float] = time.time,
    signer: Signer | None = None,
    *,
    continuing: bool = False,
    ledger_rounds: int = LEDGER_ROUNDS,
    start: Mapping[str, bytes] | None = None,
) -> Node:
    """The cloud of `federation`. `instance` (8 hex digits) names it when the store is new.

    With a `signer` it makes releases, for which it needs a worker that builds them. `continuing`: after the
    last round of a campaign the next campaign begins. The ledger keeps `ledger_rounds` rounds; 0: all.
    `start`: part -> bytes that a new federation begins with, where its description names some.

    What changed in the description since the last start counts from the next round on, if it may change
    (`live_settings`); each has a line in the ledger. Raises StoreError naming what may not, with both values.
    """
    stored = store.read("federation")
    before = federation if stored is None else _decode(stored, Federation)
    federation = live.carried_on(before, federation)
    if refused := live.refused(before, federation):  # by value: newer software may have settings more
        raise StoreError(_other_settings(federation.name, refused))
    if before != federation:
        reading.check(federation)
    state = _state(store, CloudState) or CloudState(instance=instance)
    if state.campaign > 1 and state.campaign_after is None:  # as an older version wrote it
        state.campaign_after = before.rounds * (state.campaign - 1)
    with store.transaction():
        store.write("federation", msgspec.msgpack.encode(federation))
        for change in live.changes(before, federation):
            both = {"before": change.before, "after": change.after}
            store.log(wall(), state.round + 1, "setting", change.setting, both)
    if before != federation:
        state.contested, state.reclaimed = True, -1e9
    if signer is not None and not state.founded:
        state.founded = int(wall())
    machine = Cloud(federation, store.blobs, state, signer, continuing, int(wall()))
    if state.phase == "new" and federation.model.start and not start:
        raise StoreError("start in [model] names weights to begin from, and they are not at hand")
    machine.start = start or {}
    name = federation.name
    listens: dict[str, tuple[type[messages.Message], ...]] = {
        topics.spec(name): (messages.Spec,),
        topics.edge_filter(name, "status"): (messages.GatewayStatus,),
        topics.edge_filter(name, "reply"): (messages.Taken, messages.Missing),
        topics.edge_filter(name, "update"): (messages.GatewayUpdate, messages.GatewayScores),
        topics.cloud_order(name): (messages.Order,),
    }
    return Node(machine, store, name, listens, wall, ledger_rounds)


def gateway(
    federation: str,
    name: str,
    store: Store,
    wall: Callable[[], float] = time.time,
    *,
    ledger_rounds: int = LEDGER_ROUNDS,
) -> Node:
    """The gateway `name`; what the federation is, it learns from the bus."""
    listens: dict[str, tuple[type[messages.Message], ...]] = {
        topics.spec(federation): (messages.Spec,),
        topics.edge(federation, name, "task"): (messages.GatewayTask, messages.GatewayEvaluation),
        topics.edge(federation, name, "receipt"): (messages.Receipt,),
        topics.device_filter(federation, name, "status"): (messages.DeviceStatus, messages.Forgotten),
        topics.device_filter(federation, name, "reply"): (messages.TaskReply, messages.Missing),
        topics.device_filter(federation, name, "update"): (messages.DeviceUpdate, messages.DeviceScores),
    }
    machine = Gateway(name, store.blobs, _state(store, GatewayState))
    return Node(machine, store, federation, listens, wall, ledger_rounds)


def device(
    spec: messages.Spec,
    gateway: str,
    name: str,
    profile: Profile,
    store: Store,
    wall: Callable[[], float] = time.time,
) -> Node:
    """The device `name` at `gateway`, in the federation that `spec` describes."""
    federation = spec.federation.name
    state = _state(store, DeviceState) or DeviceState(instance=spec.instance)
    if state.instance != spec.instance:
        state = DeviceState(instance=spec.instance, session=state.session)
    machine = Device(gateway, name, spec.federation, profile, store.blobs, state)
    listens: dict[str, tuple[type[messages.Message], ...]] = {
        topics.spec(federation): (messages.Spec,),
        topics.device(federation, gateway, name, "task"): (messages.TrainTask, messages.EvaluateTask),
        topics.device(federation, gateway, name, "receipt"): (messages.Receipt,),
        topics.edge(federation, gateway, "status"): (messages.GatewayStatus,),
    }
    return Node(machine, store, federation, listens, wall)


def serving(
    federation: str,
    gateway: str,
    name: str,
    key: bytes | None,
    store: Store,
    wall: Callable[[], float] = time.time,
) -> Node:
    """The device `name` at `gateway`, where it answers with the site's newest release.

    `key` is the public key that releases must be signed with; None: the one pinned before, or the first.
    """
    state = _state(store, ServingState) or ServingState()
    machine = Serving(federation, gateway, name, key, store.blobs, state)
    listens: dict[str, tuple[type[messages.Message], ...]] = {
        topics.edge(federation, gateway, "release"): (messages.Release,),
    }
    return Node(machine, store, federation, listens, wall)


def _other_settings(name: str, refused: tuple[live.Change, ...]) -> str:
    """Why the store and the file do not go together, setting by setting, and what to do."""
    listed = "".join(f"\n  {change} ({change.why_not})" for change in refused)
    return (
        f"this store belongs to a run of {name!r} with other settings, which cannot change in mid-life:"
        f"{listed}\nput them back, or begin another federation with these models: fedbac init --from STATE, "
        "with a --name and a --state of its own"
    )


def _state(store: Store, kind: type[S]) -> S | None:
    stored = store.read("machine")
    if stored is None:
        return None
    try:
        return _decode(stored, kind, collecting.from_older)
    except StoreDamaged as error:
        raise StoreDamaged(f"{store.name} is damaged: {error}") from error


def _decode(stored: bytes, kind: type[S], upgrade: Callable[[Any], Any] = lambda state: state) -> S:
    try:
        return msgspec.convert(upgrade(msgspec.msgpack.decode(stored)), kind)
    except msgspec.DecodeError as error:
        raise StoreDamaged(f"the stored state is not readable as {kind.__name__}: {error}") from error
