"""What does a laboratory's jobs: processes of this machine (`pool`), or of a cluster (`ray_engine`).

A job's result depends on the job alone, never on which worker did it or when: a simulation gives the same
bits with any engine and any number of workers, as long as all of them are machines of one kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from fedbac_edge.protocol.engine import Evaluated, EvaluateJob, Event, Job, JobFailed, Trained, TrainJob
from fedbac_edge.signals import Stop
from fedbac_edge.simulation.grounds import NOTHING, Grounds, Place


class PoolError(RuntimeError):
    """A worker ended, met an error that no job should meet, or cannot be had; a sentence."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is asked: one job, on whose samples. Neither: what machine it is."""

    folder: str
    """Where this process has laid the samples out."""
    federation: bytes
    train: TrainJob | None = None
    evaluate: EvaluateJob | None = None
    samples: Place = NOTHING
    holdout: Place = NOTHING


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker answers: one of these."""

    trained: Trained | None = None
    evaluated: Evaluated | None = None
    failed: str = ""
    """The job cannot be done, as a device would say it."""
    broken: str = ""
    """The worker met an error that is a fault of this software."""
    machine: dict[str, str] = {}


@dataclass(frozen=True)
class Task:
    """An order, the parts that it names (hash -> bytes), and where the reply goes."""

    order: Order
    blobs: dict[str, bytes]
    future: Future[Reply] = field(default_factory=Future)


def task(
    job: Job,
    blobs: Mapping[str, bytes],
    grounds: Grounds,
    *,
    samples: Place = NOTHING,
    holdout: Place = NOTHING,
) -> Task:
    """The task of a job; `blobs` has the parts that it names, and others."""
    order = Order(
        folder=str(grounds.folder),
        federation=grounds.federation,
        train=job if isinstance(job, TrainJob) else None,
        evaluate=job if isinstance(job, EvaluateJob) else None,
        samples=samples,
        holdout=holdout,
    )
    return Task(order, {hash: blobs[hash] for hash in sorted(_hashes(job))})


def question(grounds: Grounds) -> Task:
    """The task of saying what machine a worker is."""
    return Task(Order(folder=str(grounds.folder), federation=grounds.federation), {})


class Engine(Protocol):
    """Workers that do jobs; close it, or use it as a context. One may serve several simulations."""

    @property
    def workers(self) -> int:
        """How many."""

    @property
    def stop(self) -> Stop:
        """Whether the simulation is to end; whoever waits for a worker asks it."""

    def put(self, task: Task, due: float = float("inf")) -> Future[Reply]:
        """Queue a task. Of those that wait, the one with the smallest `due` is begun first."""

    def machine(self, grounds: Grounds) -> dict[str, str]:
        """Versions, processor and training path of the workers. Raises PoolError when they differ."""

    def close(self) -> None:
        """End the workers, whatever they do."""


def event_of(future: Future[Reply], job: Job, stop: Stop) -> Event:
    """Wait for a job's result; a job that cannot be done is a JobFailed. Raises PoolError, Interrupted."""
    reply = stop.result(future)
    return reply.trained or reply.evaluated or JobFailed(job.id, reply.failed)


def _hashes(job: Job) -> set[str]:
    if isinstance(job, TrainJob):
        return {*job.parts.values(), *job.previous.values()}
    return {hash for roles in job.candidates.values() for hash in roles.values()}
