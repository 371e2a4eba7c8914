"""The node with a machine that does as it is told: transactions, outbox, chunks, clock."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import chunks, topics, wire
from fedbac_edge.node.effects import Publish, Subscribe, Unsubscribe
from fedbac_edge.node.incoming import FETCH_AGAIN_S, MESSAGE_LIMIT, SPOOL_EXPIRY_S
from fedbac_edge.node.ledger_limit import LINES, PERIOD_S
from fedbac_edge.node.node import AWAY_MOST_S, HELLO_S, Node
from fedbac_edge.node.outgoing import RESEND_FIRST_S, RESEND_MOST_S, WINDOW
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.events import (
    Announce,
    Channel,
    Event,
    Fetched,
    Hello,
    Keep,
    Log,
    Received,
    Resend,
    Send,
    Settle,
    Started,
    TimerFired,
    Withdraw,
)
from fedbac_edge.protocol.messages import DeviceStatus, Receipt, Taken
from fedbac_edge.vocabulary.terms import PartRef

HERE = topics.edge("t", "gw1", "task")
REPLY = topics.edge("t", "gw1", "reply")
MESSAGE = Taken(kind="train", round=1)


class State(msgspec.Struct, kw_only=True):
    seen: int = 0
    timers: dict[str, float] = {}
    wanted: dict[str, PartRef] = {}
    kept: list[str] = []


@dataclass
class Puppet:
    """Answers the next event with the actions that the test has laid out."""

    store: Store
    state: State = field(default_factory=State)
    next: list[Any] = field(default_factory=list)
    events: list[tuple[Event, float]] = field(default_factory=list)

    def handle(self, event: Event, now: float) -> list[Any]:
        if isinstance(event, TimerFired):
            self.state.timers = {k: v for k, v in self.state.timers.items() if k != event.name}
        self.state.seen += 1
        self.events.append((event, now))
        if isinstance(event, Fetched):
            self.state.wanted = {}
        if isinstance(event, (Hello, Started)):
            return []
        actions, self.next = self.next, []
        return actions

    def status(self, state: str) -> Send:
        return Send(Channel("status", "gw1"), DeviceStatus(state=state, session=1), retain=True)

    def timers(self) -> Mapping[str, float]:
        return self.state.timers

    def wanted(self) -> Mapping[str, PartRef]:
        return {h: ref for h, ref in self.state.wanted.items() if h not in self.store.blobs}

    def kept(self) -> Set[str]:
        return set(self.state.kept)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event, _ in self.events if isinstance(event, kind)]


class Station:
    """A node on a bus that the test holds in its hands; `now` is monotonic, since its computer booted."""

    def __init__(self, path: Path | None = None, booted: float = 0.0, wall: float = 1e9) -> None:
        self.path, self.now, self.wall = path, booted, wall
        self.out: list[Publish] = []
        self.asked: list[str] = []
        self._start()

    def _start(self) -> None:
        self.store = Store(self.path)
        self.puppet = Puppet(self.store)
        stored = self.store.read("machine")
        if stored is not None:
            self.puppet.state = msgspec.msgpack.decode(stored, type=State)
        listens = {HERE: (Receipt,), topics.device_filter("t", "gw1", "update"): (Receipt,)}
        self.node = Node(self.puppet, self.store, "t", listens, lambda: self.wall)
        self._take(self.node.start(self.now))

    def _take(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Publish():
                    self.out.append(effect)
                case Subscribe(filter):
                    self.asked.append(filter)
                case Unsubscribe(filter):
                    self.asked.remove(filter)

    def connect(self, present: bool = True, packet: int | None = None) -> None:
        self._take(self.node.connected(present, packet, self.now))

    def crash(self, away: float = 0.0, booted: float | None = None) -> None:
        """kill -9; the machine may have booted anew in between, which starts its monotonic clock again."""
        self.store.close()
        self.wall += away
        self.now = self.now + away if booted is None else booted
        self.out, self.asked = [], []
        self._start()

    def wait(self, seconds: float) -> None:
        """Let time pass, firing what is due on the way."""
        end = self.now + seconds
        while (due := self.node.due()) is not None and due <= end:
            self.now = max(self.now, due)
            self._take(self.node.tick(self.now))
        self.now = end
        self.wall += seconds

    def act(self, *actions: Any) -> None:
        """Have the machine answer an arriving message with these actions."""
        self.puppet.next = list(actions)
        self.deliver(HERE, wire.encode(Receipt(kind="train", round=1, accepted=True)))

    def deliver(self, topic: str, payload: bytes) -> None:
        self._take(self.node.delivered(topic, payload, self.now))

    def acknowledge(self, *packets: Publish) -> None:
        for packet in packets:
            self._take(self.node.published(packet.token))

    def flush(self) -> list[Publish]:
        """Acknowledge everything until nothing more comes; what was published since the last flush."""
        sent: list[Publish] = []
        while self.out:
            packets, self.out = self.out, []
            sent += packets
            self.acknowledge(*packets)
        return sent

    def ledger(self, kind: str) -> list[Any]:
        return self.store.ledger(kind)


@pytest.fixture
def station() -> Station:
    made = Station()
    made.connect()
    made.flush()
    return made


def reply(key: str = "", round: int = 1) -> Send:
    return Send(Channel("reply", "gw1"), Taken(kind="train", round=round), key)


def part(size: int, seed: int = 0) -> tuple[PartRef, bytes]:
    data = hashlib.shake_256(bytes([seed])).digest(size)
    return PartRef("global", hashlib.sha256(data).hexdigest(), size), data


# --- one event, one transaction -------------------------------------------------------------------


def everything(store: Store) -> tuple[Any, ...]:
    return (
        store.read("machine"),
        store.read("clock"),
        store.outbox(),
        store.owned(),
        store.ledger(),
        list(store.blobs),
    )


def test_an_event_that_fails_leaves_nothing_behind(station: Station) -> None:
    before = everything(station.store)
    ref, data = part(10)
    unwritable = Log("x", "", 0, {"no": {1, 2}})  # a set cannot be written as JSON
    with pytest.raises(TypeError):
        station.act(reply("k"), Keep(ref.hash, data), Announce(ref, 1), Log("y"), unwritable)
    assert everything(station.store) == before
    assert station.out == []


def test_what_one_event_asks_for_is_stored_together(station: Station) -> None:
    ref, data = part(10)
    station.puppet.state.kept = [ref.hash]
    station.act(reply("k"), Keep(ref.hash, data), Log("y", "d1", 3, {"why": "so"}))
    (row,) = station.store.outbox()
    assert (row.key, row.topic, row.payload) == ("k", REPLY, wire.encode(MESSAGE))
    assert station.store.blobs[ref.hash] == data
    (line,) = station.ledger("y")
    assert (line.subject, line.round, line.detail) == ("d1", 3, {"why": "so"})
    stored = msgspec.msgpack.decode(station.store.read("machine") or b"", type=State)
    assert stored == station.puppet.state


def test_blobs_go_when_the_machine_no_longer_needs_them(station: Station) -> None:
    (one, first), (two, second) = part(10, 1), part(10, 2)
    station.puppet.state.kept = [one.hash, two.hash]
    station.act(Keep(one.hash, first), Keep(two.hash, second))
    assert set(station.store.blobs) == {one.hash, two.hash}
    station.puppet.state.kept = [two.hash]
    station.act()
    assert set(station.store.blobs) == {two.hash}


# --- outbox ---------------------------------------------------------------------------------------


def test_an_unanswered_message_is_sent_again_ever_more_rarely(station: Station) -> None:
    station.act(reply("k"))
    (first,) = station.flush()
    times: list[float] = []
    start = station.now
    while station.now - start < 1_600:
        station.wait(1.0)
        times += [station.now - start for packet in station.flush() if packet.topic == REPLY]
    assert times == pytest.approx([15, 45, 105, 225, 465, 705, 945, 1185, 1425], abs=1.01)
    assert (RESEND_FIRST_S, RESEND_MOST_S) == (15.0, 240.0)
    assert first.payload == wire.encode(MESSAGE)


def test_what_nobody_answers_is_in_the_ledger_once(station: Station) -> None:
    station.act(reply("k"))
    for _ in range(300):
        station.flush()
        station.wait(1.0)
    assert [line.subject for line in station.ledger("unanswered")] == [REPLY]


def test_settling_stops_it_and_a_new_one_replaces_it(station: Station) -> None:
    station.act(reply("k", 1))
    station.act(reply("k", 2))
    station.act(reply("other", 3))
    assert [packet.payload for packet in station.flush()][-1] == wire.encode(Taken(kind="train", round=3))
    station.wait(20.0)
    again = [wire.decode(p.payload, Taken).round for p in station.flush() if p.topic == REPLY]
    assert again == [2, 3]
    station.act(Settle("k"), Settle("never there"))
    station.wait(1_000.0)
    assert {wire.decode(p.payload, Taken).round for p in station.flush() if p.topic == REPLY} == {3}


def test_resend_sends_now_but_not_what_is_on_its_way(station: Station) -> None:
    station.act(reply("k"))
    station.act(Resend("k"))
    assert len(station.out) == 1, "still on its way"
    station.flush()
    station.act(Resend("k"), Resend("unknown"))
    assert [packet.topic for packet in station.flush()] == [REPLY]


def test_the_outbox_survives_a_crash_and_sends_the_same_bytes(tmp_path: Path) -> None:
    station = Station(tmp_path / "s.sqlite")
    ref, data = part(300_000)
    station.puppet.state.kept = [ref.hash]
    station.act(Keep(ref.hash, data), Announce(ref, 4), reply("k"), reply())
    assert station.out == [], "no link yet"
    station.crash()
    station.connect()
    first = station.flush()
    assert [packet.topic for packet in first].count(REPLY) == 2
    assert len([packet for packet in first if "/blob/" in packet.topic]) == 3
    station.crash()
    station.connect()
    second = station.flush()
    told = [(packet.topic, packet.payload) for packet in second if not packet.retain]
    assert told == [(REPLY, wire.encode(MESSAGE))], "the other one was done"
    # What is retained goes out once in every life: the one before may have met a broker that had lost it.
    assert {p.topic for p in second if p.retain} == {p.topic for p in first if p.retain}


def test_the_window_is_respected(station: Station) -> None:
    station.act(*(reply("", round) for round in range(20)))
    assert len(station.out) == WINDOW
    packets, station.out = station.out, []
    station.acknowledge(packets[0], packets[0])  # an acknowledgement counts once
    assert len(station.out) == 1
    station.acknowledge(*packets[1:])
    station.flush()
    rest = station.store.outbox()
    assert rest == []
    assert not station.node.unsent()


def test_nothing_is_handed_over_while_the_link_is_down(station: Station) -> None:
    station.node.disconnected()
    station.act(reply())
    assert station.out == []
    station.connect()
    assert REPLY in [packet.topic for packet in station.flush()]


def test_a_refused_publish_is_in_the_ledger(station: Station) -> None:
    station.act(reply())
    (packet,) = station.out
    station.node.published(packet.token, "Not authorized")
    (line,) = station.ledger("publish refused")
    assert (line.subject, line.detail["why"]) == (REPLY, "Not authorized; not delivered")
    assert station.store.outbox() == []


def test_a_chunk_over_the_quota_is_sent_again_and_the_manifest_waits_for_it(station: Station) -> None:
    """PUBACK 0x97: that chunk alone, and nobody is told of the part before the broker has all of it."""
    announce(station, 300_000)
    packets, station.out = station.out, []
    station.acknowledge(packets[0], packets[2])
    station._take(station.node.published(packets[1].token, "Quota exceeded", 0x97))
    assert station.out == [], "no manifest of a part that is not there"
    station.wait(4.0)
    assert station.out == []
    station.wait(2.0)
    (again,) = station.out
    assert (again.topic, again.payload) == (packets[1].topic, packets[1].payload)
    assert [packet.topic.split("/")[3] for packet in station.flush()] == ["blob", "model"]
    assert station.store.outbox() == []


def test_a_packet_that_is_too_large_is_cut_smaller_until_it_passes(station: Station) -> None:
    """PUBACK 0x95 for everything over 20,000 bytes, a limit that the broker did not announce."""
    ref = announce(station, 300_000)
    passed: dict[str, bytes] = {}
    while station.out:
        packets, station.out = station.out, []
        for packet in packets:
            if len(packet.payload) > 20_000:
                station._take(station.node.published(packet.token, "Packet too large", 0x95))
            else:
                passed[packet.topic] = packet.payload
                station.acknowledge(packet)
    assert station.store.outbox() == []
    pieces = [wire.decode(payload, chunks.Chunk) for topic, payload in passed.items() if "/blob/" in topic]
    (count,) = {piece.count for piece in pieces}
    pieces.sort(key=lambda piece: piece.index)
    assert len(pieces) == count
    assert chunks.join([piece.data for piece in pieces], ref.size, ref.hash)


def test_a_part_that_may_not_be_published_is_tried_again(station: Station) -> None:
    """Somebody may mend the access list: what is retained is not given up."""
    announce(station, 10)
    (packet,) = station.out
    station.out = []
    station._take(station.node.published(packet.token, "Not authorized", 0x87))
    station.flush()
    station.wait(61.0)
    assert packet.topic in [again.topic for again in station.flush()]


# --- parts on their way out -----------------------------------------------------------------------


def announce(station: Station, size: int, seed: int = 0) -> PartRef:
    ref, data = part(size, seed)
    station.puppet.state.kept = [*station.puppet.state.kept, ref.hash]
    station.act(Keep(ref.hash, data), Announce(ref, 1))
    return ref


def test_the_manifest_leaves_when_every_chunk_is_acknowledged(station: Station) -> None:
    announce(station, 300_000)
    assert [packet.topic.rsplit("/", 1)[1] for packet in station.out] == ["0", "1", "2"]
    assert all(packet.retain for packet in station.out)
    chunks_out, station.out = station.out, []
    station.acknowledge(chunks_out[2], chunks_out[0])
    assert station.out == []
    station.acknowledge(chunks_out[1])
    assert [packet.topic for packet in station.out] == [topics.model("t", "global")]


def test_equal_parts_travel_once(station: Station) -> None:
    ref, data = part(1_000)
    station.puppet.state.kept = [ref.hash]
    other = PartRef("cluster-1", ref.hash, ref.size)
    station.act(Keep(ref.hash, data), Announce(ref, 1), Announce(other, 1))
    sent = [packet.topic for packet in station.flush()]
    assert sent == [
        f"fedbac/v1/t/blob/{ref.hash}/0",
        "fedbac/v1/t/model/global",
        "fedbac/v1/t/model/cluster-1",
    ]


def test_chunks_follow_the_brokers_packet_limit(station: Station) -> None:
    station.connect(packet=5_000)
    station.flush()
    ref = announce(station, 20_000)
    packets = [packet for packet in station.flush() if "/blob/" in packet.topic]
    assert len(packets) == chunks.chunk_count(20_000, 5_000) == 5
    assert all(len(packet.payload) < 5_000 for packet in packets)
    pieces = [wire.decode(packet.payload, chunks.Chunk).data for packet in packets]
    assert chunks.join(pieces, ref.size, ref.hash)
    station.act(Send(Channel("reply", "gw1"), Taken(kind="x" * 400, round=1)))
    assert len(station.flush()) == 1


def test_a_smaller_packet_limit_in_the_middle_starts_the_part_over(station: Station) -> None:
    ref = announce(station, 2_000_000)
    before, station.out = station.out, []
    station.acknowledge(*before[:3])
    station.out = []
    station.node.disconnected()
    station.connect(packet=60_000)
    station.acknowledge(*before[3:])  # the client library brought the rest over, in the old cut
    packets = [packet for packet in station.flush() if "/blob/" in packet.topic]
    pieces = [wire.decode(packet.payload, chunks.Chunk) for packet in packets]
    assert [piece.index for piece in pieces] == list(range(chunks.chunk_count(2_000_000, 60_000)))
    assert chunks.join([piece.data for piece in pieces], ref.size, ref.hash)


def test_withdrawing_clears_every_chunk_even_after_a_restart(tmp_path: Path) -> None:
    station = Station(tmp_path / "s.sqlite")
    station.connect(packet=5_000)
    ref = announce(station, 20_000)
    station.flush()
    station.crash()
    station.act(Withdraw(ref.hash))  # before the broker has said its limit again
    station.puppet.state.kept = []
    station.connect(packet=5_000)
    cleared = [packet for packet in station.flush() if "/blob/" in packet.topic]
    assert [packet.topic for packet in cleared] == [f"fedbac/v1/t/blob/{ref.hash}/{i}" for i in range(5)]
    assert all(packet.payload == b"" and packet.retain for packet in cleared)
    station.act()
    assert list(station.store.blobs) == []
    assert [topic for topic, *_ in station.store.owned() if "blob" in topic] == []


def test_withdrawing_drops_what_has_not_left(station: Station) -> None:
    ref = announce(station, 2_000_000)
    assert len(station.out) == WINDOW
    station.act(Withdraw(ref.hash))
    rest = station.flush()[WINDOW:]
    assert all(packet.payload == b"" for packet in rest if "/blob/" in packet.topic)


def test_a_broker_without_memory_gets_everything_retained_and_unanswered_again(station: Station) -> None:
    ref = announce(station, 300_000)
    station.act(reply("k"), reply("", 2))
    station.flush()
    station.node.disconnected()
    station.connect(present=False)
    sent = [packet.topic for packet in station.flush()]
    blob = [f"fedbac/v1/t/blob/{ref.hash}/{index}" for index in range(3)]
    manifest = topics.model("t", "global")
    assert sorted(set(sent)) == sorted({*blob, manifest, REPLY})
    assert sent.index(manifest) > max(sent.index(topic) for topic in blob)
    assert sent.count(REPLY) == 1, "what needs no answer was done"


def test_a_broker_that_forgets_half_a_part_gets_the_whole_of_it(station: Station) -> None:
    ref = announce(station, 1_500_000)  # 13 chunks: more than the window
    half, station.out = station.out[:5], []
    station.acknowledge(*half)
    station.node.disconnected()
    station.connect(present=False)
    indices = [int(p.topic.rsplit("/", 1)[1]) for p in station.flush() if ref.hash in p.topic]
    assert indices[-13:] == list(range(13))


# --- chunks on their way in -----------------------------------------------------------------------


def receipt_in_chunks(reason: str = "r" * 400) -> tuple[Receipt, list[bytes]]:
    message = Receipt(kind="train", round=1, accepted=False, reason=reason)
    payload = wire.encode(message)
    transfer = hashlib.sha256(payload).hexdigest()
    step = 100
    count = -(-len(payload) // step)
    cut = [
        wire.encode(
            chunks.Chunk(
                transfer=transfer,
                index=i,
                count=count,
                size=len(payload),
                data=payload[i * step : (i + 1) * step],
            )
        )
        for i in range(count)
    ]
    return message, cut


def test_chunks_in_any_order_twice_and_over_a_crash_make_one_message(tmp_path: Path) -> None:
    station = Station(tmp_path / "s.sqlite")
    message, cut = receipt_in_chunks()
    for index in (3, 1, 1, 3):
        station.deliver(HERE, cut[index])
    station.crash()
    for index in (4, 0, 0):
        station.deliver(HERE, cut[index])
    assert station.puppet.of(Received) == []
    station.deliver(HERE, cut[2])
    (received,) = station.puppet.of(Received)
    assert received.message == message
    assert received.size == len(wire.encode(message))
    assert spooled(station) == 0


def spooled(station: Station) -> int:
    count: int = station.store._connection.execute("SELECT COUNT(*) FROM spool").fetchone()[0]
    return count


def test_interleaved_senders_do_not_mix(station: Station) -> None:
    senders = {
        topics.device("t", "gw1", f"d{i}", "update"): receipt_in_chunks(f"{i % 10}" * 400) for i in range(20)
    }
    for index in range(5):
        for topic, (_, cut) in senders.items():
            station.deliver(topic, cut[index])
    received = station.puppet.of(Received)
    assert [event.message for event in received] == [message for message, _ in senders.values()]
    assert [event.channel.device for event in received] == [f"d{i}" for i in range(20)]


def test_the_spool_expires_and_is_bounded(station: Station) -> None:
    _, cut = receipt_in_chunks()
    station.deliver(HERE, cut[0])
    station.wait(SPOOL_EXPIRY_S + 1)
    station.deliver(HERE, cut[1])
    assert spooled(station) == 1
    for number in range(30):
        station.deliver(HERE, receipt_in_chunks(f"{number:03}" * 130)[1][0])
    assert spooled(station) == 4, "the newest transfers of a topic"


def test_chunks_that_lie_are_a_ledger_line(station: Station) -> None:
    _, cut = receipt_in_chunks()
    good = wire.decode(cut[0], chunks.Chunk)
    lies = {
        "over the limit": {"size": MESSAGE_LIMIT + 1, "count": 1_000_000},
        "cannot make": {"size": 100_000},
        "chunk 7 of 5": {"index": 7},
    }
    for why, change in lies.items():
        station.deliver(HERE, wire.encode(msgspec.structs.replace(good, **change)))
        assert why in station.ledger("unreadable")[-1].detail["why"]
    assert spooled(station) == 0
    for index in range(5):
        wrong = msgspec.structs.replace(wire.decode(cut[index], chunks.Chunk), transfer="0" * 64)
        station.deliver(HERE, wire.encode(wrong))
    assert "do not have the hash" in station.ledger("unreadable")[-1].detail["why"]
    assert spooled(station) == 0
    assert station.puppet.of(Received) == []


def test_a_chunk_inside_chunks_is_no_message(station: Station) -> None:
    inner = receipt_in_chunks()[1][0]
    transfer = hashlib.sha256(inner).hexdigest()
    station.deliver(HERE, chunks.cut(inner, transfer, 0, None))
    assert "expected receipt, not 'chunk'" in station.ledger("unreadable")[-1].detail["why"]


# --- parts that the machine wants -----------------------------------------------------------------


def want(station: Station, size: int = 300_000) -> tuple[PartRef, list[bytes]]:
    ref, data = part(size)
    station.puppet.state.wanted = {ref.hash: ref}
    station.act()
    return ref, [chunks.cut(data, ref.hash, index, None) for index in range(chunks.chunk_count(size, None))]


def test_a_wanted_part_is_fetched_and_then_given_up(station: Station) -> None:
    base = list(station.asked)
    ref, cut = want(station)
    filter = topics.blob_filter("t", ref.hash)
    assert station.asked == [*base, filter]
    assert set(station.node.subscriptions()) == set(station.asked)
    station.puppet.state.kept = [ref.hash]
    for index in (2, 0, 0, 1):
        station.deliver(f"{filter[:-1]}{index}", cut[index])
    (fetched,) = station.puppet.of(Fetched)
    assert fetched.hash == ref.hash
    assert fetched.size == sum(len(cut[i]) for i in (2, 0, 0, 1)), "bytes that really came"
    assert hashlib.sha256(station.store.blobs[ref.hash]).hexdigest() == ref.hash
    assert station.asked == base
    station.deliver(f"{filter[:-1]}0", cut[0])
    assert spooled(station) == 0, "what is not wanted is not stored"


def test_a_part_without_progress_is_asked_for_again(station: Station) -> None:
    ref, cut = want(station)
    asked: list[float] = []
    start = station.now
    tick = station.node.tick
    for _ in range(100):
        station.now += 1.0
        effects = tick(station.now)
        asked += [station.now - start for effect in effects if isinstance(effect, Subscribe)]
        if station.now - start == 50:
            station.deliver(topics.blob("t", ref.hash, 0), cut[0])
    assert asked == [FETCH_AGAIN_S, 80.0], "progress puts it off"


def test_a_part_that_is_no_longer_wanted_leaves_nothing(station: Station) -> None:
    ref, cut = want(station)
    station.deliver(topics.blob("t", ref.hash, 0), cut[0])
    assert spooled(station) == 1
    station.puppet.state.wanted = {}
    station.act()
    assert spooled(station) == 0
    assert station.asked == station.node.subscriptions()


def test_wrong_chunks_of_a_wanted_part(station: Station) -> None:
    ref, cut = want(station)
    other, data = part(300_000, seed=9)
    topic = topics.blob("t", ref.hash, 0)
    station.deliver(topic, chunks.cut(data, other.hash, 0, None))
    station.deliver(topic, b"\x00")
    station.deliver(topic, b"")  # withdrawn
    assert len(station.ledger("unreadable")) == 2
    for index in range(3):  # the right hash on the label, other bytes inside
        station.deliver(topics.blob("t", ref.hash, index), chunks.cut(data, ref.hash, index, None))
    assert "do not have the hash" in station.ledger("unreadable")[-1].detail["why"]
    assert station.puppet.of(Fetched) == []
    for index in range(3):
        station.deliver(topics.blob("t", ref.hash, index), cut[index])
    assert len(station.puppet.of(Fetched)) == 1


# --- what is not for us ---------------------------------------------------------------------------


def test_only_what_this_tier_listens_to_arrives(station: Station) -> None:
    good = wire.encode(Receipt(kind="train", round=1, accepted=True))
    elsewhere = [
        topics.edge("other", "gw1", "task"),
        topics.edge("t", "gw2", "task"),
        topics.device("t", "gw2", "d1", "update"),
        topics.device("t", "gw1", "d1", "task"),
        topics.spec("t"),
        topics.model("t", "global"),
        "fedbac/v1/t/edge/gw1/task/more",
        "fedbac/v1/t/edge//task",
        "fedbac/v2/t/edge/gw1/task",
        "",
    ]
    for topic in elsewhere:
        station.deliver(topic, good)
    station.deliver(HERE, b"")
    assert station.puppet.of(Received) == []
    assert station.ledger("unreadable") == []
    station.deliver(topics.device("t", "gw1", "d1", "update"), good)
    (event,) = station.puppet.of(Received)
    assert event.channel == Channel("update", "gw1", "d1")


def test_unreadable_payloads_cost_a_bounded_number_of_lines(station: Station) -> None:
    for number in range(1_000):
        station.deliver(HERE, b"\xff" * number)
        station.deliver(topics.device("t", "gw1", "d1", "update"), wire.encode(MESSAGE))
    here, there = (
        [line.detail for line in station.ledger("unreadable") if line.subject.endswith(leaf)]
        for leaf in ("task", "update")
    )
    assert len(here) == len(there) == LINES
    assert here[0]["bytes"] == 1, "an empty payload is nobody's message"
    assert "expected receipt or chunk, not 'taken'" in there[0]["why"]
    station.wait(PERIOD_S)
    station.deliver(HERE, b"\xff")
    assert station.ledger("unreadable")[-1].detail["omitted before"] == 999 - LINES


def test_a_flood_of_refusals_is_bounded_for_each_subject_alone(station: Station) -> None:
    for _ in range(100):
        station.act(Log("refused", "d1"), Log("accepted", "d1"))
    station.act(Log("refused", "d2"))
    assert [line.subject for line in station.ledger("refused")] == ["d1"] * LINES + ["d2"]
    assert len(station.ledger("accepted")) == 100


# --- time -----------------------------------------------------------------------------------------


def times(station: Station) -> float:
    """What the machine takes for now."""
    station.act()
    return station.puppet.events[-1][1]


def test_the_machines_clock_goes_on_after_a_restart(tmp_path: Path) -> None:
    station = Station(tmp_path / "s.sqlite", booted=500.0)
    assert times(station) == 0.0
    station.now += 100.0
    assert times(station) == 100.0
    station.crash(away=20.0)
    assert times(station) == pytest.approx(120.0)
    station.crash(away=30.0, booted=3.0)  # the whole machine was restarted
    assert times(station) == pytest.approx(150.0)


@pytest.mark.parametrize(("jump", "counted"), [(172_800.0, AWAY_MOST_S), (-172_800.0, 0.0)])
def test_a_jump_of_the_wall_clock_costs_little(tmp_path: Path, jump: float, counted: float) -> None:
    station = Station(tmp_path / "s.sqlite")
    station.now += 100.0
    assert times(station) == 100.0
    station.wall += jump
    assert times(station) == 100.0, "while running it is not looked at"
    station.wall += jump
    station.crash()
    assert times(station) == pytest.approx(100.0 + counted)
    station.crash(away=jump, booted=7.0)
    assert times(station) == pytest.approx(100.0 + 2 * counted)


def test_hello_once_a_minute_while_connected(station: Station) -> None:
    assert len(station.puppet.of(Hello)) == 1
    station.wait(10 * HELLO_S + 1)
    assert len(station.puppet.of(Hello)) == 11
    station.node.disconnected()
    station.wait(10 * HELLO_S)
    assert len(station.puppet.of(Hello)) == 11


def test_timers_fire_once_in_order_and_not_when_they_were_moved(station: Station) -> None:
    start = times(station)
    station.puppet.state.timers = {"b": start + 5, "a": start + 3, "later": start + 1e6}
    station.wait(10.0)
    assert [event.name for event in station.puppet.of(TimerFired)] == ["a", "b"]
    original = station.puppet.handle

    def move(event: Event, now: float) -> list[Any]:
        actions = original(event, now)
        if isinstance(event, TimerFired) and event.name == "first":
            station.puppet.state.timers = {"second": now + 100.0}
        return actions

    station.puppet.handle = move  # type: ignore[method-assign]
    station.puppet.state.timers = {"first": start + 11, "second": start + 11}
    station.wait(2.0)
    assert [event.name for event in station.puppet.of(TimerFired)] == ["a", "b", "first"]
    station.wait(100.0)
    assert station.puppet.of(TimerFired)[-1].name == "second"


@given(booted=st.floats(0, 1e7), delay=st.floats(0, 1e5))
def test_what_is_due_is_done_by_a_tick_at_that_time(booted: float, delay: float) -> None:
    """No rounding between the two clocks may leave a timer due for ever and never fired."""
    station = Station(booted=booted)
    station.puppet.state.timers = {"t": delay}
    due = station.node.due()
    assert due is not None
    station.node.tick(max(due, booted))
    assert len(station.puppet.of(TimerFired)) == 1


def test_the_will_is_the_machines_offline_status(station: Station) -> None:
    will = station.node.will()
    assert will.topic == topics.edge("t", "gw1", "status")
    assert wire.decode(will.payload, DeviceStatus).state == "offline"
