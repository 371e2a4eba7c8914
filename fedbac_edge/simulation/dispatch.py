"""Tasks that wait, the most urgent first, and a thread for each worker that hands it one after the other."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from fedbac_edge.simulation.engine import PoolError, Reply, Task

Ask = Callable[[Task], Reply]
"""Gives a task to one worker and waits for its reply; raises PoolError when there will be none."""


class Dispatch:
    """Ends with `close`, after the workers have been made to answer or to fail."""

    def __init__(self, workers: Sequence[Ask]) -> None:
        self._waiting: queue.PriorityQueue[tuple[float, int, Task | None]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._threads = [
            threading.Thread(target=self._serve, args=(ask,), name=f"laboratory-{index}", daemon=True)
            for index, ask in enumerate(workers)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, task: Task, due: float) -> Future[Reply]:
        """Queue a task. Of those that wait, the one with the smallest `due` is begun first."""
        self._waiting.put((due, next(self._numbers), task))
        return task.future

    def close(self) -> None:
        """No task is begun any more; those that were have their end."""
        for _ in self._threads:
            self._waiting.put((float("-inf"), next(self._numbers), None))
        for thread in self._threads:
            thread.join()

    def _serve(self, ask: Ask) -> None:
        while True:
            _, _, task = self._waiting.get()
            if task is None:
                return
            if not task.future.set_running_or_notify_cancel():
                continue
            try:
                reply = ask(task)
                if reply.broken:
                    raise PoolError(reply.broken)
            except Exception as error:  # whoever waits must hear of it, whatever it is
                task.future.set_exception(error)
            else:
                task.future.set_result(reply)
