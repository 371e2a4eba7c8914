"""One role as a process over a real broker, its training stubbed, that kills itself with SIGKILL at a write.

    python dying_role.py ROLE URL STATE POINT GATEWAYS DEVICES ROUNDS ENCODING

POINT counts the writes of this life; 0: it lives. The cloud ends by itself after the last round.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.host import signals
from fedbac_edge.lab.trials import stub, trials
from fedbac_edge.lab.trials.dying_store import DyingStore
from fedbac_edge.node import assemble
from fedbac_edge.node.node import Node
from fedbac_edge.node.runtime import Runtime
from fedbac_edge.node.store import Store
from fedbac_edge.parts.encodings import Encoding
from fedbac_edge.protocol.events import AnyJob, Event, Job
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.settings.federation import Federation


class StubWorker:
    """Does a job at once, as the devices of the virtual world do."""

    def __init__(self, federation: Federation, held: tuple[int, int]) -> None:
        self._federation, self._held = federation, held

    def start(self, job: AnyJob, blobs: Mapping[str, bytes], done: Callable[[Event], None]) -> None:
        """See Worker."""
        assert isinstance(job, Job)
        done(stub.perform(job, blobs, self._federation, *self._held))

    def cancel(self) -> None:
        """See Worker."""

    def close(self) -> None:
        """See Worker."""


def main() -> None:
    """See the module."""
    role, url, state, point, gateways, devices, rounds, encoding, *named = sys.argv[1:]
    method = named[0] if named else "fedbac"
    shape = (int(gateways), int(devices), int(rounds), cast("Encoding", encoding), method)
    federation = trials.federation_of(shape)

    def make(store: Store) -> Node:
        if role == "cloud":
            return assemble.cloud(federation, trials.INSTANCE, store)
        if role in federation.gateways:
            return assemble.gateway(federation.name, role, store)
        gateway = next(name for name, members in federation.gateways.items() if role in members)
        spec = Spec(federation=federation, instance=trials.INSTANCE, software="")
        return assemble.device(spec, gateway, role, trials.profile(federation, role), store)

    store = DyingStore(
        Path(state) / f"{role}.sqlite",
        frozenset({int(point)}),
        die=lambda where: os.kill(os.getpid(), signal.SIGKILL),
    )
    node = make(store)
    runtime = Runtime(
        store,
        node,
        lambda inbox, will: MqttBus(BrokerUrl.parse(url), role, inbox, will, back_off=0.05, back_off_cap=0.5),
        StubWorker(federation, trials.held(federation, role) if role[0] == "d" else (100, 0)),
        until=lambda node: role == "cloud" and node.machine.state.phase == "finished",
    )
    with signals.stopping() as stop, stop.wakes(runtime.stop):
        runtime.run()
    store.close()


if __name__ == "__main__":
    main()
