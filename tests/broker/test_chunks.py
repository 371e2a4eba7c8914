"""Payloads cut in chunks and put together again, and chunks that cannot be what they say."""

from __future__ import annotations

import hashlib
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.chunks import FRAMING, PACKET_LIMIT, Chunk, ChunkError, check, chunk_count, cut, fits, join
from broker.wire import WireError, decode, encode

LIMITS = (None, 2_000, 2_001, 5_000, PACKET_LIMIT, 10_000_000)


def pieces(payload: bytes, limit: int | None) -> list[Chunk]:
    transfer = hashlib.sha256(payload).hexdigest()
    wired = [cut(payload, transfer, index, limit) for index in range(chunk_count(len(payload), limit))]
    assert all(fits(len(packet) - FRAMING, limit) for packet in wired), "a packet with its topic fits"
    return [decode(packet, Chunk) for packet in wired]


@given(size=st.integers(1, 60_000), limit=st.sampled_from(LIMITS), shuffle=st.randoms())
def test_cut_and_join(size: int, limit: int | None, shuffle: random.Random) -> None:
    payload = random.Random(size).randbytes(size)
    found = pieces(payload, limit)
    shuffle.shuffle(found)
    for chunk in found:
        check(chunk, size)
    ordered = [chunk.data for chunk in sorted(found, key=lambda chunk: chunk.index)]
    assert join(ordered, size, found[0].transfer) == payload


@pytest.mark.parametrize("limit", LIMITS)
def test_sizes_around_the_packet(limit: int | None) -> None:
    step = min(PACKET_LIMIT, limit or PACKET_LIMIT) - FRAMING
    for size in (step - 1, step, step + 1, 2 * step, 2 * step + 1):
        found = pieces(b"\x07" * size, limit)
        assert len(found) == -(-size // step)
        for chunk in found:
            check(chunk, size)


def test_cutting_again_gives_the_same_bytes() -> None:
    payload = random.Random(1).randbytes(300_000)
    transfer = hashlib.sha256(payload).hexdigest()
    assert [cut(payload, transfer, i, None) for i in range(3)] == [
        cut(payload, transfer, i, None) for i in range(3)
    ]


def test_a_packet_limit_that_is_too_small_is_named() -> None:
    with pytest.raises(ChunkError, match="packet limit of 1999 bytes is too small: 2,000"):
        chunk_count(100, 1_999)
    assert chunk_count(100, 2_000) == 1


GOOD = Chunk(transfer="a" * 64, index=0, count=3, size=250, data=b"x" * 100)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"index": 3}, "chunk 3 of 3"),
        ({"size": 2_000_000}, "over the limit of 1000000"),
        ({"size": 301}, "cannot make 301"),  # three times 100 is less
        ({"size": 200}, "cannot make 200"),  # two would do
        ({"count": 200, "size": 100}, "cannot make 100"),
        ({"index": 2}, "cannot make 250"),  # the last one is no longer than the rest leaves
        ({"data": b"x" * 1000}, "cannot make 250"),
    ],
)
def test_a_chunk_that_cannot_be(change: dict[str, object], why: str) -> None:
    check(GOOD, 1_000_000)
    with pytest.raises(ChunkError) as refusal:
        check(msgspec.structs.replace(GOOD, **change), 1_000_000)
    assert why in str(refusal.value)


@given(
    count=st.integers(1, 40),
    size=st.integers(1, 5_000),
    lengths=st.lists(st.integers(1, 5_000), min_size=40, max_size=40),
)
def test_no_transfer_takes_more_room_than_twice_its_size(count: int, size: int, lengths: list[int]) -> None:
    """Whatever a sender claims, the accepted chunks of one transfer stay within what was announced."""
    room = 0
    for index in range(count):
        data = b"x" * lengths[index]
        try:
            check(Chunk(transfer="b" * 64, index=index, count=count, size=size, data=data), 5_000)
        except ChunkError:
            continue
        room += len(data)
    assert room <= 2 * size


@pytest.mark.parametrize(
    "change",
    [
        {"transfer": "A" * 64},
        {"transfer": "a" * 63},
        {"transfer": "a" * 64 + "\n"},
        {"index": -1},
        {"count": 0},
        {"count": 1_000_001},
        {"size": 0},
        {"size": 2**41},
        {"data": b""},
        {"data": b"x" * (PACKET_LIMIT + 1)},
    ],
)
def test_fields_out_of_range_are_refused_on_arrival(change: dict[str, object]) -> None:
    with pytest.raises(WireError):
        decode(encode(msgspec.structs.replace(GOOD, **change)), Chunk)


def test_joining_what_does_not_belong_together() -> None:
    payload = b"0123456789"
    transfer = hashlib.sha256(payload).hexdigest()
    assert join([b"01234", b"56789"], 10, transfer) == payload
    with pytest.raises(ChunkError, match="hold 9 bytes, not 10"):
        join([b"01234", b"5678"], 10, transfer)
    with pytest.raises(ChunkError, match="do not have the hash"):
        join([b"56789", b"01234"], 10, transfer)
