"""Worker processes: jobs go out to every core that may be used, results come back as futures.

Each worker is a fresh interpreter that opens the run's samples as memory maps, so all of them share one copy,
and that lives exactly as long as the other end of its pipe. A job's result depends on the job alone, never on
which worker did it or when: a simulation gives the same bits with any number of workers.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from fedbac_edge.protocol.engine import Evaluated, EvaluateJob, Event, Job, JobFailed, Trained, TrainJob
from fedbac_edge.simulation.grounds import NOTHING, Grounds, Place

SHELF = 64
"""Parts that a worker keeps for jobs to come."""


class PoolError(RuntimeError):
    """A worker process ended, or met an error that no job should meet."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is asked: one job, on whose samples; the parts that it names come in `Parcel`."""

    folder: str
    federation: bytes
    train: TrainJob | None = None
    evaluate: EvaluateJob | None = None
    samples: Place = NOTHING
    holdout: Place = NOTHING


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """An order with those of its parts that this worker has not had yet, and what it need not keep."""

    order: Order
    blobs: dict[str, bytes]
    forget: tuple[str, ...] = ()


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker answers: one of these."""

    trained: Trained | None = None
    evaluated: Evaluated | None = None
    failed: str = ""
    """The job cannot be done, as a device would say it."""
    broken: str = ""
    """The worker met an error that is a fault of this software."""
    machine: dict[str, str] = {}


def available_cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Pool:
    """`workers` processes; close it, or use it as a context. One pool may serve several simulations."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or available_cores()
        self._orders: queue.PriorityQueue[tuple[float, int, _Task | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._processes: list[Any] = []
        self._threads: list[threading.Thread] = []
        context = multiprocessing.get_context("spawn")
        for index in range(self.workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), name=f"laboratory-{index}", daemon=True)
            process.start()
            theirs.close()
            thread = threading.Thread(
                target=self._serve, args=(process, ours), name=f"laboratory-{index}", daemon=True
            )
            thread.start()
            self._processes.append(process)
            self._threads.append(thread)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self,
        job: Job,
        blobs: Mapping[str, bytes],
        grounds: Grounds,
        samples: Place = NOTHING,
        holdout: Place = NOTHING,
        due: float = float("inf"),
    ) -> Future[Reply]:
        """Queue a job. Of those that wait, the one with the smallest `due` is begun first."""
        order = Order(
            folder=str(grounds.folder),
            federation=grounds.federation,
            train=job if isinstance(job, TrainJob) else None,
            evaluate=job if isinstance(job, EvaluateJob) else None,
            samples=samples,
            holdout=holdout,
        )
        return self._put(order, {hash: blobs[hash] for hash in sorted(_hashes(job))}, due)

    def machine(self, grounds: Grounds) -> dict[str, str]:
        """Versions, processor and training path of the workers."""
        order = Order(folder=str(grounds.folder), federation=grounds.federation)
        return self._put(order, {}, 0.0).result().machine

    def close(self) -> None:
        """End the workers, whatever they do."""
        for process in self._processes:
            process.terminate()
        for _ in self._threads:
            self._orders.put((float("-inf"), next(self._numbers), None))
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            process.join()

    def _put(self, order: Order, blobs: dict[str, bytes], due: float) -> Future[Reply]:
        future: Future[Reply] = Future()
        self._orders.put((due, next(self._numbers), _Task(order, blobs, future)))
        return future

    def _serve(self, process: Any, connection: Connection) -> None:
        """One thread per worker: hand it an order, wait for the reply."""
        shelf = _Shelf()
        with connection:
            while True:
                _, _, task = self._orders.get()
                if task is None:
                    return
                future = task.future
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    parcel = Parcel(order=task.order, **shelf.put(task.blobs))
                    connection.send_bytes(msgspec.msgpack.encode(parcel))
                    reply = msgspec.msgpack.decode(connection.recv_bytes(), type=Reply)
                except (EOFError, OSError):
                    process.join(1.0)
                    future.set_exception(
                        PoolError(
                            f"a worker process ended (exit code {process.exitcode}); when memory is short, "
                            "take fewer --workers"
                        )
                    )
                    continue
                if reply.broken:
                    future.set_exception(PoolError(reply.broken))
                else:
                    future.set_result(reply)


@dataclass(frozen=True)
class _Task:
    order: Order
    blobs: dict[str, bytes]
    future: Future[Reply]


class _Shelf:
    """What a worker holds: the parts of the latest jobs. Those of one round go to each worker once."""

    def __init__(self) -> None:
        self._held: dict[str, None] = {}

    def put(self, blobs: Mapping[str, bytes]) -> dict[str, Any]:
        """The fields of a parcel: blobs to send, hashes to forget. `blobs` are then the newest held."""
        fresh = {hash: data for hash, data in blobs.items() if hash not in self._held}
        for hash in blobs:
            self._held.pop(hash, None)
            self._held[hash] = None
        spare = max(0, len(self._held) - max(SHELF, len(blobs)))
        forget = tuple(itertools.islice(self._held, spare))
        for hash in forget:
            del self._held[hash]
        return {"blobs": fresh, "forget": forget}


def event_of(future: Future[Reply], job: Job) -> Event:
    """Wait for a job's result; a job that cannot be done is a JobFailed. Raises PoolError."""
    reply = future.result()
    return reply.trained or reply.evaluated or JobFailed(job.id, reply.failed)


def _hashes(job: Job) -> set[str]:
    if isinstance(job, TrainJob):
        return {*job.parts.values(), *job.previous.values()}
    return {hash for roles in job.candidates.values() for hash in roles.values()}


# --- in the worker process ------------------------------------------------------------------------


def _work(connection: Connection) -> None:
    """Answer orders until the other end of the pipe is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the parent, which then ends us
    os.environ["OMP_NUM_THREADS"] = "1"
    blobs: dict[str, bytes] = {}
    with contextlib.suppress(EOFError, OSError):
        while True:
            parcel = msgspec.msgpack.decode(connection.recv_bytes(), type=Parcel)
            blobs.update(parcel.blobs)
            for hash in parcel.forget:
                del blobs[hash]
            connection.send_bytes(msgspec.msgpack.encode(_answer(parcel.order, blobs)))


def _answer(order: Order, blobs: Mapping[str, bytes]) -> Reply:
    from fedbac_edge.learning.jobs import JobError, perform
    from fedbac_edge.models.catalog import architecture
    from fedbac_edge.simulation.machine import machine

    grounds = _opened(order.folder, order.federation)
    federation = grounds.description
    job = order.train or order.evaluate
    try:
        if job is None:
            model = federation.model
            return Reply(machine=machine(architecture(model.architecture, model.input, len(model.classes))))
        samples, holdout = grounds.samples(order.samples), grounds.samples(order.holdout)
        event = perform(job, blobs, federation, samples, holdout)
    except JobError as error:
        return Reply(failed=str(error)[:400])
    except Exception as error:
        return Reply(broken=f"{type(error).__name__} in a worker: {error}")
    return Reply(trained=event) if isinstance(event, Trained) else Reply(evaluated=event)


@lru_cache(maxsize=4)
def _opened(folder: str, federation: bytes) -> Grounds:
    return Grounds(Path(folder), federation)
