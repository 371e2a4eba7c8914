"""Worker processes: a client's round is a function of what it is given, so any number gives the same bits."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedbac_edge import signals
from fedbac_edge.learning.settings import Evaluation
from fedbac_edge.parts import Part
from fedbac_edge.semi.hall import Hall
from fedbac_edge.semi.method import Answer, View
from fedbac_edge.semi.study import StudyFailed

SHARDS = 4
"""Pieces of the test set, whatever the number of workers: sums are ordered by them."""
BATCH = 512
T = TypeVar("T")

_hall: Hall | None = None


class Workers:
    """`count` processes on a run's data, as a context; left by an exception, it does not wait for them."""

    def __init__(self, folder: Path, count: int, stop: signals.Stop | None = None) -> None:
        self._stop = stop or signals.Stop()
        context = multiprocessing.get_context("spawn")
        theirs, self._leash = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(count, context, initializer=_begin, initargs=(str(folder), theirs))

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._leash.close()
        self._pool.shutdown(cancel_futures=True)
        self._leash.close()

    def learn(self, number: int, parts: Mapping[str, Part], round: int, exchange: int) -> Future[Answer]:
        """A client's work in one exchange of a round, counted from 0; begun."""
        with signals.started_deaf():  # the pool starts its processes when there is work for them
            return self._pool.submit(_learn, number, dict(parts), round, exchange)

    def completed(self, futures: Iterable[Future[Answer]]) -> Iterator[Answer]:
        """The answers as they come. Raises StudyFailed, Interrupted."""
        return map(_result, self._stop.completed(futures))

    def score(self, parts: Mapping[str, Part], views: Mapping[str, View]) -> dict[str, Evaluation]:
        """Each view on the whole test set; `parts` are those that the views name.

        Raises StudyFailed, Interrupted.
        """
        from fedbac_edge.learning.evaluation import add

        with signals.started_deaf():
            pieces = [self._pool.submit(_score, dict(parts), dict(views), shard) for shard in range(SHARDS)]
        for _ in self._stop.completed(pieces):
            pass
        total = dict.fromkeys(views, Evaluation(0, 0, 0.0))
        for piece in pieces:
            total = {name: add(total[name], found) for name, found in _result(piece).items()}
        return total


def _result(future: Future[T]) -> T:
    """Of a future that is done. Raises StudyFailed when its process has ended."""
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise StudyFailed("a worker process ended; when memory is short, take fewer --workers") from error


# --- in the worker process ------------------------------------------------------------------------


def _begin(folder: str, leash: Connection) -> None:
    global _hall
    signals.leave_to_parent()
    # Words about this machine are the parent's, too.
    logging.getLogger("fedbac_edge.learning").setLevel(logging.ERROR)
    threading.Thread(target=_end_with_parent, args=(leash,), daemon=True).start()
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    _hall = Hall(Path(folder))


def _end_with_parent(leash: Connection) -> None:
    """End in the middle of a client's work when the parent is gone, or has let go of its end of the pipe."""
    wait([leash])
    os._exit(1)


def _learn(number: int, parts: Mapping[str, Part], round: int, exchange: int) -> Answer:
    assert _hall is not None
    return _hall.method.exchanges(round)[exchange].learn(_hall.bench, parts, _hall.client(number), round)


def _score(parts: Mapping[str, Part], views: Mapping[str, View], shard: int) -> dict[str, Evaluation]:
    from fedbac_edge.learning.evaluation import add, count
    from fedbac_edge.learning.forward import logits_of
    from fedbac_edge.learning.normalise import normalise

    assert _hall is not None
    bench, test = _hall.bench, _hall.test(shard, SHARDS)
    networks = {
        name: logits_of(_hall.method.architecture(bench, name), part, backend=bench.backend)
        for name, part in parts.items()
    }
    total = dict.fromkeys(views, Evaluation(0, 0, 0.0))
    for start in range(0, len(test), BATCH):
        x = normalise(test.x[start : start + BATCH], bench.normalisation)
        y = test.y[start : start + BATCH]
        logits = {name: network(x) for name, network in networks.items()}
        for view, terms in views.items():
            summed = sum(np.float32(coefficient) * logits[name] for name, coefficient in terms)
            total[view] = add(total[view], count(np.asarray(summed, np.float32), y))
    return total
