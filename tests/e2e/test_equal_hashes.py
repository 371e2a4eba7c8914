"""One federation, one seed: the same models bit for bit over every bus, and through kill -9 of every role."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from device_agent.data import DeviceData
from fedbac_edge.lab.fleet.faults import NONE, Faults
from fedbac_edge.lab.fleet.world import Process, World
from fedbac_edge.learning.jobs import perform
from fedbac_edge.node import assemble
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.device.state import DeviceState, Profile
from fedbac_edge.protocol.events import Event, Job
from fedbac_edge.protocol.gateway.state import GatewayState
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.settings.federation import Federation


def in_memory(federation: Federation, shards: Path, faults: Faults = NONE) -> dict[str, str]:
    """The federation in the virtual world, with real training; part name -> hash."""
    world = World(faults, seed=3)
    spec = Spec(federation=federation, instance="00000000", software="test")

    def add_device(gateway: str, name: str) -> None:
        data = DeviceData.open(
            shards / f"{name}.npz", classes=federation.model.classes, input_shape=(1, 28, 28)
        )
        profile = Profile(samples=len(data.train), labelled=len(data.train), holdout=len(data.holdout))

        def work(job: Job, store: Store) -> tuple[float, Event]:
            return len(data.train) / 100, perform(job, store.blobs, federation, data.train, data.holdout)

        world.add(
            Process(
                name, lambda store: assemble.device(spec, gateway, name, profile, store), Store(None), work
            )
        )

    def add_gateway(name: str) -> None:
        world.add(Process(name, lambda store: assemble.gateway("equal", name, store), Store(None)))

    cloud = Process("cloud", lambda store: assemble.cloud(federation, "00000000", store), Store(None))
    world.add(cloud)
    for gateway, members in federation.gateways.items():
        add_gateway(gateway)
        for device in members:
            add_device(gateway, device)

    def state() -> CloudState:
        assert cloud.node is not None
        found: CloudState = cloud.node.machine.state
        return found

    assert world.run(lambda: cloud.node is not None and state().phase == "finished")
    return {name: ref.hash for name, ref in state().parts.items()}


@pytest.fixture(scope="session")
def undisturbed(federation: Federation, shards: Path) -> dict[str, str]:
    """The hashes that every other run must end with."""
    hashes = in_memory(federation, shards)
    assert len(set(hashes.values())) == 3  # global and two clusters, all trained apart
    return hashes


def test_shuffled_arrival_changes_nothing(
    federation: Federation, shards: Path, undisturbed: dict[str, str]
) -> None:
    """Delays of up to 20 s reorder whatever can be reordered; a fifth of the packets comes twice."""
    assert in_memory(federation, shards, Faults(delay_s=20.0, duplicate=0.2)) == undisturbed


@pytest.mark.parametrize("broker", ["mosquitto", "embedded"])
def test_real_processes_on_a_real_broker(
    fleet: Callable[[str], Any], broker: str, undisturbed: dict[str, str]
) -> None:
    """Cloud, gateways and agents as processes, started in the worst order."""
    running = fleet(broker)
    running.start_all()
    assert running.wait_for_cloud() == undisturbed


def test_kill_9_of_every_role_in_the_middle_of_a_round(
    fleet: Callable[[str], Any], undisturbed: dict[str, str]
) -> None:
    """Cloud, one gateway and one agent die once each while a round is open; nobody helps but a restart."""
    running = fleet("mosquitto")
    running.start_all()

    def cloud() -> CloudState | None:
        stored = running.state("cloud")
        return None if stored is None else msgspec.msgpack.decode(stored, type=CloudState)

    def in_round(number: int) -> bool:
        state = cloud()
        return state is not None and state.phase == "training" and state.round >= number

    def device_works() -> bool:
        stored = running.state("dev-a")
        return stored is not None and msgspec.msgpack.decode(stored, type=DeviceState).phase == "working"

    running.wait_until(device_works, "training on dev-a")
    running.kill("dev-a")
    killed = msgspec.msgpack.decode(running.state("dev-a"), type=DeviceState)
    running.start("dev-a")
    assert killed.phase in ("working", "answered")

    running.wait_until(lambda: in_round(2), "round 2")
    running.kill("gw1")
    gateway = msgspec.msgpack.decode(running.state("gw1"), type=GatewayState)
    running.start("gw1")
    assert gateway.spec is not None

    running.wait_until(lambda: in_round(3), "round 3")
    running.kill("cloud")
    state = cloud()
    running.start("cloud")
    assert state is not None
    assert state.phase == "training"
    assert state.round == 3

    assert running.wait_for_cloud() == undisturbed
    restarted = msgspec.msgpack.decode(running.state("dev-a"), type=DeviceState)
    assert restarted.session == 2
