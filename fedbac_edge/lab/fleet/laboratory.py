"""A whole federation on one machine: the nodes of the field on a virtual clock, their jobs with workers.

All jobs of a round run side by side; each result is waited for at the virtual time at which it is due, so
events come in one order whatever the number of workers. Stores are files: a laboratory that was killed boots
every node from its store again, as after a crash of all machines at once, and goes on to the same end.
"""

from __future__ import annotations

import contextlib
import hashlib
import resource
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec

from fedbac_edge import __version__
from fedbac_edge.lab.engine import Engine, PoolError
from fedbac_edge.lab.fleet.drift import plan_at, round_of
from fedbac_edge.lab.fleet.grounds import Grounds, Plan
from fedbac_edge.lab.fleet.jobs import event_of, task
from fedbac_edge.lab.fleet.journal import Journal, Row
from fedbac_edge.lab.fleet.observer import Observer
from fedbac_edge.lab.fleet.world import Process, Worker, World
from fedbac_edge.lab.samples import NOTHING
from fedbac_edge.lab.scenario import Scenario
from fedbac_edge.methods import method
from fedbac_edge.node import assemble
from fedbac_edge.node.node import Node
from fedbac_edge.node.store import Store
from fedbac_edge.parts.part import digest
from fedbac_edge.protocol.cloud.machine import Cloud
from fedbac_edge.protocol.device.state import Profile
from fedbac_edge.protocol.events import Event, Job, JobFailed, TrainJob
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.randomness import generator
from fedbac_edge.settings.federation import Federation

START_S = 1.0
TRAINED_PER_S = 2_000.0
SCORED_PER_S = 10_000.0
"""Virtual time of a job: a start, then samples per second of a small single-board computer."""


