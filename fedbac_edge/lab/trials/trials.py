"""Whole federations under seeded misfortune: each must end with the models of its undisturbed run.

A trial's seed draws the federation's shape, what the link does to packets, and a plan of crashes, cuts,
partitions, empty brokers, clock jumps and deaths in the middle of a write. With a fixed roster and patient
deadlines none of it may change the result by a bit, and every update counts exactly once.

    python -m fedbac_edge.lab.trials.trials 17 18 19      these seeds, and what was wrong with them
    python -m fedbac_edge.lab.trials.trials 0:5000        a range; the failures are listed at the end
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from fedbac_edge.lab.fleet.faults import NONE, Faults
from fedbac_edge.lab.fleet.world import Process, World
from fedbac_edge.lab.trials import stub
from fedbac_edge.lab.trials.dying_store import DyingStore
from fedbac_edge.methods import method
from fedbac_edge.node import assemble
from fedbac_edge.node.store import Store
from fedbac_edge.parts.encodings import NAMES, Encoding
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.device.state import Profile
from fedbac_edge.protocol.events import Event, Job
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.settings.federation import (
    AssignmentTable,
    DeadlineTable,
    Federation,
    HassleTable,
    MethodTable,
    ModelTable,
    SelectionTable,
    WireTable,
)

INSTANCE = "0badcafe"
PATIENCE_S = 1e5
TRAINING_S = 5.0
CLOCK_JUMP_S = 172_800.0
Shape = tuple[int, int, int, Encoding] | tuple[int, int, int, Encoding, str]
"""Gateways, devices at each, rounds, how updates are encoded, and the method: "fedbac" unless named,
"hassle/paper" with that pairing."""
KINDS = ((100, 0), (0, 100), (40, 60))
"""Labelled and unlabelled samples of a site's first, second and third device, where the method takes both."""


def federation_of(shape: Shape) -> Federation:
    """A fixed roster with both bandits at work; no deadline passes."""
    gateways, devices, rounds, encoding = shape[:4]
    named, _, pairing = (shape[4] if len(shape) == 5 else "fedbac").partition("/")
    return Federation(
        name="trial",
        seed=3,
        rounds=rounds,
        eligibility="roster",
        model=ModelTable(classes=("a", "b"), input=(1, 16, 16)),
        method=MethodTable(name=named, clusters=2),
        selection=SelectionTable(warm_up=1, participation=1.0 if named == "hassle" else 0.6),
        assignment=AssignmentTable(every=2),
        deadlines=DeadlineTable(
            gather_s=PATIENCE_S,
            deadline_min_s=PATIENCE_S,
            deadline_max_s=PATIENCE_S,
            evaluation_deadline_s=PATIENCE_S,
        ),
        wire=WireTable(encoding=encoding),
        hassle=HassleTable(pairing="paper") if pairing else None,
        gateways={f"gw{m}": tuple(f"d{m}{i}" for i in range(1, devices + 1)) for m in range(1, gateways + 1)},
    )


def held(federation: Federation, device: str) -> tuple[int, int]:
    """Labelled and unlabelled samples of a device."""
    if not method(federation).takes_unlabelled:
        return 100, 0
    return KINDS[(int(device[-1]) - 1) % len(KINDS)]


def profile(federation: Federation, device: str) -> Profile:
    """What a device says of itself."""
    labelled, unlabelled = held(federation, device)
    return Profile(samples=labelled + unlabelled, labelled=labelled, holdout=stub.HOLDOUT if labelled else 0)


