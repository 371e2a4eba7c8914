"""What a node owes the bus: rows of the outbox, cut into packets, handed over as the window allows.

A row without a key is done once the broker acknowledged all its packets. A row with a key then waits for
its answer, and is sent again after a while, and again, until the machine settles it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from broker import chunks, reasons
from fedbac_edge.node.effects import CLOCK_GRAIN_S, Publish
from fedbac_edge.node.store import OutboxRow, Store

WINDOW = 8
"""Packets handed to the bus and not yet acknowledged by the broker."""
RESEND_FIRST_S = 15.0
RESEND_MOST_S = 240.0
"""An unanswered message is sent again after 15 s, then twice as long each time."""

LATER_FIRST_S = 5.0
"""A packet that the broker refuses for now is sent again after 5 s, then after twice as long each time."""
DENIED_S = 60.0
"""The same where it refuses for another reason: an operator may mend its access list."""
LEAST_PACKET = 2 * chunks.FRAMING

MAXIMUM_PACKET = "maximum packet"
LEARNED_PACKET = "learned packet"


@dataclass(eq=False)
class _Sending:
    """Progress of one row on the wire. `total` packets, cut for a broker that takes `limit` bytes."""

    row: OutboxRow
    limit: int | None = None
    total: int = 0
    handed_over: int = 0
    again: list[int] = field(default_factory=list)
    """Packets that are to be handed over once more."""
    acknowledged: int = 0
    transfer: str = ""
    """Hash of the whole payload, once it was needed."""


@dataclass(frozen=True)
class _Packet:
    """Packet `index` of a row, on its way: `size` is that of its payload in bytes."""

    sending: _Sending
    index: int
    size: int


class Outgoing:
    """The rows on their way. `maximum_packet` is the broker's limit in bytes, None when it named none."""

    def __init__(self, store: Store) -> None:
        self._announced = _number(store, MAXIMUM_PACKET)
        self._learned = _number(store, LEARNED_PACKET)
        """Below the size of a packet that the broker refused, whatever it had announced. Both are kept over
        a restart: a part must be withdrawn in as many chunks as it was published in."""
        self._store = store
        self._queue: deque[_Sending] = deque()
        self._in_flight: dict[int, _Packet] = {}
        self._later: list[tuple[float, _Packet]] = []
        """(when, packet) of what the broker refused for now."""
        self._wait = LATER_FIRST_S
        self._token = 0
        self._known: set[int] = set()
        """Rows that are queued or on their way."""
        self._resend: dict[int, tuple[float, float]] = {}
        """Row -> (when it is sent again, wait before that)."""
        self._repaired = False
        """In this life of the process: the one before may have died right after it met a broker that had
        forgotten us, and this one meets the session that was made then."""

    @property
    def maximum_packet(self) -> int | None:
        """The largest packet that the broker takes, in bytes; None: it did not say, and took all so far."""
        known = [limit for limit in (self._announced, self._learned) if limit is not None]
        return min(known) if known else None

    def enqueue(self, row_id: int) -> None:
        """Send a row, unless it is on its way already."""
        if row_id not in self._known and (row := self._store.outbox_row(row_id)) is not None:
            self._known.add(row_id)
            self._queue.append(_Sending(row))

    def forget(self, row_id: int | None) -> None:
        """A row was settled, replaced or withdrawn."""
        if row_id is not None:
            self._known.discard(row_id)
            self._resend.pop(row_id, None)
            self._queue = deque(sending for sending in self._queue if sending.row.id != row_id)
            self._later = [each for each in self._later if each[1].sending.row.id != row_id]

    def connect(self, session_present: bool, maximum_packet: int | None) -> bool:
        """The link is up. Rows cut for another packet size, or half with a broker that forgot, start over.

        True when everything that is retained goes out again.
        """
        before = self.maximum_packet
        if maximum_packet != self._announced:
            self._announced = maximum_packet
            self._store.write(MAXIMUM_PACKET, str(maximum_packet or "").encode())
        if not session_present or self.maximum_packet != before:
            self._start_over()
        if session_present and self._repaired:
            return False
        self.repair()
        self._repaired = True
        return True

    def _start_over(self) -> None:
        """Forget how far every row has come. Acknowledgements of what is in flight then complete no row."""
        packets = [*self._in_flight.values(), *(packet for _, packet in self._later)]
        begun = {sending.row.id for sending in (*(each.sending for each in packets), *self._queue)}
        for token, packet in self._in_flight.items():
            self._in_flight[token] = _Packet(_Sending(packet.sending.row), 0, packet.size)
        self._queue.clear()
        self._later.clear()
        self._known -= begun
        for row_id in sorted(begun):
            self.enqueue(row_id)

    def repair(self) -> None:
        """The broker has no memory of us: our retained topics, and what awaits an answer, go out again."""
        waiting = {(row.topic, row.payload) for row in self._store.outbox()}
        for topic, payload, blob, kind in self._store.owned():
            if (topic, payload) not in waiting:
                self._store.post(topic, payload, blob=blob, retain=True, kind=kind)
        for row in self._store.outbox():
            self.enqueue(row.id)

    def pump(self) -> Iterator[Publish]:
        """Packets to hand to the bus now, as many as the window has room for."""
        while self._queue and len(self._in_flight) < WINDOW:
            sending = self._queue[0]
            if sending.row.kind == "manifest" and (self._in_flight or self._later):
                return  # it says that a part is there: only when all chunks before it are acknowledged
            if not sending.total:
                sending.limit, sending.total = self.maximum_packet, self._count(sending.row)
            index = sending.again.pop() if sending.again else sending.handed_over
            topic, payload = self._packet(sending, index)
            self._token += 1
            self._in_flight[self._token] = _Packet(sending, index, len(payload))
            sending.handed_over = max(sending.handed_over, index + 1)
            if sending.handed_over == sending.total and not sending.again:
                self._queue.popleft()
            yield Publish(topic, payload, sending.row.retain, self._token)

    def acknowledged(self, token: int) -> tuple[OutboxRow, bool] | None:
        """The broker has a packet: its row, and whether it now has the whole row."""
        packet = self._in_flight.pop(token, None)
        if packet is None:
            return None
        sending, self._wait = packet.sending, LATER_FIRST_S
        sending.acknowledged += 1
        return sending.row, 0 < sending.total == sending.acknowledged

    def refused(self, token: int, code: int, now: float) -> tuple[OutboxRow, str] | None:
        """The broker refused a packet, so it is not delivered: its row, and what becomes of it, in words."""
        packet = self._in_flight.pop(token, None)
        if packet is None:
            return None
        row, sending = packet.sending.row, packet.sending
        if code == reasons.TOO_LARGE and packet.size > LEAST_PACKET:
            limit = self.maximum_packet
            if limit is None or packet.size <= limit:  # else it was cut before the limit was known
                self._learned = max(LEAST_PACKET, packet.size // 2)
                self._store.write(LEARNED_PACKET, str(self._learned).encode())
                self._in_flight[token] = packet
                self._start_over()
                del self._in_flight[token]
            elif sending.total:
                self._start_row_over(sending)
            return row, f"cut into packets of at most {self.maximum_packet} bytes from now on"
        if not sending.total:
            return row, "it is on its way again"
        if code in reasons.TEMPORARY:
            self._later.append((now + self._wait, packet))
            wait, self._wait = self._wait, min(RESEND_MOST_S, 2 * self._wait)
            return row, f"tried again in {wait:.0f} s"
        self._drop(sending)
        if not row.key and row.kind == "message":  # the next word of its kind replaces it
            self._store.remove(row.id)
            return row, "not delivered"
        self._resend[row.id] = (now + DENIED_S, DENIED_S)
        return row, f"tried again in {DENIED_S:.0f} s"

    def _drop(self, sending: _Sending) -> None:
        """Nothing more of this attempt counts."""
        self._known.discard(sending.row.id)
        self._queue = deque(each for each in self._queue if each is not sending)
        self._later = [each for each in self._later if each[1].sending is not sending]
        sending.total = 0

    def _start_row_over(self, sending: _Sending) -> None:
        self._drop(sending)
        self.enqueue(sending.row.id)

    def sent(self, row: OutboxRow, now: float) -> None:
        """Every packet of a row is with the broker: done, or from now on waiting for its answer."""
        self._known.discard(row.id)
        if not row.key:
            self._resend.pop(row.id, None)
            self._store.remove(row.id)  # a part's blob stays: the retained topic needs it
        elif row.id not in self._resend and self._store.outbox_id(row.key) == row.id:
            self._resend[row.id] = (now + RESEND_FIRST_S, RESEND_FIRST_S)

    def due(self) -> list[float]:
        """When rows are to be sent again."""
        return [when for when, _ in (*self._resend.values(), *self._later)]

    def resend(self, now: float) -> list[str]:
        """Send again what has waited too long for its answer; topics of what is sent for the third time."""
        thrice: list[str] = []
        for row_id in [row_id for row_id, (when, _) in self._resend.items() if when <= now + CLOCK_GRAIN_S]:
            waited = min(RESEND_MOST_S, 2 * self._resend[row_id][1])
            self._resend[row_id] = (now + waited, waited)
            self.enqueue(row_id)
            if waited == 4 * RESEND_FIRST_S and (row := self._store.outbox_row(row_id)) is not None:
                thrice.append(row.topic)
        due = [packet for when, packet in self._later if when <= now + CLOCK_GRAIN_S]
        self._later = [(when, packet) for when, packet in self._later if when > now + CLOCK_GRAIN_S]
        for packet in due:
            packet.sending.again.append(packet.index)
            if packet.sending not in self._queue:
                self._queue.appendleft(packet.sending)
        return thrice

    def pending(self) -> bool:
        """True while something is to be handed over or awaits the broker's acknowledgement."""
        return bool(self._queue or self._in_flight or self._later)

    def _count(self, row: OutboxRow) -> int:
        size = self._size(row)
        if row.kind != "part" and chunks.fits(size, self.maximum_packet):
            return 1
        return chunks.chunk_count(size, self.maximum_packet)

    def _size(self, row: OutboxRow) -> int:
        return len(self._store.blobs[row.blob]) if row.kind == "part" else len(row.payload or b"")

    def _packet(self, sending: _Sending, index: int) -> tuple[str, bytes]:
        """Topic and payload of a packet of a row, cut as late as possible."""
        row = sending.row
        if row.kind == "part":
            data = self._store.blobs[row.blob]
            return f"{row.topic}{index}", chunks.cut(data, row.blob, index, sending.limit)
        whole = row.payload or b""
        if sending.total == 1:
            return row.topic, whole
        sending.transfer = sending.transfer or hashlib.sha256(whole).hexdigest()
        return row.topic, chunks.cut(whole, sending.transfer, index, sending.limit)


def _number(store: Store, key: str) -> int | None:
    stored = store.read(key)
    return int(stored) if stored else None
