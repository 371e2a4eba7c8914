"""One tier's process without its threads: a state machine, its store, and what it owes the bus.

Whatever happens (a delivery, a timer, a finished job) becomes one transaction: the machine handles the
event, and state, outbox, blobs and ledger are written together. Only then do publications leave. A process
killed at any point starts again from its store and sends the same bytes. `runtime` drives a node over MQTT
in real time, `simulation` over an in-memory broker in virtual time; both only carry out `Effect`s.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import msgspec

from broker import chunks, topics, wire
from broker.bus import Will
from fedbac_edge.protocol import messages
from fedbac_edge.protocol.engine import (
    Action,
    Announce,
    Channel,
    Event,
    Fetched,
    Hello,
    Job,
    Keep,
    Leaf,
    Log,
    Machine,
    Received,
    Resend,
    Send,
    Settle,
    Started,
    StopWork,
    TimerFired,
    Withdraw,
    Work,
)
from fedbac_edge.store import OutboxRow, Store

WINDOW = 8
"""Packets handed to the bus and not yet acknowledged by the broker."""
RESEND_FIRST_S = 15.0
RESEND_MOST_S = 240.0
"""An unanswered message is sent again after 15 s, then twice as long each time."""
FETCH_AGAIN_S = 30.0
"""A part that makes no progress for so long is asked for again."""
AWAY_MOST_S = 60.0
"""Wall time counted for the pause before a restart: small devices have no real-time clock."""
HELLO_S = 60.0
"""The status is published again so often: whoever missed it learns it."""
SPOOL_EXPIRY_S = 3600.0
MESSAGE_LIMIT = 256 * 2**20
"""Largest payload that is put together from chunks, in bytes."""


# --- effects: what the driver carries out, in order -----------------------------------------------


@dataclass(frozen=True)
class Publish:
    """Give this to the bus; report the broker's acknowledgement with `token`."""

    topic: str
    payload: bytes
    retain: bool
    token: int


@dataclass(frozen=True)
class Subscribe:
    """Ask the bus for a topic filter."""

    filter: str


@dataclass(frozen=True)
class Unsubscribe:
    """Stop asking for a topic filter."""

    filter: str


@dataclass(frozen=True)
class StartJob:
    """Let a worker do this job; a running one is cancelled first."""

    job: Job


@dataclass(frozen=True)
class StopJob:
    """Cancel the running job."""


Effect = Publish | Subscribe | Unsubscribe | StartJob | StopJob


@dataclass
class _Sending:
    """Progress of one outbox row on the wire: packets still to hand over, and those not acknowledged."""

    row: OutboxRow
    packets: Iterator[tuple[str, bytes]]
    unacknowledged: int = 0
    handed_over: bool = False


