"""A device's store after a power cut: a damaged one is moved aside, and the device goes on with a new one.

Devices have no operator to repair a file. What a device remembers is worth one round at most, so it goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from device_agent.voice import Voice
from fedbac_edge.node import damage
from fedbac_edge.node.runtime import held_store
from fedbac_edge.node.store import Store, StoreDamaged

DAMAGED = "damaged"
"""What a store is called that was moved aside."""


@contextlib.contextmanager
def opened_or_new(
    directory: Path,
    name: str,
    kind: type[msgspec.Struct],
    voice: Voice,
    cost: str,
    check_blobs: bool = True,
) -> Iterator[Store]:
    """As `runtime.opened_store`; a damaged store is replaced by an empty one, which is said with its `cost`.

    `kind` is the state of the machine that the store must hold. `check_blobs` as in `Store`.
    Raises StoreError, StoreFailed.
    """
    with held_store(directory, name) as path:
        try:
            store = _opened(path, kind, check_blobs)
        except StoreDamaged as error:
            aside = damage.move_aside(path, DAMAGED)
            assert aside is not None, "a store that is damaged is there"
            damage.forget_older(path, DAMAGED, aside)
            voice.say(
                "store damaged",
                f"{error}; moved it to {aside} and began a new one: {cost}",
                moved_to=str(aside),
            )
            store = Store(path)
        with contextlib.closing(store):
            yield store


def _opened(path: Path, kind: type[msgspec.Struct], check_blobs: bool) -> Store:
    store = Store(path, check_blobs=check_blobs)
    try:
        stored = store.read("machine")
        if stored is not None:
            msgspec.msgpack.decode(stored, type=kind)
    except msgspec.MsgspecError as error:
        store.close()
        raise StoreDamaged(f"{path} is damaged (its state cannot be read: {error})") from error
    return store
