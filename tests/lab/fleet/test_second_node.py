"""A cluster's second node, in virtual time: it gives out nothing that is retained; live messages cross."""

from __future__ import annotations

import pytest

from broker import wire
from broker.memory import MemoryBroker
from fedbac_edge.lab.fleet.world import World
from fedbac_edge.lab.trials import trials
from fedbac_edge.node import assemble
from fedbac_edge.node.effects import Publish
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.messages import Missing

SHAPE: trials.Shape = (2, 2, 4, "float32")


class SecondNode(MemoryBroker):
    """Clients in `there` find nothing retained."""

    def __init__(self, there: frozenset[str]) -> None:
        super().__init__()
        self._there = there

    def subscribe(self, client: str, filter: str) -> None:
        retained = self.retained
        if client in self._there:
            self.retained = {}
        try:
            super().subscribe(client, filter)
        finally:
            self.retained = retained


@pytest.mark.parametrize("cloud_there", [False, True])
def test_a_site_on_the_second_node_takes_part(cloud_there: bool) -> None:
    """The models are those of one node, and each update counts once; only the clock tells the difference."""
    federation = trials.federation_of(SHAPE)
    there = {"gw2", *federation.gateways["gw2"], *(["cloud"] if cloud_there else [])}
    world = World()
    world.broker = SecondNode(frozenset(there))
    trial = trials.Trial(federation, world)
    trial.add_all(lambda name: Store(None))
    assert trial.finish()
    assert trial.miscounts() == []
    assert trial.hashes() == trials.undisturbed(SHAPE)[0]
    asked = world.processes["cloud"].store.ledger("published again")
    assert {line.subject for line in asked} == {"gw2"}


def test_a_part_goes_out_again_once_however_many_ask() -> None:
    """A stranger's wish costs nothing: what the cloud does not keep is not looked for."""
    federation = trials.federation_of(SHAPE)
    node = assemble.cloud(federation, trials.INSTANCE, Store(None))
    effects = [*node.start(0.0), *node.connected(False, None, 0.0)]
    while packets := [effect for effect in effects if isinstance(effect, Publish)]:
        effects = [effect for packet in packets for effect in node.published(packet.token)]
    hash = min(ref.hash for ref in node.machine.state.parts.values())
    wish = wire.encode(Missing(hashes=(hash, "0" * 64)))
    first = node.delivered("fedbac/v1/trial/edge/gw1/reply", wish, 1.0)
    assert [effect.topic for effect in first if isinstance(effect, Publish)] == [
        f"fedbac/v1/trial/blob/{hash}/0"
    ]
    for packet in [effect for effect in first if isinstance(effect, Publish)]:
        node.published(packet.token)
    assert node.delivered("fedbac/v1/trial/edge/gw2/reply", wish, 2.0) == []
    assert node.delivered("fedbac/v1/trial/edge/gw2/reply", wish, 7.0) != []
