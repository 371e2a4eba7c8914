"""Payloads larger than a packet, cut in chunks that say what they belong to.

Brokers limit packets (128 KB on some); a payload that does not fit travels as chunks, each with the hash,
the size and the count of the whole. Cutting is deterministic: sending again sends the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from broker.wire import encode

PACKET_LIMIT = 120_000
"""Largest packet that is published, framing included, unless the broker wants them smaller."""

FRAMING = 1_000
"""Room for the topic, MQTT's header and the chunk's own fields."""


class Chunk(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="chunk", tag_field="type"
):
    """Piece `index` of `count` of a payload of `size` bytes whose sha256 is `transfer`."""

    transfer: Annotated[str, Meta(pattern="^[0-9a-f]{64}\\Z")]
    index: Annotated[int, Meta(ge=0, le=1_000_000)]
    count: Annotated[int, Meta(ge=1, le=1_000_000)]
    size: Annotated[int, Meta(ge=1, le=2**40)]
    data: Annotated[bytes, Meta(min_length=1, max_length=PACKET_LIMIT)]


class ChunkError(ValueError):
    """Chunks that cannot be one payload."""


def fits(size: int, maximum_packet: int | None) -> bool:
    """True when a payload of `size` bytes goes in one packet."""
    return size + FRAMING <= min(PACKET_LIMIT, maximum_packet or PACKET_LIMIT)


def chunk_count(size: int, maximum_packet: int | None) -> int:
    """In how many chunks a payload of `size` bytes is cut."""
    return max(1, -(-size // _step(maximum_packet)))


def cut(payload: bytes, transfer: str, index: int, maximum_packet: int | None) -> bytes:
    """The wire bytes of chunk `index` of `payload`, whose sha256 is `transfer`."""
    step = _step(maximum_packet)
    return encode(
        Chunk(
            transfer=transfer,
            index=index,
            count=chunk_count(len(payload), maximum_packet),
            size=len(payload),
            data=payload[index * step : (index + 1) * step],
        )
    )


def check(chunk: Chunk, size_limit: int) -> None:
    """Refuse a chunk before it is stored: position, size against `size_limit`. Raises ChunkError."""
    if chunk.index >= chunk.count:
        raise ChunkError(f"chunk {chunk.index} of {chunk.count}")
    if chunk.size > size_limit:
        raise ChunkError(f"a payload of {chunk.size} bytes is over the limit of {size_limit}")
    # All chunks of a payload but the last are equally long, so no transfer can fill more than its own size.
    length, others = len(chunk.data), chunk.count - 1
    last = chunk.index == others
    if (
        length * chunk.count > chunk.size
        if last
        else not length * others < chunk.size <= length * chunk.count
    ):
        raise ChunkError(f"{chunk.count} chunks of {length} bytes cannot make {chunk.size} bytes")


def join(pieces: Iterable[bytes], size: int, transfer: str) -> bytes:
    """Put the pieces together in index order; raises ChunkError when size or hash differ."""
    whole = b"".join(pieces)
    if len(whole) != size:
        raise ChunkError(f"the chunks hold {len(whole)} bytes, not {size}")
    if hashlib.sha256(whole).hexdigest() != transfer:
        raise ChunkError("the chunks do not have the hash that they announce")
    return whole


def _step(maximum_packet: int | None) -> int:
    step = min(PACKET_LIMIT, maximum_packet or PACKET_LIMIT) - FRAMING
    if step < 1_000:
        raise ChunkError(
            f"the broker's packet limit of {maximum_packet} bytes is too small: 2,000 are needed"
        )
    return step
