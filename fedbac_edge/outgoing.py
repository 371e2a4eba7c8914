"""What a node owes the bus: rows of the outbox, cut into packets, handed over as the window allows.

A row without a key is done once the broker acknowledged all its packets. A row with a key then waits for
its answer, and is sent again after a while, and again, until the machine settles it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from broker import chunks
from fedbac_edge.effects import CLOCK_GRAIN_S, Publish
from fedbac_edge.store import OutboxRow, Store

WINDOW = 8
"""Packets handed to the bus and not yet acknowledged by the broker."""
RESEND_FIRST_S = 15.0
RESEND_MOST_S = 240.0
"""An unanswered message is sent again after 15 s, then twice as long each time."""

MAXIMUM_PACKET = "maximum packet"


@dataclass
class _Sending:
    """Progress of one row on the wire. `total` packets, cut for a broker that takes `limit` bytes."""

    row: OutboxRow
    limit: int | None = None
    total: int = 0
    handed_over: int = 0
    acknowledged: int = 0
    transfer: str = ""
    """Hash of the whole payload, once it was needed."""


class Outgoing:
    """The rows on their way. `maximum_packet` is the broker's limit in bytes, None when it named none."""

    def __init__(self, store: Store) -> None:
        stored = store.read(MAXIMUM_PACKET)
        self.maximum_packet: int | None = int(stored) if stored else None
        """Kept over a restart: a part must be withdrawn in as many chunks as it was published in."""
        self._store = store
        self._queue: deque[_Sending] = deque()
        self._in_flight: dict[int, _Sending] = {}
        self._token = 0
        self._known: set[int] = set()
        """Rows that are queued or on their way."""
        self._resend: dict[int, tuple[float, float]] = {}
        """Row -> (when it is sent again, wait before that)."""
        self._repaired = False
        """In this life of the process: the one before may have died right after it met a broker that had
        forgotten us, and this one meets the session that was made then."""

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

    def connect(self, session_present: bool, maximum_packet: int | None) -> bool:
        """The link is up. Rows cut for another packet size, or half with a broker that forgot, start over.

        True when everything that is retained goes out again.
        """
        stale = not session_present or maximum_packet != self.maximum_packet
        if maximum_packet != self.maximum_packet:
            self.maximum_packet = maximum_packet
            self._store.write(MAXIMUM_PACKET, str(maximum_packet or "").encode())
        if stale:
            self._start_over()
        if session_present and self._repaired:
            return False
        self.repair()
        self._repaired = True
        return True

    def _start_over(self) -> None:
        """Forget how far every row has come. Acknowledgements of what is in flight then complete no row."""
        begun = {sending.row.id for sending in (*self._in_flight.values(), *self._queue)}
        for token, sending in self._in_flight.items():
            self._in_flight[token] = _Sending(sending.row)
        self._queue.clear()
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
            if sending.row.kind == "manifest" and self._in_flight:
                return  # it says that a part is there: only when all chunks before it are acknowledged
            if not sending.total:
                sending.limit, sending.total = self.maximum_packet, self._count(sending.row)
            topic, payload = self._packet(sending)
            self._token += 1
            self._in_flight[self._token] = sending
            sending.handed_over += 1
            if sending.handed_over == sending.total:
                self._queue.popleft()
            yield Publish(topic, payload, sending.row.retain, self._token)

    def acknowledged(self, token: int) -> tuple[OutboxRow, bool] | None:
        """The broker has a packet: its row, and whether it now has the whole row."""
        sending = self._in_flight.pop(token, None)
        if sending is None:
            return None
        sending.acknowledged += 1
        return sending.row, 0 < sending.total == sending.acknowledged

    def sent(self, row: OutboxRow, now: float) -> None:
        """Every packet of a row is with the broker: done, or from now on waiting for its answer."""
        self._known.discard(row.id)
        if not row.key:
            self._store.remove(row.id)  # a part's blob stays: the retained topic needs it
        elif row.id not in self._resend and self._store.outbox_id(row.key) == row.id:
            self._resend[row.id] = (now + RESEND_FIRST_S, RESEND_FIRST_S)

    def due(self) -> list[float]:
        """When rows are to be sent again."""
        return [when for when, _ in self._resend.values()]

    def resend(self, now: float) -> None:
        """Send again what has waited too long for its answer."""
        for row_id in [row_id for row_id, (when, _) in self._resend.items() if when <= now + CLOCK_GRAIN_S]:
            waited = min(RESEND_MOST_S, 2 * self._resend[row_id][1])
            self._resend[row_id] = (now + waited, waited)
            self.enqueue(row_id)

    def pending(self) -> bool:
        """True while something is to be handed over or awaits the broker's acknowledgement."""
        return bool(self._queue or self._in_flight)

    def _count(self, row: OutboxRow) -> int:
        size = self._size(row)
        if row.kind != "part" and chunks.fits(size, self.maximum_packet):
            return 1
        return chunks.chunk_count(size, self.maximum_packet)

    def _size(self, row: OutboxRow) -> int:
        return len(self._store.blobs[row.blob]) if row.kind == "part" else len(row.payload or b"")

    def _packet(self, sending: _Sending) -> tuple[str, bytes]:
        """Topic and payload of the next packet of a row, cut as late as possible."""
        row, index = sending.row, sending.handed_over
        if row.kind == "part":
            data = self._store.blobs[row.blob]
            return f"{row.topic}{index}", chunks.cut(data, row.blob, index, sending.limit)
        whole = row.payload or b""
        if sending.total == 1:
            return row.topic, whole
        sending.transfer = sending.transfer or hashlib.sha256(whole).hexdigest()
        return row.topic, chunks.cut(whole, sending.transfer, index, sending.limit)