class Node:
    """See the module. Not thread-safe: one thread drives it."""

    def __init__(
        self,
        machine: Machine,
        store: Store,
        federation: str,
        listens: Mapping[str, tuple[type[messages.Message], ...]],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`listens` maps the topic filters of this tier to the message types that may come there."""
        self.machine, self.store, self.federation = machine, store, federation
        self._filters = tuple(listens)
        self._expected = {_shape(filter.replace("+", "x")): types for filter, types in listens.items()}
        self._wall = wall
        self._effects: list[Effect] = []
        self._queue: deque[_Sending] = deque()
        self._in_flight: dict[int, _Sending] = {}
        self._token = 0
        self._known: set[int] = set()
        """Outbox rows that are queued or on their way."""
        self._resend: dict[int, tuple[float, float]] = {}
        """Row -> (when it is sent again, wait before that)."""
        self._fetching: dict[str, int] = {}
        """Wanted hash -> bytes that have come so far."""
        self._progress = 0.0
        """When the last chunk of a wanted part came, or was asked for."""
        self._maximum_packet: int | None = None
        self._connected = False
        self._hello = 0.0
        self._offset = 0.0
        self._monotonic = 0.0
        self._kept: frozenset[str] = frozenset()

    # --- time: monotonic while running, and going on after a restart ---

    def _now(self, monotonic: float) -> float:
        self._monotonic = monotonic
        return self._offset + monotonic

    def start(self, monotonic: float) -> list[Effect]:
        """Bring the machine up. Wall time tells how long the process was away; a jump of it costs little."""
        stored = self.store.read("clock")
        if stored is None:
            self._offset = -monotonic
        else:
            last_now, last_wall = msgspec.msgpack.decode(stored, type=tuple[float, float])
            away = min(max(0.0, self._wall() - last_wall), AWAY_MOST_S)
            self._offset = last_now + away - monotonic
        self._effects.extend(Subscribe(filter) for filter in self._filters)
        with self.store.transaction():
            self._run(Started(), self._now(monotonic))
        for row in self.store.outbox():
            self._enqueue_row(row.id)
        return self._drain()

    def due(self) -> float | None:
        """Monotonic time at which `tick` has something to do, or None."""
        timers = [*self.machine.timers().values(), *(when for when, _ in self._resend.values())]
        if self._fetching:
            timers.append(self._progress + FETCH_AGAIN_S)
        if self._connected:
            timers.append(self._hello)
        return min(timers) - self._offset if timers else None

    def tick(self, monotonic: float) -> list[Effect]:
        """Fire timers that are due and send again what waited too long for its answer."""
        now = self._now(monotonic)
        for name, when in sorted(self.machine.timers().items(), key=lambda timer: timer[1]):
            if when <= now:
                with self.store.transaction():
                    self._run(TimerFired(name), now)
        for row_id in [row_id for row_id, (when, _) in self._resend.items() if when <= now]:
            _, waited = self._resend.pop(row_id)
            self._resend[row_id] = (now + 2 * waited, min(RESEND_MOST_S, 2 * waited))
            self._enqueue_row(row_id)
        if self._fetching and self._progress + FETCH_AGAIN_S <= now:
            self._fetch_again(now)
        if self._connected and self._hello <= now:
            self._say_hello(now)
        return self._drain()

    # --- the bus ---

    def subscriptions(self) -> list[str]:
        """All topic filters that are asked for now."""
        return [
            *self._filters,
            *(topics.blob_filter(self.federation, hash) for hash in sorted(self._fetching)),
        ]

    def connected(self, session_present: bool, maximum_packet: int | None, monotonic: float) -> list[Effect]:
        """The link is up. A broker without memory of us gets our retained topics again."""
        now = self._now(monotonic)
        self._connected, self._maximum_packet = True, maximum_packet
        with self.store.transaction():
            if not session_present:
                self._repair()
        self._say_hello(now)
        return self._drain()

    def _say_hello(self, now: float) -> None:
        self._hello = now + HELLO_S
        with self.store.transaction():
            self._run(Hello(), now)

    def disconnected(self) -> None:
        """The link is down; the bus keeps what it was given and sends it when it is up again."""
        self._connected = False

    def delivered(self, topic: str, payload: bytes, monotonic: float) -> list[Effect]:
        """A message arrived; once this returns, its effects are stored and it may be acknowledged."""
        now = self._now(monotonic)
        address = topics.parse(topic)
        if address is None or address.federation != self.federation:
            return []
        with self.store.transaction():
            if address.kind == "blob":
                self._blob_chunk(address.digest or "", payload, now)
            elif payload:
                self._message(topic, address, payload, now)
        return self._drain()

    def published(self, token: int, refused: str = "") -> list[Effect]:
        """The broker acknowledged a packet (or refused it: the ledger says why)."""
        sending = self._in_flight.pop(token, None)
        if sending is not None:
            sending.unacknowledged -= 1
            if refused:
                with self.store.transaction():
                    self.store.log(self._wall(), 0, "publish refused", sending.row.topic, {"why": refused})
            if sending.handed_over and not sending.unacknowledged:
                self._sent(sending.row)
        return self._drain()

    def unsent(self) -> bool:
        """True while something is to be handed over or awaits the broker's acknowledgement."""
        return bool(self._queue or self._in_flight)

    # --- jobs ---

    def finished(self, event: Event, monotonic: float) -> list[Effect]:
        """A job ended: `Trained`, `Evaluated` or `JobFailed`."""
        with self.store.transaction():
            self._run(event, self._now(monotonic))
        return self._drain()

    def will(self, offline: Send) -> Will:
        """The bus's will from the machine's "offline" status."""
        return Will(self._topic(offline.channel), wire.encode(offline.message))

    # --- one event, one transaction ---

    def _run(self, event: Event, now: float) -> None:
        if isinstance(event, TimerFired):
            timers = dict(self.machine.timers())
            timers.pop(event.name, None)
            self.machine.state.timers = timers
        for action in self.machine.handle(event, now):
            self._carry_out(action)
        self.store.write("machine", msgspec.msgpack.encode(self.machine.state))
        self.store.write("clock", msgspec.msgpack.encode((now, self._wall())))
        kept = frozenset(self.machine.kept())
        if kept != self._kept:
            self.store.collect_blobs(set(kept))
            self._kept = kept
        self._follow_wanted()

    def _carry_out(self, action: Action) -> None:
        match action:
            case Send(channel, message, key, retain):
                topic, payload = self._topic(channel), wire.encode(message)
                if key:
                    self._forget(self.store.settle(key))
                if retain:
                    self.store.own(topic, payload)
                self._enqueue_row(self.store.post(topic, payload, key=key, retain=retain))
            case Settle(key):
                self._forget(self.store.settle(key))
            case Resend(key):
                row_id = self.store.outbox_id(key)
                if row_id is not None:
                    self._enqueue_row(row_id)
            case Keep(hash, data):
                self.store.keep_blob(hash, data)
            case Announce(part, round):
                prefix = topics.blob(self.federation, part.hash, 0)[:-1]
                self.store.own(prefix, None, part.hash, "part")
                self._enqueue_row(self.store.post(prefix, None, blob=part.hash, retain=True, kind="part"))
                manifest = messages.Manifest(part=part, round=round)
                topic, payload = topics.model(self.federation, part.name), wire.encode(manifest)
                self.store.own(topic, payload, kind="manifest")
                self._enqueue_row(self.store.post(topic, payload, retain=True, kind="manifest"))
            case Withdraw(hash):
                prefix = topics.blob(self.federation, hash, 0)[:-1]
                size = len(self.store.blobs[hash]) if hash in self.store.blobs else 0
                self.store.disown(prefix)
                for row_id in self.store.withdraw(prefix):
                    self._forget(row_id)
                for index in range(chunks.chunk_count(size, self._maximum_packet)):
                    self._enqueue_row(self.store.post(f"{prefix}{index}", b"", retain=True))
            case Work(job):
                self._effects.append(StartJob(job))
            case StopWork():
                self._effects.append(StopJob())
            case Log(kind, subject, round, detail):
                self.store.log(self._wall(), round, kind, subject, detail)

    # --- incoming ---

    def _message(self, topic: str, address: topics.Address, payload: bytes, now: float) -> None:
        expected = self._expected.get(_shape(topic), ())
        if not expected:
            return
        channel = Channel(cast(Leaf, address.kind), address.gateway or "", address.device or "")
        try:
            message = wire.decode(payload, *expected, chunks.Chunk)
            size = len(payload)
            if isinstance(message, chunks.Chunk):
                whole = self._join(topic, message, now)
                if whole is None:
                    return
                message, size = wire.decode(whole, *expected), len(whole)
        except (wire.WireError, chunks.ChunkError) as error:
            self.store.log(
                self._wall(), 0, "unreadable", topic, {"why": str(error)[:400], "bytes": len(payload)}
            )
            return
        assert isinstance(message, messages.Message)
        self._run(Received(channel, message, size), now)

    def _join(self, topic: str, chunk: chunks.Chunk, now: float) -> bytes | None:
        """Spool one chunk; the whole payload when it was the last one missing."""
        chunks.check(chunk, MESSAGE_LIMIT)
        self.store.expire_spool(now - SPOOL_EXPIRY_S)
        complete = self.store.spool(
            topic, chunk.transfer, chunk.index, chunk.count, chunk.size, now, chunk.data
        )
        if not complete:
            return None
        return chunks.join(self.store.unspool(topic, chunk.transfer), chunk.size, chunk.transfer)

    def _blob_chunk(self, hash: str, payload: bytes, now: float) -> None:
        """A chunk of a part that may be wanted; checked against the hash in its topic when complete."""
        wanted = self.machine.wanted().get(hash)
        if wanted is None or not payload:
            return
        topic = topics.blob(self.federation, hash, 0)[:-1]
        try:
            chunk = wire.decode(payload, chunks.Chunk)
            if chunk.transfer != hash or chunk.size != wanted.size:
                raise chunks.ChunkError(f"not a chunk of {hash[:12]} with {wanted.size} bytes")
            self._fetching[hash] = self._fetching.get(hash, 0) + len(payload)
            self._progress = now
            data = self._join(topic, chunk, now)
        except (wire.WireError, chunks.ChunkError) as error:
            self.store.log(
                self._wall(), 0, "unreadable", topic, {"why": str(error)[:400], "bytes": len(payload)}
            )
            return
        if data is not None:
            self.store.keep_blob(hash, data)
            self._run(Fetched(hash, self._fetching.pop(hash, len(data))), now)

    def _follow_wanted(self) -> None:
        """Subscribe to what the machine wants now, and no longer to the rest."""
        wanted = self.machine.wanted()
        for hash in sorted(set(wanted) - set(self._fetching)):
            self._fetching[hash], self._progress = 0, self._offset + self._monotonic
            self._effects.append(Subscribe(topics.blob_filter(self.federation, hash)))
        for hash in sorted(set(self._fetching) - set(wanted)):
            del self._fetching[hash]
            self._effects.append(Unsubscribe(topics.blob_filter(self.federation, hash)))

    def _fetch_again(self, now: float) -> None:
        """Retained chunks come again on a fresh subscription."""
        self._progress = now
        for hash in sorted(self._fetching):
            filter = topics.blob_filter(self.federation, hash)
            self._effects += [Unsubscribe(filter), Subscribe(filter)]

    # --- outgoing ---

    def _repair(self) -> None:
        """The broker has no memory of us: our retained topics, and what awaits an answer, go out again."""
        for topic, payload, blob, kind in self.store.owned():
            waiting = any(row.topic == topic and row.payload == payload for row in self.store.outbox())
            if not waiting:
                self._enqueue_row(self.store.post(topic, payload, blob=blob, retain=True, kind=kind))
        for row in self.store.outbox():
            self._enqueue_row(row.id)

    def _topic(self, channel: Channel) -> str:
        leaf: topics.Leaf = channel.leaf
        if channel.device:
            return topics.device(self.federation, channel.gateway, channel.device, leaf)
        if channel.gateway:
            return topics.edge(self.federation, channel.gateway, leaf)
        return (
            topics.spec(self.federation) if channel.leaf == "spec" else topics.cloud_status(self.federation)
        )

    def _enqueue_row(self, row_id: int) -> None:
        if row_id not in self._known:
            row = self.store.outbox_row(row_id)
            if row is not None:
                self._known.add(row_id)
                self._queue.append(_Sending(row, self._packets(row)))

    def _forget(self, row_id: int | None) -> None:
        if row_id is not None:
            self._known.discard(row_id)
            self._resend.pop(row_id, None)
            self._queue = deque(sending for sending in self._queue if sending.row.id != row_id)

    def _packets(self, row: OutboxRow) -> Iterator[tuple[str, bytes]]:
        """(topic, payload) of every packet of a row, cut as late as possible."""
        if row.kind == "part":
            data = self.store.blobs[row.blob]
            for index in range(chunks.chunk_count(len(data), self._maximum_packet)):
                yield f"{row.topic}{index}", chunks.cut_known(data, row.blob, index, self._maximum_packet)
        elif row.payload is None or chunks.fits(len(row.payload), self._maximum_packet):
            yield row.topic, row.payload or b""
        else:
            for index in range(chunks.chunk_count(len(row.payload), self._maximum_packet)):
                yield row.topic, chunks.cut(row.payload, index, self._maximum_packet)

    def _pump(self) -> None:
        """Hand packets to the bus as long as the window has room."""
        while self._connected and self._queue and len(self._in_flight) < WINDOW:
            sending = self._queue[0]
            packet = next(sending.packets, None)
            if packet is None:
                self._queue.popleft()
                sending.handed_over = True
                if not sending.unacknowledged:
                    self._sent(sending.row)
                continue
            if sending.row.kind == "manifest" and self._in_flight:
                sending.packets = iter([packet])  # only when all chunks before it are acknowledged
                return
            self._token += 1
            self._in_flight[self._token] = sending
            sending.unacknowledged += 1
            self._effects.append(Publish(packet[0], packet[1], sending.row.retain, self._token))

    def _sent(self, row: OutboxRow) -> None:
        """Every packet of a row is with the broker: done, or now waiting for its answer."""
        self._known.discard(row.id)
        if not row.key:
            with self.store.transaction():
                self.store.remove(row.id)
                if row.kind == "part":
                    self.store.collect_blobs(set(self.machine.kept()))
        elif row.id not in self._resend and self.store.outbox_id(row.key) == row.id:
            self._resend[row.id] = (self._offset + self._monotonic + RESEND_FIRST_S, RESEND_FIRST_S)

    def _drain(self) -> list[Effect]:
        self._pump()
        effects, self._effects = self._effects, []
        return effects


def _shape(topic: str) -> tuple[str, bool, bool]:
    """Which kind of channel a topic of this federation is: leaf, below a gateway, below a device."""
    address = topics.parse(topic)
    return (
        ("", False, False) if address is None else (address.kind, bool(address.gateway), bool(address.device))
    )
