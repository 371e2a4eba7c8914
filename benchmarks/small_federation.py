"""What the accuracy benchmarks share: a small federation on Fashion-MNIST, whole, with real training.

Two gateways with five devices each, in the virtual world: the machines, messages and stores of the field on
an in-memory broker, so bytes are those of real payloads. Every device may be made hostile.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np

from fedbac_edge.datasets.fashion import folder
from fedbac_edge.datasets.partition import dirichlet
from fedbac_edge.datasets.samples import Samples
from fedbac_edge.datasets.sources import load
from fedbac_edge.federation_file import reading
from fedbac_edge.lab.fleet.world import Process, World
from fedbac_edge.learning.evaluation import evaluate
from fedbac_edge.learning.jobs import perform
from fedbac_edge.methods import method
from fedbac_edge.models.catalog import architecture
from fedbac_edge.node import assemble
from fedbac_edge.node.store import Store
from fedbac_edge.parts.part import Part, unpack
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.device.state import Profile
from fedbac_edge.protocol.events import Event, Job, Trained
from fedbac_edge.protocol.messages import RoundSummary, Spec
from fedbac_edge.settings.federation import (
    AssignmentTable,
    DeadlineTable,
    Federation,
    MethodTable,
    RobustTable,
    SelectionTable,
    TrainingTable,
    WireTable,
)
from fedbac_edge.settings.pictures import MODELS
from fedbac_edge.vocabulary.training import Normalisation

GATEWAYS, DEVICES = 2, 5
ROSTER = {f"gw{m}": tuple(f"d{m}{i}" for i in range(1, DEVICES + 1)) for m in range(1, GATEWAYS + 1)}
INSTANCE = "00000000"
NOBODY = Samples(np.zeros((0, 28, 28, 1), np.uint8), np.zeros(0, np.int64))

Attack = Callable[[Trained, Mapping[str, Part]], Trained]
"""(what an honest device would send, role -> part that it started from) to what the hostile one sends."""


@dataclass(frozen=True)
class Setting:
    """The size of a run."""

    rounds: int
    samples: int
    """Per device, on average."""


@dataclass(frozen=True)
class Outcome:
    """`accuracy`: of the served models on the test set, mean over sites; bytes of update payloads."""

    accuracy: float
    device_bytes: int
    gateway_bytes: int
    seconds: float


class Data:
    """The samples of one seed: drawn from the training set, cut over the devices by Dirichlet(1)."""

    def __init__(self, setting: Setting, seed: int) -> None:
        read = partial(load, folder(), classes=MODELS["fashion-mnist"].classes, input_shape=(1, 28, 28))
        everything, self.test = read(split="train"), read(split="test")
        count = setting.samples * GATEWAYS * DEVICES
        chosen = np.random.default_rng(seed).permutation(len(everything))[:count]
        train = everything.take(chosen)
        cut = dirichlet(
            train.y,
            self.test.y,
            servers=GATEWAYS,
            clients=DEVICES,
            alpha_server=100.0,
            alpha_client=1.0,
            seed=seed,
            classes=len(MODELS["fashion-mnist"].classes),
        )
        self.devices = {
            device: train.take(indices)
            for (_, devices), clients in zip(ROSTER.items(), cut.train, strict=True)
            for device, indices in zip(devices, clients, strict=True)
        }


def describe(
    setting: Setting, seed: int, wire: WireTable | None = None, robust: RobustTable | None = None
) -> Federation:
    """Fed-BAC with one cluster per gateway that stays; all are asked; no norm gate."""
    return reading.check(
        Federation(
            name="small",
            seed=seed,
            rounds=setting.rounds,
            eligibility="roster",
            model=MODELS["fashion-mnist"],
            method=MethodTable(clusters=GATEWAYS),
            training=TrainingTable(epochs=2, batch_size=32, learning_rate=0.03),
            selection=SelectionTable(method="random", participation=1.0),
            assignment=AssignmentTable(method="fixed"),
            deadlines=DeadlineTable(norm_gate=False),
            wire=wire or WireTable(),
            robust=robust or RobustTable(),
            gateways=ROSTER,
        )
    )


def run(
    federation: Federation,
    data: Data,
    attacks: Mapping[str, Attack] | None = None,
    poisoned: Mapping[str, Samples] | None = None,
) -> Outcome:
    """Run to the end. `attacks` change what devices send, `poisoned` what they train on."""
    began = time.perf_counter()
    world = World()
    spec = Spec(federation=federation, instance=INSTANCE, software="benchmark")
    model = architecture(
        federation.model.architecture, federation.model.input, len(MODELS["fashion-mnist"].classes)
    )
    schema = model.schema()

    def add_device(gateway: str, name: str) -> None:
        samples = (poisoned or {}).get(name, data.devices[name])
        attack = (attacks or {}).get(name)

        def work(job: Job, store: Store) -> tuple[float, Event]:
            event = perform(job, store.blobs, federation, samples, NOBODY)
            if attack is not None and isinstance(event, Trained):
                assert hasattr(job, "parts")
                base = {role: unpack(store.blobs[hash], schema) for role, hash in job.parts.items()}
                event = attack(event, base)
            return 1.0, event

        profile = Profile(samples=len(samples), labelled=len(samples), holdout=0)
        world.add(
            Process(
                name, lambda store: assemble.device(spec, gateway, name, profile, store), Store(None), work
            )
        )

    def add_gateway(name: str) -> None:
        world.add(Process(name, lambda store: assemble.gateway(federation.name, name, store), Store(None)))

    cloud = Process("cloud", lambda store: assemble.cloud(federation, INSTANCE, store), Store(None))
    world.add(cloud)
    for gateway, devices in federation.gateways.items():
        add_gateway(gateway)
        for device in devices:
            add_device(gateway, device)

    def state() -> CloudState:
        assert cloud.node is not None
        found: CloudState = cloud.node.machine.state
        return found

    finished = world.run(lambda: cloud.node is not None and state().phase == "finished")
    assert finished, "the world came to a standstill"
    summaries = [msgspec.convert(line.detail, RoundSummary) for line in cloud.store.ledger("summary")]
    reported = sum(line.detail["bytes"] for line in cloud.store.ledger("reported"))
    accuracies = []
    for cluster in sorted(state().assignment.values()):
        served = [
            (unpack(cloud.store.blobs[state().parts[name].hash], schema), 1.0)
            for name in method(federation).served(cluster).values()
        ]
        normalisation = Normalisation(mean=federation.model.mean, std=federation.model.std)
        score = evaluate(model, served, data.test.x, data.test.y, normalisation)
        accuracies.append(score.correct / score.count)
    return Outcome(
        accuracy=float(np.mean(accuracies)),
        device_bytes=sum(summary.up_bytes for summary in summaries) - reported,
        gateway_bytes=reported,
        seconds=time.perf_counter() - began,
    )


def arguments(description: str, rounds: int, samples: int, seeds: int) -> argparse.Namespace:
    """--rounds, --samples, --seeds; prints the versions that the figures depend on."""
    import torch

    from fedbac_edge import __version__
    from fedbac_edge.learning.local import best_backend

    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--samples", type=int, default=samples, help="per device")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, seeds + 1)))
    given = parser.parse_args()
    model = architecture(
        MODELS["fashion-mnist"].architecture,
        MODELS["fashion-mnist"].input,
        len(MODELS["fashion-mnist"].classes),
    )
    print(
        f"fedbac-edge {__version__}, python {platform.python_version()}, numpy {np.__version__}, "
        f"torch {torch.__version__}, training path {best_backend(model)}, {platform.machine()}"
    )
    print(
        f"{GATEWAYS} gateways x {DEVICES} devices, {given.samples} samples each, {given.rounds} rounds, "
        f"seeds {given.seeds}",
        flush=True,
    )
    return given
