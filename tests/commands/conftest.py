"""A finished campaign in the virtual world with the stores of all tiers on disk, and a real broker."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from broker.mosquitto import MosquittoBroker
from fedbac_edge.federation_file import reading
from fedbac_edge.lab.fleet.world import Process, World
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.node import assemble
from fedbac_edge.node.node import Node
from fedbac_edge.node.store import Store
from fedbac_edge.parts.part import pack, unpack
from fedbac_edge.protocol.device.state import Profile
from fedbac_edge.protocol.events import Evaluated, EvaluateJob, Event, Job, Trained, TrainJob
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.randomness import generator
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import Score

TINY = """
name = "tiny"
rounds = 4
eligibility = "roster"
[model]
classes = ["a", "b", "c"]
input = [1, 16, 16]
mean = [0.4]
std = [0.3]
[method]
clusters = 3
[selection]
warm_up = 2
[assignment]
every = 2
[gateways]
gw1 = ["d1", "d2"]
gw2 = ["d3", "d4"]
"""


@pytest.fixture
def runner() -> CliRunner:
    """Runs commands in this process."""
    return CliRunner()


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def tiny() -> Federation:
    """What the finished campaign was."""
    return reading.parse(TINY)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny: Federation) -> Path:
    """State directory of a whole federation after its last round."""
    place = tmp_path_factory.mktemp("finished")
    world = World()

    def wall() -> float:
        return world.now

    def cloud(store: Store) -> Node:
        return assemble.cloud(tiny, "0badcafe", store, wall)

    world.add(Process("cloud", cloud, Store(place / "cloud.sqlite")))
    spec = Spec(federation=tiny, instance="0badcafe", software="")
    profile = Profile(samples=100, labelled=100, holdout=10)
    for gateway, devices in tiny.gateways.items():

        def site(store: Store, gateway: str = gateway) -> Node:
            return assemble.gateway("tiny", gateway, store, wall)

        world.add(Process(gateway, site, Store(place / f"gateway-{gateway}.sqlite")))
        for name in devices:

            def device(store: Store, gateway: str = gateway, name: str = name) -> Node:
                return assemble.device(spec, gateway, name, profile, store, wall)

            (place / name).mkdir()
            world.add(Process(name, device, Store(place / name / "device.sqlite"), _work))

    def done() -> bool:
        node = world.processes["cloud"].node
        return node is not None and node.machine.state.phase == "finished"

    assert world.run(done, 1e5)
    for process in world.processes.values():
        process.store.close()
    return place


def _work(job: Job, store: Store) -> tuple[float, Event]:
    """Weights move at random; scores are drawn."""
    schema = LeNet((1, 16, 16), 3).schema()
    if isinstance(job, TrainJob):
        rng = generator(7, *map(str, job.seed))
        parts = {
            role: {
                name: (tensor + 0.01 * rng.standard_normal(tensor.shape)).astype(np.float32)
                for name, tensor in unpack(store.blobs[hash], schema).items()
            }
            for role, hash in job.parts.items()
        }
        score = Score(10, int(rng.integers(0, 11)), 3.0)
        packed = {role: pack(part) for role, part in parts.items()}
        return 5.0, Trained(job.id, packed, 90, 90, 1.0, score, score if job.previous else None)
    assert isinstance(job, EvaluateJob)
    rng = generator(7, *(hash for parts in job.candidates.values() for hash in parts.values()))
    return 1.0, Evaluated(
        job.id, {k: Score(10, int(rng.integers(1, 11)), float(rng.uniform(1, 3))) for k in job.candidates}
    )


@pytest.fixture
def free_port() -> int:
    """A TCP port of the loopback address that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def mosquitto(tmp_path: Path, free_port: int) -> Iterator[str]:
    """The address of a real broker without persistence."""
    with MosquittoBroker("127.0.0.1", free_port, tmp_path / "mosquitto"):
        yield f"mqtt://127.0.0.1:{free_port}"
