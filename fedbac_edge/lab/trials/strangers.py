"""Every decoder that meets a stranger's bytes, with examples of what it takes: the targets of fuzzing.

A decoder reads the bytes or raises one of its refusals, and nothing else. The three nodes take anything on
any topic that they listen to: what is bad costs a line of the ledger.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from broker import chunks, topics, wire
from fedbac_edge.lab.trials import trials
from fedbac_edge.node import assemble
from fedbac_edge.node.node import Node
from fedbac_edge.node.store import Store
from fedbac_edge.parts import encodings
from fedbac_edge.parts.part import Part, PartError, digest, pack, unpack
from fedbac_edge.protocol import messages
from fedbac_edge.protocol.messages import Traffic
from fedbac_edge.signing import manifest
from fedbac_edge.vocabulary.terms import NO_SCORE, PartRef, Score
from fedbac_edge.vocabulary.training import LocalTraining

SCHEMA = {"bias": (3,), "weight": (2, 3)}
BASE: Part = {"bias": np.ones(3, np.float32), "weight": np.ones((2, 3), np.float32)}
STEPPED: Part = {"bias": np.zeros(3, np.float32), "weight": np.full((2, 3), 2.5, np.float32)}
FEDERATION = trials.federation_of((1, 1, 2, "float32"))
ROOT = f"{topics.ROOT}/{FEDERATION.name}"
HASH = "0" * 64
CHUNK_LIMIT = 1_000_000


@dataclass(frozen=True)
class Decoder:
    """`read` returns something, or raises one of `refusals`."""

    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    examples: tuple[bytes, ...]


def decoders() -> dict[str, Decoder]:
    """All of them by name."""
    parts = (pack(BASE), pack(STEPPED))
    table: dict[str, Decoder] = {
        "message": Decoder(
            lambda data: wire.decode(data, *MESSAGES), (wire.WireError,), tuple(map(wire.encode, examples()))
        ),
        "chunk": Decoder(_chunk, (wire.WireError, chunks.ChunkError), tuple(_chunks(b"0123456789" * 30))),
        "part": Decoder(lambda data: unpack(data, SCHEMA), (PartError,), parts),
        "manifest": Decoder(
            lambda data: manifest.read(data, manifest.Manifest), (manifest.Unreadable,), (_manifest(),)
        ),
        "rollback order": Decoder(
            lambda data: manifest.read(data, manifest.RollbackOrder),
            (manifest.Unreadable,),
            (manifest.canonical(manifest.RollbackOrder(federation="f", instance="0" * 8, after=2, to=1)),),
        ),
        "topic": Decoder(
            lambda data: topics.parse(data.decode("utf-8", "replace")),
            (),
            tuple(f"{ROOT}/{rest}".encode() for rest in ("spec", "edge/gw1/device/d11/update", "blob/0/1")),
        ),
    }
    for encoding in encodings.NAMES[1:]:
        encoded, _ = encodings.encode(encoding, STEPPED, BASE, None)
        table[encoding] = Decoder(_decode_with(encoding), (PartError,), (encoded,))
    for tier in ("cloud", "gateway", "device"):
        takes = NodeInput(tier)
        table[tier] = Decoder(takes, (), tuple(takes.examples()))
    return table


MESSAGES: tuple[type[messages.Message], ...] = tuple(
    kind
    for kind in vars(messages).values()
    if isinstance(kind, type) and issubclass(kind, messages.Message) and kind is not messages.Message
)


def examples() -> list[messages.Message]:
    """A message of every type that a federation without releases sends."""
    instance, score = trials.INSTANCE, Score(10, 5, 12.5)
    refs = {"global": PartRef("global", HASH, 100), "cluster": PartRef("cluster-0", "1" * 64, 100)}
    training = LocalTraining(
        epochs=1,
        batch_size=8,
        learning_rate=0.1,
        momentum=0.9,
        weight_decay=0.0,
        clip_norm=1.0,
        l2={"cluster": 1e-3},
    )
    model = {"global": pack(BASE)}
    return [
        messages.Spec(federation=FEDERATION, instance=instance, software="1"),
        messages.Manifest(part=refs["global"], round=1),
        messages.DeviceStatus(state="online", session=1, samples=100, holdout=10),
        messages.GatewayStatus(state="online", session=1, ready=True, devices=1),
        messages.CloudStatus(state="training", session=1, round=1),
        messages.GatewayTask(
            instance=instance,
            round=1,
            cluster=0,
            parts=refs,
            previous={},
            training=training,
            deadline_s=60.0,
        ),
        messages.GatewayEvaluation(instance=instance, round=1, candidates={0: refs}, deadline_s=60.0),
        messages.Taken(kind="train", round=1),
        messages.Taken(kind="train", round=2, instance=instance),
        messages.Missing(hashes=("0" * 64,), release=True),
        messages.Forgotten(),
        messages.GatewayUpdate(
            instance=instance,
            round=1,
            parts=model,
            samples=10,
            data=10,
            holdout=score,
            asked=1,
            answered=1,
            refused=0,
            traffic=Traffic(up=1, down=1),
            seconds=1.0,
            waited=0.0,
        ),
        messages.GatewayScores(
            instance=instance, round=1, scores={0: score}, answered=1, traffic=Traffic(), seconds=1.0
        ),
        messages.TrainTask(
            instance=instance, round=1, parts=refs, previous={}, training=training, deadline_s=60.0
        ),
        messages.EvaluateTask(instance=instance, round=1, candidates={0: refs}, deadline_s=60.0),
        messages.TaskReply(kind="train", round=1, accepted=True),
        messages.DeviceUpdate(
            instance=instance,
            device="d11",
            round=1,
            base={"global": HASH},
            parts=model,
            samples=5,
            data=10,
            loss=1.0,
            holdout=score,
            previous=NO_SCORE,
            received=10,
            seconds=1.0,
        ),
        messages.DeviceScores(
            instance=instance, device="d11", round=1, scores={0: score}, received=1, seconds=1.0
        ),
        messages.Receipt(kind="train", round=1, accepted=False, reason="why"),
    ]


class NodeInput:
    """A tier's node that is fed: the first byte chooses among its topics, the rest is the payload.

    It is made anew after so many inputs, so that each has a few others before it.
    """

    RENEW = 500

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._count = 0
        self._node, self._topics = self._make()

    def _make(self) -> tuple[Node, list[str]]:
        store, spec = Store(None), examples()[0]
        assert isinstance(spec, messages.Spec)
        below = [f"{ROOT}/edge/gw1/device/d11/{leaf}" for leaf in ("status", "reply", "update")]
        match self._tier:
            case "cloud":
                node = assemble.cloud(FEDERATION, trials.INSTANCE, store)
                heard = [f"{ROOT}/edge/gw1/{leaf}" for leaf in ("status", "reply", "update")]
            case "gateway":
                node = assemble.gateway(FEDERATION.name, "gw1", store)
                heard = [f"{ROOT}/spec", f"{ROOT}/edge/gw1/task", f"{ROOT}/edge/gw1/receipt", *below]
            case _:
                node = assemble.device(spec, "gw1", "d11", trials.profile(FEDERATION, "d11"), store)
                heard = [f"{ROOT}/edge/gw1/device/d11/{leaf}" for leaf in ("task", "receipt")]
                heard += [f"{ROOT}/spec", f"{ROOT}/edge/gw1/status"]
        node.start(0.0)
        node.connected(False, None, 0.0)
        if self._tier == "gateway":
            node.delivered(f"{ROOT}/spec", wire.encode(spec), 0.0)
        return node, [*heard, f"{ROOT}/blob/{HASH}/0"]

    def __call__(self, data: bytes) -> object:
        """Deliver it."""
        self._count += 1
        if self._count % self.RENEW == 0:
            self._node.store.close()
            self._node, self._topics = self._make()
        if not data:
            return None
        topic = self._topics[data[0] % len(self._topics)]
        now = self._count % self.RENEW * 0.1
        self._node.delivered(topic, data[1:], now)
        return self._node.tick(now)

    def examples(self) -> Iterator[bytes]:
        """Every message on every topic, and chunks."""
        payloads = [*map(wire.encode, examples()), *_chunks(wire.encode(examples()[2]))]
        for index, payload in itertools.product(range(len(self._topics)), payloads):
            yield bytes([index]) + payload


def _chunk(data: bytes) -> bytes:
    chunk = wire.decode(data, chunks.Chunk)
    chunks.check(chunk, CHUNK_LIMIT)
    return chunks.join([chunk.data], chunk.size, chunk.transfer)


def _chunks(whole: bytes) -> Iterator[bytes]:
    for count in (1, 2):
        step = -(-len(whole) // count)
        for index in range(count):
            yield wire.encode(
                chunks.Chunk(
                    transfer=digest(whole),
                    index=index,
                    count=count,
                    size=len(whole),
                    data=whole[index * step : (index + 1) * step],
                )
            )


def _decode_with(name: encodings.Encoding) -> Callable[[bytes], Any]:
    return lambda data: encodings.decode(name, data, BASE, SCHEMA)


def _manifest() -> bytes:
    return manifest.canonical(
        manifest.Manifest(
            federation="f",
            instance="0" * 8,
            founded=1,
            number=1,
            model=1,
            site="gw1",
            cluster=0,
            round=1,
            hash=HASH,
            size=10,
            parts={"global": HASH},
            input=(1, 28, 28),
            vectors=(manifest.Vector(index=0, logits=(0.0, 1.0)),),
            created_by="1",
        )
    )
