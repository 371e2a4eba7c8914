"""Training off the network thread and out of the agent's memory: a process of its own, kept warm for a while.

The agent's process never imports torch and never holds the samples. The training process (`trainer`) is
started when there is something to do, keeps data and torch loaded between jobs, and is ended when nothing was
asked of it for `idle_s`. It may die of whatever it likes: the job is reported as failed, and the next job
starts a new one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

import msgspec

from device_agent import loading, pipe
from device_agent.process import TrainerProcess
from fedbac_edge.datasets.samples import DataError
from fedbac_edge.protocol.events import (
    AnyJob,
    Evaluated,
    EvaluateJob,
    Event,
    Job,
    JobFailed,
    Trained,
    TrainJob,
)
from fedbac_edge.settings.federation import Federation

log = logging.getLogger(__name__)

IDLE_S = 120.0
CANCEL_S = 0.8
"""A job that is cancelled and goes on for so long is ended together with its process."""


class WorkerError(RuntimeError):
    """The training process could not be used; the message is a sentence."""


@dataclass(frozen=True)
class DataSource:
    """Where a device's samples are, and which device of this machine trains on them."""

    path: str
    resize: bool = False
    strict: bool = False
    device: str = "auto"


@dataclass
class _Task:
    """A job in the trainer's hands, or on its way there."""

    number: int
    job: Job
    blobs: dict[str, bytes]
    done: Callable[[Event], None]


