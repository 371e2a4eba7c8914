"""The fleet's jobs as work for an engine: a device's training, and scoring on any samples."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from functools import lru_cache

import msgspec

from fedbac_edge.host.signals import Stop
from fedbac_edge.lab import engine
from fedbac_edge.lab.engine import Reply, Run, Task, WorkFailed
from fedbac_edge.lab.samples import NOTHING, Place, Sets
from fedbac_edge.models.description import Architecture
from fedbac_edge.protocol.events import Evaluated, EvaluateJob, Event, Job, JobFailed, Trained, TrainJob
from fedbac_edge.settings.federation import Federation


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One job, on whose samples."""

    train: TrainJob | None = None
    evaluate: EvaluateJob | None = None
    samples: Place
    holdout: Place


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """Its result: one of these."""

    trained: Trained | None = None
    evaluated: Evaluated | None = None


def task(
    job: Job,
    blobs: Mapping[str, bytes],
    run: Run,
    *,
    samples: Place = NOTHING,
    holdout: Place = NOTHING,
) -> Task:
    """The task of a job; `blobs` has the parts that it names, and others."""
    work = Work(
        train=job if isinstance(job, TrainJob) else None,
        evaluate=job if isinstance(job, EvaluateJob) else None,
        samples=samples,
        holdout=holdout,
    )
    named = {hash: blobs[hash] for hash in sorted(_hashes(job))}
    return engine.task(run, msgspec.msgpack.encode(work), named)


def event_of(future: Future[Reply], job: Job, stop: Stop) -> Event:
    """Wait for a job's result; a job that cannot be done is a JobFailed. Raises PoolError, Interrupted."""
    reply = stop.result(future)
    if reply.failed:
        return JobFailed(job.id, reply.failed)
    done = msgspec.msgpack.decode(reply.done, type=Done)
    event = done.trained or done.evaluated
    assert event is not None
    return event


def _hashes(job: Job) -> set[str]:
    if isinstance(job, TrainJob):
        return {*job.parts.values(), *job.previous.values()}
    return {hash for roles in job.candidates.values() for hash in roles.values()}


# --- in the worker --------------------------------------------------------------------------------


def perform(about: bytes, work: bytes, blobs: Mapping[str, bytes], sets: Sets) -> bytes:
    """See `worker.Jobs`."""
    from fedbac_edge.learning import jobs

    asked = msgspec.msgpack.decode(work, type=Work)
    job = asked.train or asked.evaluate
    assert job is not None
    places = sets.at(asked.samples), sets.at(asked.holdout)
    try:
        event = jobs.perform(job, blobs, _described(about), *places)
    except jobs.JobError as error:
        raise WorkFailed(str(error)) from error
    return msgspec.msgpack.encode(
        Done(trained=event) if isinstance(event, Trained) else Done(evaluated=event)
    )


def model(about: bytes) -> Architecture:
    """See `worker.Jobs`."""
    from fedbac_edge.models.catalog import architecture

    described = _described(about).model
    return architecture(described.architecture, described.input, len(described.classes))


@lru_cache(maxsize=4)
def _described(about: bytes) -> Federation:
    return msgspec.msgpack.decode(about, type=Federation)
