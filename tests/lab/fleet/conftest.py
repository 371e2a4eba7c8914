"""A federation in the virtual world whose devices "train" by adding seeded noise: fast and deterministic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from fedbac_edge.federation_file import reading
from fedbac_edge.lab.fleet.faults import NONE, Faults
from fedbac_edge.lab.fleet.world import Process, Worker, World
from fedbac_edge.lab.trials import stub
from fedbac_edge.node import assemble
from fedbac_edge.node.store import LedgerLine, Store
from fedbac_edge.protocol.cloud.machine import Cloud
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.device.state import DeviceState, Profile
from fedbac_edge.protocol.events import Event, Job, Trained
from fedbac_edge.protocol.gateway.state import GatewayState
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.settings.federation import Federation

INSTANCE = "0badcafe"
PATIENT = (
    "deadline_min_s = 100000\ndeadline_max_s = 100000\nevaluation_deadline_s = 100000\ngather_s = 100000"
)

Spoil = Callable[[Trained], Event]


def settings(
    *,
    rounds: int = 4,
    eligibility: str = "roster",
    evaluation: str = "holdout",
    deadlines: str = PATIENT,
    gateways: Mapping[str, tuple[str, ...]] | None = None,
    more: str = "",
    head: str = "",
) -> Federation:
    """A checked federation with a LeNet small enough for tests."""
    rosters = {"gw1": ("d1", "d2"), "gw2": ("d3", "d4")} if gateways is None else gateways
    lines = "\n".join(f"{name} = {list(devices)}" for name, devices in rosters.items())
    return reading.parse(
        f"""
        name = "t"
        rounds = {rounds}
        eligibility = "{eligibility}"
        evaluation = "{evaluation}"
        {head}
        [model]
        classes = ["a", "b"]
        input = [1, 16, 16]
        {more}
        [deadlines]
        {deadlines}
        [gateways]
        {lines}
        """
    )


def trainer(
    federation: Federation,
    seconds: float,
    spoil: Spoil | None = None,
    labelled: int = 100,
    unlabelled: int = 0,
) -> Worker:
    """A worker whose results depend on its job's seed and parts alone, as those of real training do."""

    def work(job: Job, store: Store) -> tuple[float, Event]:
        event = stub.perform(job, store.blobs, federation, labelled, unlabelled)
        if not isinstance(event, Trained):
            return seconds / 5, event
        return seconds, event if spoil is None else spoil(event)

    return work


@dataclass
class Fleet:
    """One federation with its world. `wall` shifts everybody's wall clock."""

    federation: Federation
    world: World
    wall: float = 0.0
    jobs: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(device, job) -> how often it was started."""
    filters: dict[str, set[str]] = field(default_factory=dict)
    """Client -> filters that it has asked for and not given up."""

    def __post_init__(self) -> None:
        broker = self.world.broker
        subscribe, unsubscribe = broker.subscribe, broker.unsubscribe

        def asked(client: str, filter: str) -> None:
            self.filters.setdefault(client, set()).add(filter)
            subscribe(client, filter)

        def given_up(client: str, filter: str) -> None:
            self.filters.setdefault(client, set()).discard(filter)
            unsubscribe(client, filter)

        setattr(broker, "subscribe", asked)  # noqa: B010
        setattr(broker, "unsubscribe", given_up)  # noqa: B010

    def clock(self) -> float:
        return self.world.now + self.wall

    def add_cloud(self, at: float = 0.0) -> None:
        process = Process(
            "cloud", lambda s: assemble.cloud(self.federation, INSTANCE, s, self.clock), Store(None)
        )
        self.world.add(process, at)

    def add_gateway(self, name: str, at: float = 0.0, worker: Worker | None = None) -> None:
        process = Process(name, lambda s: assemble.gateway("t", name, s, self.clock), Store(None), worker)
        self.world.add(process, at)

    def add_device(
        self,
        gateway: str,
        name: str,
        at: float = 0.0,
        seconds: float = 5.0,
        samples: int = 100,
        holdout: int = 10,
        spoil: Spoil | None = None,
        unlabelled: int = 0,
    ) -> None:
        spec = Spec(federation=self.federation, instance=INSTANCE, software="")
        profile = Profile(samples=samples, labelled=samples - unlabelled, holdout=holdout)
        train = trainer(self.federation, seconds, spoil, samples - unlabelled, unlabelled)

        def work(job: Job, store: Store) -> tuple[float, Event]:
            self.jobs[name, job.id] += 1
            took, event = train(job, store)
            assert not callable(event)
            return took, event

        process = Process(
            name, lambda s: assemble.device(spec, gateway, name, profile, s, self.clock), Store(None), work
        )
        self.world.add(process, at)

    def run(self, limit_s: float = 1e6) -> bool:
        """Until the cloud says that it is done."""
        return self.world.run(lambda: self.phase() == "finished", limit_s)

    def run_to_round(self, round: int, phase: str = "training", limit_s: float = 1e6) -> bool:
        return self.world.run(lambda: (self.cloud.round, self.cloud.phase) == (round, phase), limit_s)

    def go_on(self, seconds: float) -> None:
        end = self.world.now + seconds
        self.world.at(end, lambda: None)
        self.world.run(lambda: self.world.now >= end, end)

    def phase(self) -> str:
        return self.cloud.phase if self.is_up("cloud") else ""

    def is_up(self, name: str) -> bool:
        return name in self.world.processes and self.world.processes[name].node is not None

    @property
    def cloud(self) -> CloudState:
        node = self.world.processes["cloud"].node
        if node is None:
            return CloudState(instance=INSTANCE)
        assert isinstance(node.machine, Cloud)
        return node.machine.state

    def gateway(self, name: str) -> GatewayState:
        node = self.world.processes[name].node
        if node is None:
            return GatewayState()
        state = node.machine.state
        assert isinstance(state, GatewayState)
        return state

    def device(self, name: str) -> DeviceState:
        node = self.world.processes[name].node
        if node is None:
            return DeviceState(instance=INSTANCE)
        state = node.machine.state
        assert isinstance(state, DeviceState)
        return state

    def hashes(self) -> dict[str, str]:
        return {name: ref.hash for name, ref in sorted(self.cloud.parts.items())}

    def ledger(self, name: str, kind: str, round: int | None = None) -> list[LedgerLine]:
        return self.world.processes[name].store.ledger(kind, round)

    def subjects(self, name: str, kind: str, round: int | None = None) -> list[str]:
        return [line.subject for line in self.ledger(name, kind, round)]


def build(
    federation: Federation, faults: Faults = NONE, seed: int = 0, without: tuple[str, ...] = ()
) -> Fleet:
    """The whole federation at time 0, but for those `without`: the test adds them in its own way."""
    fleet = Fleet(federation, World(faults, seed))
    if "cloud" not in without:
        fleet.add_cloud()
    for gateway, devices in federation.gateways.items():
        if gateway not in without:
            own = trainer(federation, 5.0) if federation.evaluation == "test" else None
            fleet.add_gateway(gateway, worker=own)
        for device in devices:
            if device not in without:
                fleet.add_device(gateway, device)
    return fleet


@pytest.fixture(name="settings", scope="session")
def settings_() -> Callable[..., Federation]:
    return settings


@pytest.fixture(name="build", scope="session")
def build_() -> Callable[..., Fleet]:
    return build