class TrainingWorker:
    """A `node.runtime.Worker`. One thread of its own starts, feeds and ends the training process."""

    def __init__(
        self,
        source: DataSource,
        federation: Federation,
        idle_s: float = IDLE_S,
        load_s: float = loading.LOAD_S,
    ) -> None:
        """`load_s`: seconds for loading torch, before that counts as hanging."""
        self._order = pipe.Open(
            path=os.fsencode(source.path),
            resize=source.resize,
            strict=source.strict,
            device=source.device,
            federation=federation,
        )
        self._idle_s = idle_s
        self._lock = threading.RLock()  # `done` may start the next job
        # Under the lock:
        self._waiting: _Task | None = None
        self._running: _Task | None = None
        self._number = 0
        self._dropped = 0  # no one waits for jobs up to this number any more
        self._read_again = False
        self._listener: Callable[[pipe.Opened | pipe.NotOpened], None] = lambda found: None
        self._openings: deque[queue.SimpleQueue[pipe.Opened | pipe.NotOpened | str]] = deque()
        self._process: TrainerProcess | None = None
        self._closing = self._ended = False
        self._verdict = ""  # why this machine cannot train, once that is clear
        # Of the thread alone:
        self._loading = loading.Loading(load_s)
        self._opened: pipe.Opened | pipe.NotOpened | None = None  # what this process said of the data
        self._kill_at: float | None = None
        self._rest_at = 0.0
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_out, False)
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)
        self._thread.start()

    # --- any thread ---

    def on_read(self, listener: Callable[[pipe.Opened | pipe.NotOpened], None]) -> None:
        """From now on `listener` is told of every reading, before the answer to any job that follows it.

        A training process that was away reads again, and the data may be others by then.
        """
        with self._lock:
            self._listener = listener

    def open(self, stop: Callable[[], bool] = lambda: False, *, again: bool = False) -> pipe.Opened | None:
        """Read the data and describe them; None when `stop()` became true meanwhile.

        `again`: even if they were read before, as soon as no job runs. Raises DataError when they do not fit,
        WorkerError when the process or our thread died over them.
        """
        answer: queue.SimpleQueue[pipe.Opened | pipe.NotOpened | str] = queue.SimpleQueue()
        with self._lock:
            self._openings.append(answer)
            self._read_again |= again
        self._wake()
        while not stop():
            try:
                opened = answer.get(timeout=0.2)
            except queue.Empty:
                if not self._thread.is_alive() and not stop():  # `stop` can say more
                    raise WorkerError("the thread that looks after the training has died") from None
                continue
            match opened:
                case pipe.NotOpened(where=where, what=what, remedy=remedy):
                    raise DataError(where, what, remedy)
                case pipe.Opened():
                    return opened
                case reason:
                    raise WorkerError(f"reading the data: {reason}")
        return None

    def start(self, job: AnyJob, blobs: Mapping[str, bytes], done: Callable[[Event], None]) -> None:
        """See Worker.start. The blobs are read here, on the caller's thread."""
        assert isinstance(job, Job), "a device in training makes and tries no releases"
        needed = {hash: blobs[hash] for hash in _hashes(job)}
        with self._lock:
            if self._verdict:
                done(JobFailed(job.id, self._verdict, final=True))
                return
            self._number += 1
            self._dropped = self._number - 1
            self._waiting = _Task(self._number, job, needed, done)
        self._wake()

    def cancel(self) -> None:
        """See Worker.cancel; returns at once."""
        with self._lock:
            self._dropped = self._number
            self._waiting = None
        self._wake()

    def close(self) -> None:
        """See Worker.close: the training process is killed and reaped. A second call does nothing."""
        with self._lock:
            self._closing, self._dropped, self._waiting = True, self._number, None
            if self._process is not None:
                self._process.kill()
        self._wake()
        self._thread.join()

    @property
    def pid(self) -> int | None:
        """Of the training process, None while there is none."""
        with self._lock:
            return None if self._process is None else self._process.pid

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):  # full: it will wake anyway
            if not self._ended:
                os.write(self._wake_out, b"\0")

    # --- the worker's thread ---

    def _run(self) -> None:
        try:
            while not self._closing:
                try:
                    self._feed()
                    self._listen()
                except Exception as error:  # whatever it is, no caller may wait for an answer forever
                    log.exception("the training process could not be used")
                    self._lost(f"the training process could not be used ({type(error).__name__}: {error})")
        finally:
            self._end_process()
            with self._lock:
                self._ended = True
                os.close(self._wake_in)
                os.close(self._wake_out)

    def _feed(self) -> None:
        """Start what is to be started, drop what is cancelled, end what is idle or deaf."""
        now = time.monotonic()
        with self._lock:
            task, running = self._waiting, self._running
            if running is None:
                self._running, self._waiting = task, None
            wanted = bool(self._openings) or self._running is not None
            again = self._read_again and running is None
            self._read_again = self._read_again and not again
        try:
            if self._loading.has_hung(now):
                self._lost(f"loading torch did not come to an end within {self._loading.limit_s:g} s")
            elif running is not None:
                if running.number <= self._dropped:
                    self._drop(running, now)
            elif self._process is None and wanted:
                self._begin_process()
            elif again and self._process is not None:
                self._opened = None
                self._process.send(self._order)
            elif self._opened is not None:
                self._answer_openings(self._opened)
            if running is None and task is not None and self._process is not None:
                self._rest_at = now + self._idle_s
                self._process.send(_do(task))
        except OSError as error:
            self._lost(f"the training process could not be used ({error})")
        if self._process is not None and not wanted and now >= self._rest_at:
            self._end_process()

    def _drop(self, running: _Task, now: float) -> None:
        assert self._process is not None
        if self._kill_at is None:
            # What is loaded now serves the next job: a slow machine would never get to the end of it.
            self._kill_at = self._loading.until or now + CANCEL_S
            self._process.send(pipe.Cancel(number=running.number))
        elif now >= self._kill_at:
            self._end_process()
            with self._lock:
                self._running = None
            self._kill_at = None
            self._wake()

    def _listen(self) -> None:
        """Wait for orders, answers, or the next moment at which there is something to do."""
        now = time.monotonic()
        waits: list[Connection | int] = [self._wake_in]
        moments = [when for when in (self._kill_at, self._loading.until) if when is not None]
        moment = min(moments, default=None)
        if self._process is not None:
            waits.append(self._process.connection)
            if moment is None and self._running is None and not self._openings:
                moment = self._rest_at
        ready = wait(waits, None if moment is None else max(0.0, moment - now))
        if self._wake_in in ready:
            os.read(self._wake_in, 4096)
        if self._process is not None and self._process.connection in ready:
            try:
                self._take(pipe.receive_answer(self._process.connection))
            except (EOFError, OSError):
                cause = self._process.cause()
                self._lost(cause, counts=not self._process.was_killed())
            except msgspec.MsgspecError as error:
                self._lost(f"the training process sent what is no answer ({error})")

    def _take(self, answer: pipe.FromTrainer) -> None:
        self._rest_at = time.monotonic() + self._idle_s
        match answer:
            case pipe.Opened() | pipe.NotOpened():
                self._opened = answer
                with self._lock:
                    listener = self._listener
                listener(answer)
                self._answer_openings(answer)
            case pipe.Loading():
                self._loading.begin()
                if self._kill_at is not None:  # what is loaded now serves the next job
                    self._kill_at = self._loading.until
            case pipe.Loaded(problem=problem):
                self._has_loaded(problem)
            case pipe.Done(number=number, trained=trained, evaluated=evaluated):
                event: Trained | Evaluated | None = trained or evaluated
                assert event is not None
                self._finish(number, event)
            case pipe.Failed(number=number, reason=reason):
                self._finish(number, None, reason)
            case pipe.Dropped(number=number):
                self._finish(number, None, "cancelled")

    def _finish(self, number: int, event: Event | None, reason: str = "") -> None:
        """The running job is over; its `done` is called unless it was cancelled."""
        with self._lock:
            task, self._running = self._running, None
            self._kill_at = None
            if task is not None and task.number == number and number > self._dropped:
                task.done(event or JobFailed(task.job.id, self._verdict or reason, final=bool(self._verdict)))
        self._wake()

    def _answer_openings(self, answer: pipe.Opened | pipe.NotOpened | str) -> None:
        with self._lock:
            asked = list(self._openings)
            self._openings.clear()
        for opening in asked:
            opening.put(answer)

    def _has_loaded(self, problem: str) -> None:
        if problem:
            self._loading.failed(problem)
            self._judge()
            return
        self._loading.has_loaded()
        if self._kill_at is not None:  # cancelled meanwhile
            self._kill_at = time.monotonic() + CANCEL_S

    def _judge(self) -> None:
        with self._lock:
            self._verdict = self._loading.verdict

    def _lost(self, reason: str, counts: bool = True) -> None:
        """The process is gone: whatever it had to do has failed. Did torch do it, and does that count?"""
        if counts:
            self._loading.failed(reason)
            self._judge()
        self._end_process()
        self._answer_openings(reason)
        with self._lock:
            task = self._running
        if task is not None:
            self._finish(task.number, None, reason)

    # --- the process ---

    def _begin_process(self) -> None:
        """Start a trainer and let it read the data. Raises OSError."""
        self._loading.begin_process()
        process = TrainerProcess(self._order.federation.training.threads)
        with self._lock:
            self._process = process
            if self._closing:
                process.kill()
        self._rest_at = time.monotonic() + self._idle_s
        process.send(self._order)

    def _end_process(self) -> None:
        """No trainer is left, whatever it was doing."""
        with self._lock:
            ending, self._process, self._opened = self._process, None, None
        self._loading.begin_process()
        if ending is not None:
            ending.end()


def _hashes(job: Job) -> set[str]:
    if isinstance(job, TrainJob):
        return {*job.parts.values(), *job.previous.values()}
    return {hash for hashes in job.candidates.values() for hash in hashes.values()}


def _do(task: _Task) -> pipe.Do:
    if isinstance(task.job, EvaluateJob):
        return pipe.Do(number=task.number, blobs=task.blobs, evaluate=task.job)
    return pipe.Do(number=task.number, blobs=task.blobs, train=task.job)
