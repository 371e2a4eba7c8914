"""Ending on SIGINT or SIGTERM, the same way for every command and every role.

A handler sets a flag and nothing else. The work asks for the flag at points where it can end in order, so
that no lock, no write and no start of a process is cut in the middle. A loop that waits is woken by a call
that is safe in a handler. If all of that fails, the process ends by itself some seconds later.

    `defer`          from the first line of a process on: a signal is noted until the process can heed it
    `stopping`       around the work of what stays, or has processes of its own
    `interruptible`  around a command of moments without processes: a signal ends it where it is
    `started_deaf`   around the start of a worker process, which then calls `leave_to_parent`
    `waiting`        around what must not be cut, and is over at once

Everything here but `Stop` is for the main thread.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

ENDING = (signal.SIGINT, signal.SIGTERM)
LEAVE_S = 4.0
"""A role that is told to end has ended after so many seconds."""
UNWIND_S = 20.0
"""What reads data or starts processes asks for the flag less often, and has ended after so many."""
POLL_S = 0.2
"""A wait that nothing wakes looks at the flag so often."""

_noted: list[int] = []
"""Signals that came before the process could heed them."""


class Interrupted(Exception):
    """A signal told this process to end, and here it can; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__("stopped")
        self.number = number


class Broken(Exception):
    """A thread of this process has died of a fault, so that the process cannot go on; a sentence."""


class Stop:
    """The wish to end. Call it to ask whether there is one."""

    def __init__(self) -> None:
        # No threading.Event: a handler must not wait for a lock that its own thread may hold.
        self.number = 0
        self.failure = ""
        self._asked = False
        self._wakes: list[Callable[[], None]] = []

    def __call__(self) -> bool:
        """True once this process is to end."""
        return self._asked

    def ask(self, number: int = 0, failure: str = "") -> None:
        """Wish it, from any thread or a handler: because of a signal, or of a failure."""
        self.number, self.failure = self.number or number, self.failure or failure
        self._asked = True
        for wake in tuple(self._wakes):
            wake()

    def check(self) -> None:
        """A point where this process can end: raises Interrupted, or Broken."""
        if self._asked:
            self.raise_failure()
            raise Interrupted(self.number)

    def raise_failure(self) -> None:
        """Raise Broken if the wish came of a failure."""
        if self.failure:
            raise Broken(self.failure)

    @contextlib.contextmanager
    def wakes(self, wake: Callable[[], None]) -> Iterator[None]:
        """Have `wake` called with the wish, in a handler, so it may wait for no lock; now if there is one."""
        self._wakes.append(wake)
        try:
            if self._asked:
                wake()
            yield
        finally:
            self._wakes.remove(wake)

    def result(self, future: Future[T]) -> T:
        """Wait for a future. Raises what it holds, or as `check`."""
        while not future.done():
            self.check()
            concurrent.futures.wait((future,), POLL_S)
        return future.result()

    def completed(self, futures: Iterable[Future[T]]) -> Iterator[Future[T]]:
        """Each future when it is done, whichever is first. Raises as `check`."""
        waiting = set(futures)
        while waiting:
            self.check()
            done, waiting = concurrent.futures.wait(waiting, POLL_S, concurrent.futures.FIRST_COMPLETED)
            yield from done


def defer() -> None:
    """From now on a signal is noted, and heeded by the first `stopping` or `interruptible`."""
    for number in ENDING:
        signal.signal(number, _note)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """The handlers that are there now are there afterwards, whatever a library sets meanwhile."""
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _note(number: int, frame: FrameType | None) -> None:
    _noted.append(number)


@contextlib.contextmanager
def stopping(within: float = LEAVE_S, code: int = 0, also: tuple[signal.Signals, ...] = ()) -> Iterator[Stop]:
    """The wish to end, made by SIGINT, SIGTERM, those in `also`, and the death of a thread.

    `within`: seconds after a signal at which the process ends with `code`, whatever it is waiting for. What
    is stored is whole at any moment, so nothing is lost by it. Raises Broken when a thread has died.
    """
    stop = Stop()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.ask(number)

    numbers = (*ENDING, *also)
    with _last_resort(numbers, within, code), _thread_deaths(stop):
        before = {number: signal.signal(number, handle) for number in numbers}
        if _noted:
            signal.raise_signal(_noted[0])  # so that the last resort hears of it, too
        try:
            yield stop
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    stop.raise_failure()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A signal ends this command where it is, by KeyboardInterrupt, and for certain after LEAVE_S.

    For what takes moments and has neither processes nor a loop that could ask. Does nothing inside of
    `stopping`, and in a process that did not begin with `defer`.
    """
    if signal.getsignal(signal.SIGTERM) is not _note:
        yield
        return
    with _last_resort(ENDING, LEAVE_S, 1):
        for number in ENDING:
            signal.signal(number, _interrupt)
        try:
            if _noted:
                signal.raise_signal(_noted[0])
            yield
        finally:
            defer()


def _interrupt(number: int, frame: FrameType | None) -> None:
    defer()  # once: a second signal does not disturb the ending
    raise KeyboardInterrupt


@contextlib.contextmanager
def _last_resort(numbers: Iterable[int], within: float, code: int) -> Iterator[None]:
    """A thread that ends the process `within` seconds after a signal.

    Python's wake-up descriptor tells it of signals, even while the main thread is stuck in a call.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    over = threading.Event()

    def watch() -> None:
        while number := os.read(reading, 1):
            if number[0] in numbers:
                if not over.wait(within):
                    os._exit(code)
                return

    thread = threading.Thread(target=watch, name="last resort", daemon=True)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread.start()
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.close(writing)
        thread.join()
        os.close(reading)


@contextlib.contextmanager
def _thread_deaths(stop: Stop) -> Iterator[None]:
    """A thread that dies of an exception takes the process with it, which would wait for it for ever."""
    before = threading.excepthook

    def died(what: threading.ExceptHookArgs) -> None:
        before(what)  # the traceback, for a bug report
        name = "unknown" if what.thread is None else what.thread.name
        why = f"{what.exc_type.__name__}: {what.exc_value}"
        stop.ask(
            failure=f"the thread {name!r} died of a fault in this software ({why[:300]}); please report it"
        )

    threading.excepthook = died
    try:
        yield
    finally:
        threading.excepthook = before


# --- worker processes -----------------------------------------------------------------------------


@contextlib.contextmanager
def started_deaf() -> Iterator[None]:
    """Processes of `multiprocessing` that start in here hear no signal until they call `leave_to_parent`."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it would start with the first of them, and unblock the signals again
    with waiting():
        yield


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Signals wait until this is over; what is started in here begins with them blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def leave_to_parent() -> None:
    """In a worker: Ctrl-C reaches the whole group, a service manager tells all; the parent ends us."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
