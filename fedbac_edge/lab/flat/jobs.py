"""The flat laboratory's work for an engine: a client's part of a round, and scoring."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import lru_cache

import msgspec
import numpy as np

from fedbac_edge.lab import engine
from fedbac_edge.lab.engine import Engine, Reply
from fedbac_edge.lab.flat.hall import Hall, bench_of
from fedbac_edge.lab.flat.method import Answer, Bench, Client, Method, View, method_of
from fedbac_edge.lab.flat.study import Study
from fedbac_edge.lab.samples import Place, Sets
from fedbac_edge.learning.outcomes import Evaluation
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import Part, digest

SHARDS = 4
"""Pieces of the test set, whatever the number of workers: sums are ordered by them."""
BATCH = 512


class Learn(msgspec.Struct, frozen=True, kw_only=True):
    """A client's work in one exchange of a round, counted from 0; `parts`: name -> hash of a blob."""

    number: int
    round: int
    exchange: int
    parts: dict[str, str]
    labelled: Place
    unlabelled: Place


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Views on samples of the test set; `parts` are those that the views name."""

    views: dict[str, View]
    parts: dict[str, str]
    place: Place


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One of these."""

    learn: Learn | None = None
    score: Score | None = None


class _Learned(msgspec.Struct, frozen=True, kw_only=True):
    """An Answer with its parts as bytes."""

    parts: dict[str, bytes]
    weights: dict[str, float]
    loss: float
    steps: int


class Workers:
    """An engine at work on one study."""

    def __init__(self, engine: Engine, hall: Hall) -> None:
        self._engine, self._hall = engine, hall

    def learn(self, number: int, parts: Mapping[str, Part], round: int, exchange: int) -> Future[Reply]:
        """A client's work, begun. Of those that wait, the one with most samples goes first."""
        places = self._hall.places[number]
        packed = {name: write_part(part) for name, part in parts.items()}
        learn = Learn(
            number=number,
            round=round,
            exchange=exchange,
            parts={name: digest(data) for name, data in packed.items()},
            labelled=places[0],
            unlabelled=places[1],
        )
        return self._put(Work(learn=learn), packed, -float(sum(map(len, places))))

    def answers(self, futures: Mapping[int, Future[Reply]]) -> Iterator[tuple[int, Answer]]:
        """Client -> answer, as they come. Raises PoolError, Interrupted."""
        number_of = {future: number for number, future in futures.items()}
        for future in self._engine.stop.completed(futures.values()):
            found = msgspec.msgpack.decode(future.result().done, type=_Learned)
            parts = {name: read_part(data) for name, data in found.parts.items()}
            yield number_of[future], Answer(parts, found.weights, found.loss, found.steps)

    def score(self, parts: Mapping[str, Part], views: Mapping[str, View]) -> dict[str, Evaluation]:
        """Each view on the whole test set; `parts` are those that the views name.

        Raises PoolError, Interrupted.
        """
        packed = {name: write_part(part) for name, part in parts.items()}
        hashes = {name: digest(data) for name, data in packed.items()}
        pieces = [
            self._put(Work(score=Score(views=dict(views), parts=hashes, place=place)), packed, 0.0)
            for place in self._pieces()
        ]
        for _ in self._engine.stop.completed(pieces):
            pass
        found = [msgspec.msgpack.decode(piece.result().done, type=dict[str, Evaluation]) for piece in pieces]
        return {view: _sum(each[view] for each in found) for view in views}

    def _pieces(self) -> Iterator[Place]:
        count = len(self._hall.sets.test_y)
        for k in range(SHARDS):
            yield Place("test", count * k // SHARDS, count * (k + 1) // SHARDS)

    def _put(self, work: Work, packed: Mapping[str, bytes], due: float) -> Future[Reply]:
        blobs = {digest(data): data for data in packed.values()}
        return self._engine.put(engine.task(self._hall.run, msgspec.msgpack.encode(work), blobs), due)


def _sum(found: Iterable[Evaluation]) -> Evaluation:
    count, correct, loss = 0, 0, 0.0
    for each in found:
        count, correct, loss = count + each.count, correct + each.correct, loss + each.loss_sum
    return Evaluation(count, correct, loss)


def write_part(part: Part) -> bytes:
    """Bytes that keep the order of the tensors, which sums over them depend on; float32 of any shape."""
    return msgspec.msgpack.encode(
        [
            (name, tensor.shape, np.ascontiguousarray(tensor, np.float32).tobytes())
            for name, tensor in part.items()
        ]
    )


def read_part(data: bytes) -> Part:
    """What `write_part` wrote; the arrays may be changed."""
    tensors = msgspec.msgpack.decode(data, type=list[tuple[str, tuple[int, ...], bytes]])
    return {name: np.frombuffer(raw, np.float32).reshape(shape).copy() for name, shape, raw in tensors}


# --- in the worker --------------------------------------------------------------------------------


def perform(about: bytes, work: bytes, blobs: Mapping[str, bytes], sets: Sets) -> bytes:
    """See `lab.worker.Jobs`."""
    method, bench = _opened(about)
    asked = msgspec.msgpack.decode(work, type=Work)
    if asked.learn is not None:
        return _learn(method, bench, asked.learn, blobs, sets)
    assert asked.score is not None
    return _score(method, bench, asked.score, blobs, sets)


def model(about: bytes) -> Architecture:
    """See `lab.worker.Jobs`."""
    return _opened(about)[1].model


@lru_cache(maxsize=4)
def _opened(about: bytes) -> tuple[Method, Bench]:
    study = msgspec.msgpack.decode(about, type=Study)
    return method_of(study.method, study.options), bench_of(study)


def _learn(method: Method, bench: Bench, asked: Learn, blobs: Mapping[str, bytes], sets: Sets) -> bytes:
    client = Client(asked.number, sets.at(asked.labelled), sets.at(asked.unlabelled))
    parts = {name: read_part(blobs[hash]) for name, hash in asked.parts.items()}
    answer = method.exchanges(asked.round)[asked.exchange].learn(bench, parts, client, asked.round)
    learned = _Learned(
        parts={name: write_part(part) for name, part in answer.parts.items()},
        weights=dict(answer.weights),
        loss=float(answer.loss),
        steps=answer.steps,
    )
    return msgspec.msgpack.encode(learned)


def _score(method: Method, bench: Bench, asked: Score, blobs: Mapping[str, bytes], sets: Sets) -> bytes:
    from fedbac_edge.learning.evaluation import add, count
    from fedbac_edge.learning.forward import logits_of
    from fedbac_edge.learning.normalise import normalise

    test = sets.at(asked.place)
    networks = {
        name: logits_of(method.architecture(bench, name), read_part(blobs[hash]), backend=bench.backend)
        for name, hash in asked.parts.items()
    }
    total = dict.fromkeys(asked.views, Evaluation(0, 0, 0.0))
    for start in range(0, len(test), BATCH):
        x = normalise(test.x[start : start + BATCH], bench.normalisation)
        y = test.y[start : start + BATCH]
        logits = {name: network(x) for name, network in networks.items()}
        for view, terms in asked.views.items():
            summed = sum(np.float32(coefficient) * logits[name] for name, coefficient in terms)
            total[view] = add(total[view], count(np.asarray(summed, np.float32), y))
    return msgspec.msgpack.encode(total)
