"""Tasks that wait, the most urgent first, and a thread for each worker that hands it one after the other."""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from fedbac_edge.lab.engine import PoolError, Reply, Task

Ask = Callable[[Task], Reply]
"""Gives a task to one worker and waits for its reply; raises PoolError when there will be none."""


class Dispatch:
    """Ends with `close`, after the workers have been made to answer or to fail."""

    def __init__(self, workers: Sequence[Ask]) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[tuple[float, int, Task]] = []
        """A heap, under the lock."""
        self._idle: queue.SimpleQueue[Ask] = queue.SimpleQueue()
        for ask in workers:
            self._idle.put(ask)
        self._threads = ThreadPoolExecutor(len(workers), "laboratory")

    def put(self, task: Task, due: float) -> Future[Reply]:
        """Queue a task. Of those that wait, the one with the smallest `due` is begun first."""
        with self._lock:
            heapq.heappush(self._waiting, (due, next(self._numbers), task))
        self._threads.submit(self._serve)
        return task.future

    def close(self) -> None:
        """No task is begun any more; those that were have their end."""
        with self._lock:
            dropped, self._waiting = self._waiting, []
        for _, _, task in dropped:
            task.future.cancel()
        self._threads.shutdown()

    def _serve(self) -> None:
        """Do the most urgent task; a worker is idle, since there are no more threads than workers."""
        with self._lock:
            if not self._waiting:
                return  # closed meanwhile
            _, _, task = heapq.heappop(self._waiting)
        if not task.future.set_running_or_notify_cancel():
            return
        ask = self._idle.get()
        try:
            reply = ask(task)
            if reply.broken:
                raise PoolError(reply.broken)
        except Exception as error:  # the waiting thread must hear of it, whatever it is
            task.future.set_exception(error)
        else:
            task.future.set_result(reply)
        finally:
            self._idle.put(ask)
