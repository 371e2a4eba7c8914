"""The virtual world: a clock, a heap of things to come, processes on one in-memory broker.

A process keeps its store when it crashes and loses everything else, as on a real machine.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from broker.bus import Delivery
from broker.memory import MemoryBroker
from fedbac_edge.lab.fleet.faults import NONE, Died, Faults
from fedbac_edge.node.effects import Effect, Publish, StartJob, StopJob, Subscribe, Unsubscribe
from fedbac_edge.node.node import Node
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.events import AnyJob, Event, Job

LATENCY_S = 0.01
"""One way between a client and the broker."""

Worker = Callable[[Job, Store], tuple[float, Event | Callable[[], Event]]]
"""Does a job: (virtual seconds that it takes, the event at its end, or a call that waits for it)."""


@dataclass
class Process:
    """One tier's process: how to start it, its disk, and what dies with it."""

    name: str
    make: Callable[[Store], Node]
    store: Store
    worker: Worker | None = None
    node: Node | None = None
    life: int = 0
    """Counts starts; what belongs to an earlier life is void."""
    link: int = 0
    """Counts connections in the same way."""
    connected: bool = False
    job: int = 0
    started_jobs: int = 0
    tick_at: float | None = None
    filters: list[str] = field(default_factory=list)
    """Asked for while the link was down."""
    unanswered: dict[int, Publish] = field(default_factory=dict)
    """Publishes that the broker has not acknowledged, in order: a client library sends them again."""
    arrivals: dict[str, float] = field(default_factory=dict)
    """Topic -> when its latest packet arrives: MQTT keeps the order of one client's packets on a topic."""
    unreachable_until: float = 0.0
    """No connection can be made before."""
    deaths: list[str] = field(default_factory=list)
    """Where its store made it die."""