class Laboratory:
    """One simulation. `stores` is the folder of its processes' stores."""

    def __init__(self, scenario: Scenario, grounds: Grounds, engine: Engine, stores: Path) -> None:
        self._scenario, self._grounds, self._engine = scenario, grounds, engine
        self._folder = stores

    def run(self, journal: Journal, tell: Callable[[Row], None] = lambda row: None) -> dict[str, bytes]:
        """Run to the end; part name -> canonical bytes of the final parts. Raises PoolError, Interrupted."""
        with self._opened() as stores:
            world = self._world(stores)
            cloud = world.processes["cloud"]
            observer = Observer(
                self._scenario.federation, self._grounds, self._plan, self._engine, stores, journal, tell
            )
            if stores["cloud"].read("machine") is not None:
                world.run(lambda: cloud.node is not None)
                observer.catch_up(_machine(cloud.node))

            def over() -> bool:
                self._engine.stop.check()
                if cloud.node is None:
                    return False
                machine = _machine(cloud.node)
                observer.look(machine)
                return machine.state.phase == "finished"

            if not world.run(over, limit_s=float("inf")):
                raise PoolError("the simulated world came to a standstill before the last round")
            observer.finish()
            parts = _machine(cloud.node).state.parts
            final = {name: stores["cloud"].blobs[ref.hash] for name, ref in sorted(parts.items())}
            _leave_ledgers(stores)
            return final

    def _plan(self, round: int) -> Plan:
        """Who holds which samples in that round."""
        return plan_at(self._grounds.plan, self._scenario.federation, self._scenario.cut, round)

    # --- the world ---

    def _world(self, stores: Mapping[str, Store]) -> World:
        federation, plan = self._scenario.federation, self._grounds.plan
        world = World(self._scenario.faults, federation.seed)
        world.now = _last_wall(stores["cloud"])
        instance = instance_of(federation)
        spec = Spec(federation=federation, instance=instance, software=__version__)

        def wall() -> float:
            return world.now

        def gateway_node(name: str, store: Store) -> Node:
            return assemble.gateway(federation.name, name, store, wall)

        def device_node(gateway: str, name: str, profile: Profile, store: Store) -> Node:
            return assemble.device(spec, gateway, name, profile, store, wall)

        def add(name: str, make: Callable[[Store], Node], worker: Worker | None = None) -> None:
            world.add(Process(name, make, stores[name], worker))

        used = method(federation)
        add("cloud", lambda store: assemble.cloud(federation, instance, store, wall))
        for gateway, devices in sorted(federation.gateways.items()):
            add(gateway, partial(gateway_node, gateway), self._worker(world, gateway))
            for device in sorted(devices):
                count, unlabelled = self._grounds.counts(device)
                judges = len(self._grounds.samples(plan.holdout[device]).labelled())
                profile = Profile(
                    samples=used.usable(count - unlabelled, unlabelled),
                    labelled=count - unlabelled,
                    holdout=judges,
                )
                add(
                    device,
                    partial(device_node, gateway, device, profile),
                    self._worker(world, gateway, device),
                )
        return world

    def _worker(self, world: World, gateway: str, device: str = "") -> Worker:
        """Does the jobs of one process: hands them to the engine, and waits when their time has come.

        A gateway's jobs are on its test partition, a `device`'s on its own samples; a device may give a job
        up or be slow with it, by draws of its own for each job.
        """
        faults, seed = self._scenario.faults, self._scenario.federation.seed

        def work(job: Job, store: Store) -> tuple[float, Event | Callable[[], Event]]:
            plan = self._plan(round_of(job))
            samples = plan.train[device] if device else NOTHING
            holdout = plan.holdout[device] if device else plan.test[gateway]
            seconds = duration(job, len(samples), len(holdout))
            if device:
                gives_up, is_slow = generator(seed, "faults", device, job.id).random(2)
                if gives_up < faults.dropout:
                    return seconds / 2, JobFailed(job.id, "dropped out, as simulated")
                if is_slow < faults.straggle:
                    seconds += faults.slow_s
            order = task(job, store.blobs, self._grounds.run, samples=samples, holdout=holdout)
            future = self._engine.put(order, due=world.now + seconds)
            return seconds, lambda: event_of(future, job, self._engine.stop)

        return work

    @contextlib.contextmanager
    def _opened(self) -> Iterator[dict[str, Store]]:
        """Every process's store, not durable: what a kill leaves is enough."""
        federation = self._scenario.federation
        names = ["cloud", *federation.gateways]
        names += [device for devices in federation.gateways.values() for device in devices]
        allow_open_files(3 * len(names) + 100)
        with contextlib.ExitStack() as stack:
            stores: dict[str, Store] = {}
            for name in names:
                stores[name] = Store(self._folder / f"{name}.sqlite", durable=False)
                stack.callback(stores[name].close)
            yield stores


def duration(job: Job, samples: int, holdout: int) -> float:
    """Virtual seconds of a job."""
    if isinstance(job, TrainJob):
        scored = holdout * (2 if job.previous else 1)
        return START_S + samples * job.training.epochs / TRAINED_PER_S + scored / SCORED_PER_S
    return START_S + holdout * len(job.candidates) / SCORED_PER_S


def instance_of(federation: Federation) -> str:
    """The federation's instance, made of its description: equal runs give equal bytes."""
    return hashlib.sha256(msgspec.msgpack.encode(federation)).hexdigest()[:8]


def hashes(parts: Mapping[str, bytes]) -> dict[str, str]:
    """Part name -> content hash."""
    return {name: digest(data) for name, data in sorted(parts.items())}


def allow_open_files(count: int) -> None:
    """Raise this process's limit of open files when it is below `count`; raises PoolError when it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise PoolError(f"{count} files must be open at once, this system allows {hard}: see ulimit -n")
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _leave_ledgers(stores: Mapping[str, Store]) -> None:
    """A finished run keeps the ledgers and the last states; models only at the cloud, of the last rounds."""
    for name, store in stores.items():
        if name != "cloud":
            with store.transaction():
                store.collect_blobs(set())
        store.compact()


def _last_wall(cloud: Store) -> float:
    """The virtual time at which a killed world stopped; 0 for a new one."""
    stored = cloud.read("clock")
    return 0.0 if stored is None else msgspec.msgpack.decode(stored, type=tuple[float, float])[1]


def _machine(node: Node | None) -> Cloud:
    assert node is not None
    assert isinstance(node.machine, Cloud)
    return node.machine