@dataclass
class Trial:
    """One federation in its own world."""

    federation: Federation
    world: World
    wall: float = 0.0
    """What every wall clock is off by."""

    def add_all(self, make_store: Callable[[str], Store]) -> None:
        """Cloud, gateways and devices, from time 0 on."""
        federation = self.federation
        spec = Spec(federation=federation, instance=INSTANCE, software="")

        def clock() -> float:
            return self.world.now + self.wall

        def add_gateway(name: str) -> None:
            self.world.add(
                Process(name, lambda s: assemble.gateway(federation.name, name, s, clock), make_store(name))
            )

        def add_device(gateway: str, name: str) -> None:
            own = profile(federation, name)

            def work(job: Job, store: Store) -> tuple[float, Event]:
                return TRAINING_S, stub.perform(job, store.blobs, federation, *held(federation, name))

            self.world.add(
                Process(
                    name,
                    lambda s: assemble.device(spec, gateway, name, own, s, clock),
                    make_store(name),
                    work,
                )
            )

        self.world.add(
            Process("cloud", lambda s: assemble.cloud(federation, INSTANCE, s, clock), make_store("cloud"))
        )
        for gateway, devices in federation.gateways.items():
            add_gateway(gateway)
            for device in devices:
                add_device(gateway, device)

    @property
    def cloud(self) -> CloudState | None:
        """The cloud's state; None while its process is down."""
        node = self.world.processes["cloud"].node
        state: CloudState | None = None if node is None else node.machine.state
        return state

    def finish(self, limit_s: float = 1e6) -> bool:
        """Run to the end of the campaign; False when it does not come."""
        return self.world.run(
            lambda: (state := self.cloud) is not None and state.phase == "finished", limit_s
        )

    def hashes(self) -> dict[str, str]:
        """Part name -> hash of the newest generation."""
        assert self.cloud is not None
        return {name: ref.hash for name, ref in sorted(self.cloud.parts.items())}

    def miscounts(self) -> list[str]:
        """By the ledgers: devices that did not count exactly once in a round in which they were asked."""
        federation, found = self.federation, list[str]()

        def compare(what: str, is_: Counter[tuple[int, str]], should: Counter[tuple[int, str]]) -> None:
            found.extend(
                f"{what} {name} in round {round}: counted {is_[round, name]} times, asked "
                f"{should[round, name]} times"
                for round, name in sorted({*is_, *should})
                if is_[round, name] != should[round, name]
            )

        def lines(process: str, kind: str) -> Counter[tuple[int, str]]:
            ledger = self.world.processes[process].store.ledger(kind)
            return Counter((line.round, line.subject) for line in ledger)

        rounds = range(1, federation.rounds + 1)
        compare(
            "site", lines("cloud", "reported"), Counter((r, g) for r in rounds for g in federation.gateways)
        )
        for gateway in federation.gateways:
            store = self.world.processes[gateway].store
            asked = Counter(
                (line.round, n) for line in store.ledger("selected") for n in line.detail["asked"]
            )
            compare(f"{gateway}: device", lines(gateway, "accepted"), asked)
            found += [f"{gateway}: refused {line.subject}: {line.detail}" for line in store.ledger("refused")]
        return found


@functools.cache
def undisturbed(shape: Shape) -> tuple[dict[str, str], float, dict[str, int]]:
    """Final hashes, length in virtual seconds, and the number of write points of each process."""
    trial = Trial(federation_of(shape), World())
    trial.add_all(lambda name: DyingStore())
    assert trial.finish(), f"the undisturbed run of {shape} does not end"
    assert not trial.miscounts()
    points = {
        name: len(process.store.points)
        for name, process in trial.world.processes.items()
        if isinstance(process.store, DyingStore)
    }
    return trial.hashes(), trial.world.now, points


@dataclass(frozen=True)
class Outcome:
    """What came of a trial; `wrong` is empty when all is well."""

    what: str
    wrong: tuple[str, ...]
    deaths: int = 0


@dataclass
class Plan:
    """A seed's misfortunes."""

    shape: Shape
    faults: Faults
    packet: int | None
    deaths: dict[str, frozenset[int]] = field(default_factory=dict)
    events: list[tuple[float, str, str, float]] = field(default_factory=list)
    """(share of the undisturbed length, what, to whom, seconds)."""