class World:
    """Runs processes until told to stop. Deterministic for a seed."""

    def __init__(self, faults: Faults = NONE, seed: int = 0) -> None:
        self.now = 0.0
        self.broker = MemoryBroker()
        self.faults = faults
        self.processes: dict[str, Process] = {}
        self.maximum_packet: int | None = None
        """The broker's limit for a packet in bytes, as it would say on connecting."""
        self.healing = False
        """True: no new faults, so that a run can end."""
        self._rng = np.random.default_rng(seed)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    # --- processes ---

    def add(self, process: Process, at: float = 0.0) -> None:
        """Start a process at a time."""
        self.processes[process.name] = process
        self.at(at, lambda: self.boot(process))

    def boot(self, process: Process) -> None:
        """Start (again): a new node over the same store, then the link."""
        process.life += 1
        process.filters, process.tick_at = [], None
        process.unanswered, process.arrivals = {}, {}
        try:
            process.node = process.make(process.store)
        except Died as death:
            self._died(process, death)
            return
        if self._tell(process, lambda node: node.start(self.now)):
            self._connect_later(process)

    def crash(self, name: str, restart_s: float | None = None) -> None:
        """kill -9: the node is gone, its will is published; it starts again later."""
        process = self.processes[name]
        if process.node is not None:
            self._end(process, restart_s)

    def _died(self, process: Process, death: Died) -> None:
        process.deaths.append(str(death))
        self._end(process, None)

    def _end(self, process: Process, restart_s: float | None) -> None:
        self._cut(process)
        process.node, process.job = None, 0
        process.life += 1
        wait = self.faults.restart_s if restart_s is None else restart_s
        self.at(self.now + wait, lambda: self.boot(process))

    def cut(self, name: str) -> None:
        """Cut the link of a process; it comes back by itself."""
        process = self.processes[name]
        if process.connected:
            self._cut(process)
            if process.node is not None:
                process.node.disconnected()
                self._connect_later(process)

    def partition(self, names: Iterable[str], seconds: float) -> None:
        """Keep these processes from the broker for so long: a site whose uplink is down."""
        for name in names:
            process = self.processes[name]
            process.unreachable_until = max(process.unreachable_until, self.now + seconds)
            self.cut(name)

    def lose_broker_memory(self) -> None:
        """The broker restarts empty: all clients reconnect to a broker that knows none."""
        for process in self.processes.values():
            self.cut(process.name)
        self.broker.lose_memory()

    # --- running ---

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Do something at a virtual time."""
        self._order += 1
        heapq.heappush(self._heap, (max(when, self.now), self._order, what))

    def run(self, until: Callable[[], bool], limit_s: float = 1e6) -> bool:
        """Go on until the condition holds; False when `limit_s` virtual seconds or all events are over."""
        while not until():
            if not self._heap or self._heap[0][0] > limit_s:
                return False
            self.now, _, what = heapq.heappop(self._heap)
            what()
        return True

    # --- links ---

    def _connect_later(self, process: Process) -> None:
        life, wait = process.life, self._draw(self.faults.reconnect_s) if process.link else 0.0

        def connect() -> None:
            if process.life != life or process.connected or process.node is None:
                return
            if process.unreachable_until > self.now:
                self.at(process.unreachable_until, connect)
                return
            process.link += 1
            process.connected = True
            link = process.link
            will = process.node.will()
            present = self.broker.connect(process.name, will, lambda d: self._down(process, link, d))
            for filter in process.filters:
                self.broker.subscribe(process.name, filter)
            process.filters = []
            if not present:
                self._subscribe_all(process)
            for packet in process.unanswered.values():
                self._up(process, packet)
            self._tell(process, lambda node: node.connected(present, self.maximum_packet, self.now))

        self.at(self.now + LATENCY_S + wait, connect)

    def _subscribe_all(self, process: Process) -> None:
        assert process.node is not None
        for filter in process.node.subscriptions():
            self.broker.subscribe(process.name, filter)

    def _cut(self, process: Process) -> None:
        if process.connected:
            process.connected = False
            process.link += 1
            self.broker.disconnect(process.name)

    def _down(self, process: Process, link: int, delivery: Delivery) -> None:
        """Broker to client."""
        if self._happens(self.faults.drop):
            self.broker.acknowledge(process.name, delivery.ticket)
            return
        for _ in range(2 if self._happens(self.faults.duplicate) else 1):
            self.at(self.now + self._travel(), lambda: self._arrive(process, link, delivery))

    def _arrive(self, process: Process, link: int, delivery: Delivery) -> None:
        if process.link != link or process.node is None:
            return  # the broker sends it again on the next connection
        if self._happens(self.faults.cut):
            self.cut(process.name)
            return

        def take(node: Node) -> list[Effect]:
            effects = node.delivered(delivery.topic, delivery.payload, self.now, delivery.retain)
            self.broker.acknowledge(process.name, delivery.ticket)
            return effects

        self._tell(process, take)

    def _up(self, process: Process, packet: Publish) -> None:
        """Client to broker, and the broker's acknowledgement back."""
        life, link = process.life, process.link

        def is_up() -> bool:
            return process.connected and (process.life, process.link) == (life, link)

        def arrive() -> None:
            if not is_up():
                return  # lost with the link
            # What is retained is lost only with all of the broker's memory: see lose_broker_memory.
            if packet.retain or not self._happens(self.faults.drop):
                for _ in range(2 if self._happens(self.faults.duplicate) else 1):
                    self.broker.publish(packet.topic, packet.payload, packet.retain)
            self.at(self.now + LATENCY_S, acknowledged)

        def acknowledged() -> None:
            if is_up() and process.unanswered.pop(packet.token, None) is not None:
                self._tell(process, lambda node: node.published(packet.token))

        when = max(self.now + self._travel(), process.arrivals.get(packet.topic, 0.0))
        process.arrivals[packet.topic] = when
        self.at(when, arrive)

    # --- effects ---

    def _tell(self, process: Process, what: Callable[[Node], list[Effect]]) -> bool:
        """Let the process handle something and do what it asks for; False when it died of it."""
        assert process.node is not None
        try:
            effects = what(process.node)
        except Died as death:
            self._died(process, death)
            return False
        self._do(process, effects)
        return True

    def _do(self, process: Process, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Publish():
                    process.unanswered[effect.token] = effect
                    self._up(process, effect)
                case Subscribe(filter) if process.connected:
                    self.broker.subscribe(process.name, filter)
                case Subscribe(filter):
                    process.filters.append(filter)
                case Unsubscribe(filter) if process.connected:
                    self.broker.unsubscribe(process.name, filter)
                case StartJob(job):
                    self._work(process, job)
                case StopJob():
                    process.job = 0
        self._schedule_tick(process)

    def _work(self, process: Process, job: AnyJob) -> None:
        assert process.worker is not None, f"{process.name} has no worker"
        assert isinstance(job, Job), "no releases in a simulation"
        process.started_jobs += 1
        process.job = process.started_jobs
        number, life = process.job, process.life
        seconds, outcome = process.worker(job, process.store)
        if self._happens(self.faults.crash):
            self.at(self.now + float(self._rng.uniform(0, seconds)), lambda: self._crash_in(process, life))

        def finished() -> None:
            if process.job == number and process.life == life and process.node is not None:
                event = outcome() if callable(outcome) else outcome
                self._tell(process, lambda node: node.finished(event, self.now))

        self.at(self.now + seconds, finished)

    def _crash_in(self, process: Process, life: int) -> None:
        if process.life == life:
            self.crash(process.name)

    def _schedule_tick(self, process: Process) -> None:
        due = None if process.node is None else process.node.due()
        if due is None or (process.tick_at is not None and process.tick_at <= due):
            return
        process.tick_at, life = due, process.life

        def tick() -> None:
            if process.life == life and process.node is not None and process.tick_at == due:
                process.tick_at = None
                self._tell(process, lambda node: node.tick(self.now))

        self.at(due, tick)

    # --- chance ---

    def _happens(self, probability: float) -> bool:
        return probability > 0 and not self.healing and float(self._rng.random()) < probability

    def _draw(self, most: float) -> float:
        return float(self._rng.uniform(0, most)) if most > 0 else 0.0

    def _travel(self) -> float:
        return LATENCY_S + (0.0 if self.healing else self._draw(self.faults.delay_s))
