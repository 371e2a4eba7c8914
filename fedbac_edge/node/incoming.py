"""What arrives in pieces: payloads cut in chunks, and the parts that a machine wants.

Chunks are spooled to the store as they come and acknowledged after that, so a hundred interleaved uploads
cost no memory, and a crash costs nothing that had arrived.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker import chunks, topics, wire
from fedbac_edge.node.effects import CLOCK_GRAIN_S, Effect, Subscribe, Unsubscribe
from fedbac_edge.node.store import Store
from fedbac_edge.vocabulary.terms import PartRef

FETCH_AGAIN_S = 30.0
"""A part that makes no progress for so long is asked for again."""
LIVE_AGAIN_S = 2.0
"""The same where only what is sent live gets through; twice as long with every further question."""
SPOOL_EXPIRY_S = 3600.0
EXPIRY_EVERY_S = 60.0
MESSAGE_LIMIT = 256 * 2**20
"""Largest payload that is put together from chunks, in bytes."""


class Incoming:
    """Chunks on their way in."""

    def __init__(self, store: Store, federation: str) -> None:
        self._store, self._federation = store, federation
        self._fetching: dict[str, int] = {}
        """Wanted hash -> bytes that have come so far."""
        self._progress = 0.0
        """When the last chunk of a wanted part came, or was asked for."""
        self._asked = 0
        """How often since then its owner was asked to publish it again."""
        self._live_only = False
        """The latest part came because its owner published it again: the broker, or its node of a cluster,
        gives us nothing that is retained. So the next one is asked for at once."""
        self._expiry = float("-inf")
        """When the spool is looked through next."""

    def join(self, topic: str, chunk: chunks.Chunk, now: float) -> bytes | None:
        """Spool one chunk; the whole payload when it was the last one missing. Raises ChunkError."""
        chunks.check(chunk, MESSAGE_LIMIT)
        if now >= self._expiry:
            self._store.expire_spool(now - SPOOL_EXPIRY_S)
            self._expiry = now + EXPIRY_EVERY_S
        if not self._store.spool(
            topic, chunk.transfer, chunk.index, chunk.count, chunk.size, now, chunk.data
        ):
            return None
        pieces = self._store.unspool(topic, chunk.transfer, chunk.count, chunk.size)
        return chunks.join(pieces, chunk.size, chunk.transfer)

    def join_part(
        self, wanted: PartRef, payload: bytes, now: float, retained: bool = False
    ) -> tuple[bytes, int] | None:
        """As `join` for a chunk of a wanted part: its bytes, and how many came over the link for them.

        `retained`: the broker had kept this chunk. Raises WireError or ChunkError when it is not one of that
        part.
        """
        chunk = wire.decode(payload, chunks.Chunk)
        if chunk.transfer != wanted.hash or chunk.size != wanted.size:
            raise chunks.ChunkError(f"not a chunk of {wanted.hash[:12]} with {wanted.size} bytes")
        self._fetching[wanted.hash] = self._fetching.get(wanted.hash, 0) + len(payload)
        self._live_only = not retained and (self._live_only or self._asked > 0)
        self._progress, self._asked = now, 0
        prefix = topics.blob_prefix(self._federation, wanted.hash)
        data = self.join(prefix, chunk, now)
        if data is not None:
            self._store.drop_spool(prefix)
        return None if data is None else (data, self._fetching[wanted.hash])  # `follow` ends the subscription

    def follow(self, wanted: Mapping[str, PartRef], now: float) -> list[Effect]:
        """Ask for what is wanted now, and no longer for the rest."""
        effects: list[Effect] = []
        for hash in sorted(set(wanted) - set(self._fetching)):
            self._fetching[hash], self._progress, self._asked = 0, now, 0
            effects.append(Subscribe(topics.blob_filter(self._federation, hash)))
        for hash in sorted(set(self._fetching) - set(wanted)):
            del self._fetching[hash]
            self._store.drop_spool(topics.blob_prefix(self._federation, hash))
            effects.append(Unsubscribe(topics.blob_filter(self._federation, hash)))
        return effects

    def due(self) -> list[float]:
        """When parts that make no progress are asked for again."""
        return [self._progress + self._patience()] if self._fetching else []

    def ask_again(self, now: float) -> tuple[list[Effect], tuple[str, ...], int]:
        """Ask the broker again for parts that make no progress: retained chunks come on a fresh subscription.

        Also returns their hashes, for their owner to publish them again, and how often that was asked for.
        """
        if not self._fetching or self._progress + self._patience() > now + CLOCK_GRAIN_S:
            return [], (), 0
        self._progress, self._asked = now, self._asked + 1
        effects: list[Effect] = []
        for filter in self.filters():
            effects += [Unsubscribe(filter), Subscribe(filter)]
        return effects, tuple(sorted(self._fetching)), self._asked

    def _patience(self) -> float:
        if not self._live_only or any(self._fetching.values()):  # half of a part: it is on its way
            return FETCH_AGAIN_S
        return min(FETCH_AGAIN_S, LIVE_AGAIN_S * 2.0**self._asked)

    def filters(self) -> list[str]:
        """Topic filters of what is being fetched."""
        return [topics.blob_filter(self._federation, hash) for hash in sorted(self._fetching)]