def drawn(seed: int) -> Plan:
    """The plan of a seed; small plans are as likely as large ones."""
    rng = np.random.default_rng([seed, 4])

    def rate(most: float) -> float:
        return float(rng.uniform(0, most)) if rng.random() < 0.6 else 0.0

    encoding: Encoding = NAMES[rng.integers(len(NAMES))]
    shape = (int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(2, 4)), encoding)
    faults = Faults(
        drop=rate(0.05),
        duplicate=rate(0.3),
        delay_s=rate(10.0),
        crash=rate(0.2),
        cut=rate(0.03),
        restart_s=float(rng.uniform(0.01, 30)),
        reconnect_s=float(rng.uniform(0.01, 30)),
    )
    _, _, points = undisturbed(shape)
    names = sorted(points)
    plan = Plan(shape, faults, (None, 4_000, 6_000, 20_000)[rng.integers(4)])
    for _ in range(rng.integers(0, 4)):
        name = names[rng.integers(len(names))]
        point = int(rng.integers(1, points[name] + 1))
        plan.deaths[name] = plan.deaths.get(name, frozenset()) | {point}
    for _ in range(rng.integers(0, 8)):
        what = ("crash", "cut", "partition", "forget", "clock")[rng.integers(5)]
        plan.events.append(
            (
                float(rng.uniform(0, 1.3)),
                what,
                names[rng.integers(len(names))],
                float(rng.uniform(0.1, 400)),
            )
        )
    return plan


def run(seed: int) -> Outcome:
    """The trial of a seed."""
    plan = drawn(seed)
    hashes, length, _ = undisturbed(plan.shape)
    trial = Trial(federation_of(plan.shape), World(plan.faults, seed))
    trial.world.maximum_packet = plan.packet
    trial.add_all(lambda name: DyingStore(deaths=plan.deaths.get(name, frozenset())))
    for share, what, name, seconds in plan.events:
        trial.world.at(share * length, functools.partial(_strike, trial, what, name, seconds))
    return judge(trial, hashes, f"seed {seed}")


def _strike(trial: Trial, what: str, name: str, seconds: float) -> None:
    world, gateways = trial.world, trial.federation.gateways
    match what:
        case "crash":
            world.crash(name, restart_s=seconds)
        case "cut":
            world.cut(name)
        case "partition":  # of a site with its devices, or of the cloud
            site = next((g for g, devices in gateways.items() if name == g or name in devices), None)
            world.partition([name] if site is None else [site, *gateways[site]], seconds)
        case "forget":
            world.lose_broker_memory()
        case "clock":
            trial.wall += CLOCK_JUMP_S if seconds < 200 else -CLOCK_JUMP_S


def die_at(shape: Shape, name: str, points: Iterable[int]) -> Outcome:
    """The undisturbed run, but that the process `name` dies at these write points of its lives."""
    hashes, _, _ = undisturbed(shape)
    chosen = frozenset(points)
    trial = Trial(federation_of(shape), World(NONE))
    trial.add_all(lambda each: DyingStore(deaths=chosen if each == name else frozenset()))
    return judge(trial, hashes, f"{shape} {name} dies at {sorted(chosen)}")


def judge(trial: Trial, hashes: dict[str, str], what: str) -> Outcome:
    """Run to the end and hold the result to that of the undisturbed run."""
    deaths = 0
    try:
        finished = trial.finish()
    except Exception as error:  # whatever a tier raises is a finding
        return Outcome(what, (f"raised {error!r}",))
    finally:
        deaths = sum(len(process.deaths) for process in trial.world.processes.values())
    if not finished:
        state = trial.cloud
        where = "down"
        if state is not None:
            where = f"{state.phase} {state.round}, waiting for {state.collecting.waiting}"
        return Outcome(what, (f"does not end: the cloud is {where} at {trial.world.now:.0f} s",), deaths)
    wrong = trial.miscounts()
    if trial.hashes() != hashes:
        wrong.append("other models than those of the undisturbed run")
    return Outcome(what, tuple(wrong), deaths)


def main(arguments: list[str]) -> int:
    """Run the seeds named on the command line; the number of failures."""
    failed = 0
    for argument in arguments:
        first, _, last = argument.partition(":")
        for seed in range(int(first), int(last or int(first) + 1)):
            outcome = run(seed)
            if outcome.wrong:
                failed += 1
                print(f"{outcome.what}: {'; '.join(outcome.wrong)}", flush=True)
    print(f"{failed} failures")
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1:]) else 0)
