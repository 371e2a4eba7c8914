"""What a machine says becomes publications: topics, rows of the outbox, and retained topics of our own."""

from __future__ import annotations

from typing import Any

from broker import chunks, topics, wire
from fedbac_edge.node.outgoing import Outgoing
from fedbac_edge.node.store import Store
from fedbac_edge.protocol import messages
from fedbac_edge.protocol.events import (
    Action,
    Announce,
    Channel,
    Offer,
    Repeat,
    Resend,
    Send,
    Settle,
    Withdraw,
)


class Publishing:
    """The store's outbox and retained topics, as the actions of a machine fill them; inside a transaction."""

    def __init__(self, federation: str, store: Store, outgoing: Outgoing) -> None:
        self._federation, self._store, self._outgoing = federation, store, outgoing

    def carry_out(self, action: Action) -> None:
        """One action, if it publishes anything or takes it back."""
        match action:
            case Send(channel, message, key, retain):
                topic, payload = self.topic(channel), wire.encode(message)
                if key:
                    self._outgoing.forget(self._store.settle(key))
                if retain:
                    self._store.own(topic, payload)
                self._post(topic, payload, key=key, retain=retain)
            case Settle(key):
                self._outgoing.forget(self._store.settle(key))
            case Resend(key):
                if (row_id := self._store.outbox_id(key)) is not None:
                    self._outgoing.enqueue(row_id)
            case Announce(part, round):
                manifest = wire.encode(messages.Manifest(part=part, round=round))
                self._publish_blob(part.hash)
                self._publish_manifest(topics.model(self._federation, part.name), manifest)
            case Offer(hash, sends):
                self._publish_blob(hash)
                for send in sends:
                    self._publish_manifest(self.topic(send.channel), wire.encode(send.message))
            case Repeat(what):
                self._repeat(what)
            case Withdraw(hash):
                self._withdraw(hash)

    def topic(self, channel: Channel) -> str:
        """Where a leaf of the tree lies with the broker."""
        leaf = channel.leaf
        if leaf == "spec":
            return topics.spec(self._federation)
        if leaf == "order":
            return topics.cloud_order(self._federation)
        if channel.device:
            return topics.device(self._federation, channel.gateway, channel.device, leaf)
        if channel.gateway:
            return topics.edge(self._federation, channel.gateway, leaf)
        return topics.cloud_status(self._federation)

    def expected(self, will: str) -> dict[str, bytes]:
        """What the broker must have retained of ours, but for what is on its way.

        The topic of the `will` is left out: Hello repeats what stands there.
        """
        spoken = {will, *(row.topic for row in self._store.outbox())}
        return {
            topic: payload
            for topic, payload, _, _ in self._store.owned()
            if payload and topic not in spoken and chunks.fits(len(payload), self._outgoing.maximum_packet)
        }

    def _post(self, topic: str, payload: bytes | None, **how: Any) -> None:
        self._outgoing.enqueue(self._store.post(topic, payload, **how))

    def _publish_blob(self, hash: str) -> None:
        prefix = topics.blob_prefix(self._federation, hash)
        if not self._store.owns(prefix):  # blobs of equal content travel once
            self._store.own(prefix, None, hash, "part")
            self._post(prefix, None, blob=hash, retain=True, kind="part")

    def _publish_manifest(self, topic: str, manifest: bytes) -> None:
        self._store.own(topic, manifest, kind="manifest")
        self._post(topic, manifest, retain=True, kind="manifest")

    def _repeat(self, what: str | Channel) -> None:
        """Publish a retained topic of ours once more, unless it is on its way."""
        topic = topics.blob_prefix(self._federation, what) if isinstance(what, str) else self.topic(what)
        for owned, payload, blob, kind in self._store.owned():
            if owned == topic and all(row.topic != topic for row in self._store.outbox()):
                self._post(topic, payload, blob=blob, retain=True, kind=kind)

    def _withdraw(self, hash: str) -> None:
        """Clear every retained chunk of a part, and drop what of it has not left yet."""
        prefix = topics.blob_prefix(self._federation, hash)
        size = len(self._store.blobs[hash]) if hash in self._store.blobs else 0
        self._store.disown(prefix)
        for row_id in self._store.withdraw(prefix):
            self._outgoing.forget(row_id)
        for index in range(chunks.chunk_count(size, self._outgoing.maximum_packet)):
            self._post(f"{prefix}{index}", b"", retain=True)
