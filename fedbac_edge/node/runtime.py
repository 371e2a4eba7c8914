"""Runs one node in real time: a bus, a clock, a worker, one thread that owns the store.

The thread takes what waits in the inbox (what the bus says, what the worker finished, a request to stop),
lets the node handle it, carries out the effects, and only then acknowledges the deliveries. What waits
together is stored together: one wait for the disk, however many devices upload at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import queue
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from broker import access, chunks, reasons, topics
from broker.bus import Bus, BusEvent, Connected, Delivery, Disconnected, Published, Subscribed, Will
from fedbac_edge.node import access_probe, damage
from fedbac_edge.node.effects import Effect, Publish, StartJob, StopJob, Subscribe, Unsubscribe
from fedbac_edge.node.neighbours import Neighbours
from fedbac_edge.node.node import Node
from fedbac_edge.node.store import Store, StoreError, StoreFailed, StoreInUse
from fedbac_edge.protocol.events import AnyJob, Event, JobFailed

log = logging.getLogger(__name__)

IDLE_S = 3600.0
"""The longest wait when no timer is due."""
BATCH = 32
"""Most events that are stored in one transaction; the bus hands out fewer deliveries than that at a time."""


class Stopped(Exception):
    """The link is gone for good; the message says why (a namesake took over, access denied ...)."""


@dataclass(frozen=True)
class _Stop:
    """A signal or a caller asked to end."""


@dataclass(frozen=True)
class _Done:
    """The worker finished a job, or another thread has something to tell."""

    event: Event


@dataclass(frozen=True)
class _Poke:
    """The watchdog wants to know that the loop runs."""

    answer: Callable[[], None]


Inbox = queue.SimpleQueue[BusEvent | _Stop | _Done | _Poke]
OpenBus = Callable[[queue.SimpleQueue[BusEvent | _Stop | _Done | _Poke], Will], Bus]


class Worker(Protocol):
    """Does jobs off the network thread, one at a time."""

    def start(self, job: AnyJob, blobs: Mapping[str, bytes], done: Callable[[Event], None]) -> None:
        """Begin a job with the blobs that it names; cancels a running one. `done` may be called anywhere."""

    def cancel(self) -> None:
        """Stop the running job, if any; its `done` is not called."""

    def close(self) -> None:
        """End for good; leaves no process or thread."""


class Runtime:
    """One process's main loop. `observe` is called with the node after everything that happened."""

    def __init__(
        self,
        store: Store,
        node: Node,
        open_bus: OpenBus,
        worker: Worker | None = None,
        observe: Callable[[Node], None] = lambda node: None,
        until: Callable[[Node], bool] = lambda node: False,
        neighbours: Neighbours | None = None,
    ) -> None:
        """With `neighbours` the other federations of the broker are listened to, as far as it lets us."""
        self._store, self._node, self._worker = store, node, worker
        self._observe, self._until, self._neighbours = observe, until, neighbours
        self._inbox: Inbox = queue.SimpleQueue()
        # Before the will is made: it must carry the number of this session, or it counts as a late one.
        self._first_effects = node.start(time.monotonic())
        self._bus = open_bus(self._inbox, node.will())
        self._test = self._self_test(node)
        self._topics: dict[int, str] = {}
        """Token -> topic of what the broker has not answered yet."""
        self.link = "connecting"
        """For people: "connected", or why not."""

    def stop(self) -> None:
        """Ask `run` to end; may be called from anywhere, a signal handler too."""
        self._inbox.put(_Stop())

    def tell(self, event: Event) -> None:
        """Let the node handle an event from outside; may be called from anywhere."""
        self._inbox.put(_Done(event))

    def poke(self, answer: Callable[[], None]) -> None:
        """Have `answer` called by the loop: proof for a watchdog that it goes round."""
        self._inbox.put(_Poke(answer))

    def run(self) -> None:
        """Run until `until` holds or `stop`; says goodbye on the way out. Raises Stopped."""
        try:
            self._carry_out(self._first_effects)
            if self._neighbours is not None:
                self._carry_out([Subscribe(filter) for filter in self._neighbours.filters])
            self._bus.start()
            self._loop()
        finally:
            if self._worker is not None:
                self._worker.close()
            self._say_goodbye()

    def _loop(self) -> None:
        while not self._settled():
            due = [when for when in (self._node.due(), self._test.due(), self._moving()) if when is not None]
            wait = max(0.0, min(due) - time.monotonic()) if due else IDLE_S
            events = self._waiting(min(wait, IDLE_S))
            if events and self._take_all(events):
                return
            if not events or ((next_due := self._node.due()) is not None and next_due <= time.monotonic()):
                self._carry_out(self._node.tick(time.monotonic()))
            self._test.tick(time.monotonic())
            self._observe(self._node)

    def _moving(self) -> float | None:
        """When it may be time to move to another federation, unless that time is over."""
        due = None if self._neighbours is None else self._neighbours.due()
        return due if due is not None and due > time.monotonic() else None

    def _settled(self) -> bool:
        """Done, and the broker has all that was to be said."""
        return self._until(self._node) and not self._node.unsent()

    def _waiting(self, timeout: float) -> list[BusEvent | _Stop | _Done | _Poke]:
        """What is in the inbox; waits for the first."""
        events: list[BusEvent | _Stop | _Done | _Poke] = []
        with contextlib.suppress(queue.Empty):
            events.append(self._inbox.get(timeout=timeout))
            while len(events) < BATCH:
                events.append(self._inbox.get_nowait())
        return events

    def _take_all(self, events: list[BusEvent | _Stop | _Done | _Poke]) -> bool:
        """Handle events in one transaction, then let out what they caused; True when it is time to stop."""
        effects: list[Effect] = []
        tickets: list[int] = []
        pokes: list[_Poke] = []
        stop, gone = False, ""
        with self._store.transaction():
            for event in events:
                match event:
                    case _Stop():
                        stop = True
                        break
                    case _Poke():
                        pokes.append(event)
                        continue
                    case Delivery(ticket=ticket):
                        tickets.append(ticket)
                    case Disconnected(reason, True):
                        self.link, gone = reason, reason
                        break
                    case _:
                        pass
                effects += self._take(event, time.monotonic())
        self._carry_out(effects)
        for ticket in tickets:
            self._bus.acknowledge(ticket)
        for poke in pokes:
            poke.answer()
        if gone:
            self._node.disconnected()
            raise Stopped(gone)
        return stop

    def _take(self, event: BusEvent | _Done, now: float) -> list[Effect]:
        if not isinstance(event, _Done) and self._test.take(event, now):
            return []
        if self._neighbours is not None and not isinstance(event, _Done):
            self._neighbours.take(event, now)
        match event:
            case Delivery(topic, payload, retained):
                return self._node.delivered(topic, payload, now, retained)
            case Published(token, refused, code):
                topic, limit = self._topics.pop(token, ""), self._node.packet_limit
                effects = self._node.published(token, refused, code)
                if code in reasons.DENIED:
                    self._test.denied("publish on", topic, refused)
                elif code == reasons.TOO_LARGE and self._node.packet_limit != limit:
                    log.warning(
                        "the broker refuses packets of some size without announcing a limit; packets of at "
                        "most %s bytes are sent from now on",
                        self._node.packet_limit,
                    )
                elif refused and code != reasons.TOO_LARGE:
                    log.warning("the broker refused a message on %s: %s", topic, refused)
                return effects
            case Connected(session_present, maximum_packet):
                self.link = "connected"
                try:
                    return self._node.connected(session_present, maximum_packet, now)
                except chunks.ChunkError as error:
                    raise Stopped(str(error)) from error
            case Disconnected(reason):
                self.link = reason
                self._node.disconnected()
                log.info("%s", reason)
            case Subscribed():
                pass
            case _Done(done):
                return self._node.finished(done, now)
        return []

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Publish(topic, payload, retain, token):
                    self._topics[token] = topic
                    self._bus.publish(topic, payload, retain, token)
                case Subscribe(filter):
                    self._bus.subscribe(filter)
                case Unsubscribe(filter):
                    self._bus.unsubscribe(filter)
                case StartJob(job):
                    self._start(job)
                case StopJob():
                    if self._worker is not None:
                        self._worker.cancel()

    def _start(self, job: AnyJob) -> None:
        if self._worker is None:
            self._inbox.put(_Done(JobFailed(job.id, "no worker here")))
        else:
            self._worker.start(job, self._store.blobs, lambda event: self._inbox.put(_Done(event)))

    def _self_test(self, node: Node) -> access_probe.SelfTest:
        own = topics.parse(node.will().topic)
        assert own is not None
        user = access.user_name(own.gateway, own.device)

        def deny(denial: access_probe.Denial) -> None:
            log.error("%s; %s", denial, access_probe.remedy(user))

        return access_probe.SelfTest(
            user,
            access_probe.plan_of(node.will().topic, node.subscriptions()),
            lambda topic, token: self._bus.publish(topic, b"", token=token),
            self._bus.subscribe,
            self._let_go,
            deny,
            access_probe.ANSWER_S,
        )

    def _let_go(self, filter: str) -> None:
        """The self-test no longer listens there; the node may."""
        if filter not in self._node.subscriptions():
            self._bus.unsubscribe(filter)

    def _say_goodbye(self) -> None:
        if self.link == "connected":
            with contextlib.suppress(sqlite3.Error):  # the disk may be why it leaves
                self._carry_out(self._node.leaving(time.monotonic()))
            will = self._node.will()
            self._bus.publish(will.topic, will.payload, retain=True)
        self._bus.close()


@contextlib.contextmanager
def opened_store(directory: Path, name: str) -> Iterator[Store]:
    """The store `directory/name.sqlite`, held against a second process. Raises StoreError."""
    with held_store(directory, name) as path, contextlib.closing(Store(path)) as store:
        yield store


@contextlib.contextmanager
def held_store(directory: Path, name: str) -> Iterator[Path]:
    """The path of the store `directory/name.sqlite`, which no other process opens meanwhile.

    Raises StoreError, StoreFailed.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        if damage.is_disk_trouble(error):
            raise StoreFailed(
                f"the state directory {directory} cannot be written ({error.strerror}); make room or mend "
                "the disk, then start again: nothing is lost"
            ) from error
        raise StoreError(
            f"the state directory {directory} cannot be used ({error.strerror}); choose another with --state"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreInUse(
                f"another process uses {directory / name}.sqlite; stop it, or give this one another --state"
            ) from None
        yield directory / f"{name}.sqlite"
    finally:
        os.close(lock)
