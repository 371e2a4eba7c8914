"""One tier's process without its threads: a state machine, its store, and what it owes the bus.

Whatever happens (a delivery, a timer, a finished job) becomes one transaction: the machine handles the
event, and state, outbox, blobs and ledger are written together. Only then do publications leave. A process
killed at any point starts again from its store and sends the same bytes. `runtime` drives a node over MQTT
in real time, `simulation` over an in-memory broker in virtual time; both only carry out its effects.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from broker import chunks, topics, wire
from broker.bus import Will
from fedbac_edge.node.effects import CLOCK_GRAIN_S, Effect, StartJob, StopJob, Subscribe, Unsubscribe
from fedbac_edge.node.incoming import Incoming
from fedbac_edge.node.ledger_limit import RESTRAINED, Restraint
from fedbac_edge.node.outgoing import Outgoing
from fedbac_edge.node.publishing import Publishing
from fedbac_edge.node.retained import MemoryCheck
from fedbac_edge.node.store import Store
from fedbac_edge.protocol import messages
from fedbac_edge.protocol.events import (
    Action,
    Channel,
    Event,
    Fetched,
    Hello,
    Keep,
    Leaf,
    Leaving,
    Log,
    Machine,
    Overwritten,
    Received,
    Refresh,
    Spoiled,
    Stalled,
    Started,
    StopWork,
    TimerFired,
    Work,
)
from fedbac_edge.vocabulary.terms import PartRef

AWAY_MOST_S = 60.0
"""Wall time counted for the pause before a restart: small devices have no real-time clock."""
HELLO_S = 60.0
"""The status is published again this often, for peers that missed it."""
LEDGER_ROUNDS = 1000
"""Rounds that the ledger goes back, unless another number is wanted."""


class Node:
    """See the module. Not thread-safe: one thread drives it. All times given are monotonic seconds."""

    def __init__(
        self,
        machine: Machine,
        store: Store,
        federation: str,
        listens: Mapping[str, tuple[type[messages.Message], ...]],
        wall: Callable[[], float] = time.time,
        ledger_rounds: int = LEDGER_ROUNDS,
    ) -> None:
        """`listens` maps the topic filters of this tier to the message types that may come there.

        The ledger keeps the last `ledger_rounds` rounds; 0: all.
        """
        self.machine, self.store, self.federation = machine, store, federation
        self._listens = dict(listens)
        self._wall = wall
        self._effects: list[Effect] = []
        self._incoming = Incoming(store, federation)
        self._outgoing = Outgoing(store)
        self._publishing = Publishing(federation, store, self._outgoing)
        self._restraint = Restraint()
        self._memory = MemoryCheck()
        self._connected = False
        self._hello = 0.0
        self._offset = 0.0
        """The machine's clock is monotonic + offset, and goes on after a restart."""
        self._latest = float("-inf")
        self._kept: frozenset[str] = frozenset()
        self._wanted: Mapping[str, PartRef] = {}
        """What the machine wanted after its latest event: a chunk changes neither the state nor the blobs."""
        self._ledger_rounds = ledger_rounds
        self._logged_round = 0

    # --- time ---

    def start(self, monotonic: float) -> list[Effect]:
        """Bring the machine up. Wall time tells how long the process was away; a jump of it costs little."""
        stored = self.store.read("clock")
        if stored is None:
            self._offset = -monotonic
        else:
            last_now, last_wall = msgspec.msgpack.decode(stored, type=tuple[float, float])
            away = min(max(0.0, self._wall() - last_wall), AWAY_MOST_S)
            self._offset = last_now + away - monotonic
            self._latest = last_now
        self._effects.extend(Subscribe(filter) for filter in self._listens)
        with self.store.transaction():
            self._run(Started(), self._now(monotonic))
        for row in self.store.outbox():
            self._outgoing.enqueue(row.id)
        return self._drain()

    def due(self) -> float | None:
        """When `tick` has something to do, or None."""
        times = [*self.machine.timers().values(), *self._outgoing.due(), *self._incoming.due()]
        if self._connected:
            times += [self._hello, *self._memory.due()]
        return min(times) - self._offset if times else None

    def tick(self, monotonic: float) -> list[Effect]:
        """Fire timers that are due, send and ask again for what waited too long."""
        now = self._now(monotonic)
        for name, when in sorted(self.machine.timers().items(), key=lambda timer: timer[1]):
            if when <= now + CLOCK_GRAIN_S and self.machine.timers().get(name) == when:
                with self.store.transaction():
                    self._run(TimerFired(name), now)
        thrice = self._outgoing.resend(now)
        if self._connected and thrice:
            with self.store.transaction():
                for topic in thrice:
                    self._log(0, "unanswered", topic, {})
        effects, stalled, times = self._incoming.ask_again(now)
        self._effects += effects
        if self._connected:
            if stalled:
                with self.store.transaction():
                    self._run(Stalled(stalled, times), now)
            missing, effects = self._memory.overdue(self._listens, now)
            self._effects += effects
            self._repair_memory(missing, "nothing is retained there")
        if self._connected and self._hello <= now + CLOCK_GRAIN_S:
            self._say_hello(now, repeated=True)
        return self._drain()

    def _now(self, monotonic: float) -> float:
        # Never back, not even by a rounding of the sum: durations are differences of two such times.
        self._latest = max(self._latest, self._offset + monotonic)
        return self._latest

    # --- the bus ---

    def subscriptions(self) -> list[str]:
        """All topic filters that are asked for now."""
        return [*self._listens, *self._incoming.filters()]

    def connected(self, session_present: bool, maximum_packet: int | None, monotonic: float) -> list[Effect]:
        """The link is up. A broker without memory of us gets our retained topics again."""
        now = self._now(monotonic)
        self._connected = True
        with self.store.transaction():
            repaired = self._outgoing.connect(session_present, maximum_packet)
        expected = {} if repaired else self._publishing.expected(self.will().topic)
        self._effects += self._memory.begin(expected, self._listens, now)
        self._say_hello(now)
        return self._drain()

    def disconnected(self) -> None:
        """The link is down; the bus keeps what it was given and sends it when it is up again."""
        self._connected = False

    def delivered(self, topic: str, payload: bytes, monotonic: float, retained: bool = False) -> list[Effect]:
        """A message arrived; once this returns, its effects are stored and it may be acknowledged.

        `retained`: the broker had kept it.
        """
        now = self._now(monotonic)
        older, effects = self._memory.heard(topic, payload, self._listens, now)
        self._effects += effects
        if older:
            self._repair_memory([topic], "an older message is retained there")
        address = topics.parse(topic)
        if address is None or address.federation != self.federation:
            return self._drain()
        with self.store.transaction():
            if not payload:
                self._overwritten(topic, address, "", now)
            elif address.kind == "blob":
                self._blob_chunk(address.digest or "", payload, now, retained)
            else:
                self._message(topic, address, payload, now)
        return self._drain()

    def published(self, token: int, refused: str = "", code: int = 0) -> list[Effect]:
        """The broker took a packet, or `refused` it: the ledger says why, and what becomes of it.

        `code` is MQTT's reason for a refusal. What was refused is never delivered.
        """
        if refused:
            with self.store.transaction():
                if (outcome := self._outgoing.refused(token, code, self._latest)) is not None:
                    row, then = outcome
                    self._log(0, "publish refused", row.topic, {"why": f"{refused}; {then}"})
            return self._drain()
        answered = self._outgoing.acknowledged(token)
        if answered is not None and answered[1]:
            with self.store.transaction():
                self._outgoing.sent(answered[0], self._latest)
        return self._drain()

    @property
    def packet_limit(self) -> int | None:
        """The largest packet that the broker takes, announced or found out, in bytes; None: not known."""
        return self._outgoing.maximum_packet

    def unsent(self) -> bool:
        """True while something is to be handed over or awaits the broker's acknowledgement."""
        return self._outgoing.pending()

    def will(self) -> Will:
        """What the broker says for us when we vanish: the machine's status "offline"."""
        offline = self.machine.status("offline")
        return Will(self._publishing.topic(offline.channel), wire.encode(offline.message))

    def _say_hello(self, now: float, repeated: bool = False) -> None:
        self._hello = now + HELLO_S
        with self.store.transaction():
            self._run(Hello(repeated), now)

    def leaving(self, monotonic: float) -> list[Effect]:
        """The process ends in good order; what it has to say is to be sent before the will."""
        with self.store.transaction():
            self._run(Leaving(), self._now(monotonic))
        return self._drain()

    # --- jobs ---

    def finished(self, event: Event, monotonic: float) -> list[Effect]:
        """A job ended: `Trained`, `Evaluated` or `JobFailed`."""
        with self.store.transaction():
            self._run(event, self._now(monotonic))
        return self._drain()

    # --- one event, inside one transaction ---

    def _run(self, event: Event, now: float) -> None:
        for action in self.machine.handle(event, now):
            self._carry_out(action)
        self.store.write("machine", msgspec.msgpack.encode(self.machine.state))
        self.store.write("clock", msgspec.msgpack.encode((now, self._wall())))
        kept = frozenset(self.machine.kept())
        if kept != self._kept:
            self.store.collect_blobs(set(kept))
            self._kept = kept
        self._wanted = self.machine.wanted()
        self._effects += self._incoming.follow(self._wanted, now)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Keep(hash, data):
                self.store.keep_blob(hash, data)
            case Refresh(channel):
                topic = self._publishing.topic(channel)
                self._effects += [Unsubscribe(topic), Subscribe(topic)]
            case Work(job):
                self._effects.append(StartJob(job))
            case StopWork():
                self._effects.append(StopJob())
            case Log(kind, subject, round, detail):
                self._log(round, kind, subject, detail)
            case _:
                self._publishing.carry_out(action)

    # --- incoming ---

    def _message(self, topic: str, address: topics.Address, payload: bytes, now: float) -> None:
        expected = next((t for filter, t in self._listens.items() if topics.matches(filter, topic)), None)
        if expected is None:
            return  # an old subscription of this session, from before a move to another gateway
        try:
            message = wire.decode(payload, *expected, chunks.Chunk)
            size = len(payload)
            if isinstance(message, chunks.Chunk):
                whole = self._incoming.join(topic, message, now)
                if whole is None:
                    return
                message, size = wire.decode(whole, *expected), len(whole)
        except (wire.WireError, chunks.ChunkError) as error:
            self._unreadable(topic, error, len(payload))
            self._overwritten(topic, address, str(error)[:400], now)
            return
        assert isinstance(message, messages.Message)
        self._run(Received(_channel(address), message, size), now)

    def _overwritten(self, topic: str, address: topics.Address, why: str, now: float) -> None:
        """Tell the machine what became of a retained description or status that it listens to."""
        if address.kind in ("spec", "status") and any(topics.matches(each, topic) for each in self._listens):
            self._run(Overwritten(_channel(address), why), now)

    def _blob_chunk(self, hash: str, payload: bytes, now: float, retained: bool) -> None:
        """A chunk of a part that may be wanted; checked against the hash in its topic when complete."""
        wanted = self._wanted.get(hash)
        if wanted is None:
            return
        try:
            whole = self._incoming.join_part(wanted, payload, now, retained)
        except (wire.WireError, chunks.ChunkError) as error:
            self._unreadable(topics.blob_prefix(self.federation, hash), error, len(payload))
            self._run(Spoiled(hash, str(error)[:400]), now)
            return
        if whole is not None:
            self.store.keep_blob(hash, whole[0])
            self._run(Fetched(hash, whole[1]), now)

    def _unreadable(self, topic: str, error: Exception, size: int) -> None:
        self._log(0, "unreadable", topic, {"why": str(error)[:400], "bytes": size})

    def _log(self, round: int, kind: str, subject: str, detail: Mapping[str, Any]) -> None:
        omitted = self._restraint.admit(kind, subject, self._latest)
        if omitted is not None:
            more = {"omitted before": omitted} if omitted else {}
            self.store.log(self._wall(), round, kind, subject, {**detail, **more})
            if round > self._logged_round and kind not in RESTRAINED and 0 < self._ledger_rounds < round:
                self._logged_round = round
                self.store.collect_ledger(round - self._ledger_rounds + 1, RESTRAINED)

    # --- what the broker remembers ---

    def _repair_memory(self, wrong: list[str], why: str) -> None:
        """The broker does not hold what it should: all goes out again. What is on its way may differ."""
        spoken = {row.topic for row in self.store.outbox()} if wrong else set()
        wrong = [topic for topic in wrong if topic not in spoken]
        if not wrong:
            return
        self._effects += self._memory.begin({}, self._listens, self._latest)
        with self.store.transaction():
            for topic in wrong:
                self._log(0, "broker forgot", topic, {"why": why})
            self._outgoing.repair()

    def _drain(self) -> list[Effect]:
        if self._connected:
            self._effects.extend(self._outgoing.pump())
        effects, self._effects = self._effects, []
        return effects


def _channel(address: topics.Address) -> Channel:
    return Channel(cast(Leaf, address.kind), address.gateway or "", address.device or "")
