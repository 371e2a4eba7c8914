"""Worker processes on this machine: jobs go out to every core that may be used, results come back as futures.

Each worker is a fresh interpreter that opens the run's samples as memory maps, so all of them share one copy,
and that lives exactly as long as the other end of its pipe.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import Future
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from fedbac_edge.host import signals
from fedbac_edge.host.cgroups import available_cores
from fedbac_edge.lab import engine, samples
from fedbac_edge.lab.dispatch import Dispatch
from fedbac_edge.lab.engine import Order, PoolError, Reply, Run, Task
from fedbac_edge.lab.samples import Sets
from fedbac_edge.lab.worker import answer

SHELF = 64
"""Parts that a worker keeps for jobs to come."""


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """An order with those of its parts that this worker has not had yet, and what it need not keep."""

    order: Order
    blobs: dict[str, bytes]
    forget: tuple[str, ...] = ()


class Pool:
    """`workers` processes: the engine of one machine (see `Engine`)."""

    def __init__(self, workers: int | None = None, stop: signals.Stop | None = None) -> None:
        self.workers = workers or available_cores()
        self.stop = stop or signals.Stop()
        self._processes = [_Process(f"laboratory-{index}", index == 0) for index in range(self.workers)]
        self._dispatch = Dispatch([process.ask for process in self._processes])

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, task: Task, due: float = float("inf")) -> Future[Reply]:
        """See Engine."""
        return self._dispatch.put(task, due)

    def machine(self, run: Run) -> dict[str, str]:
        """See Engine."""
        return self.stop.result(self._dispatch.put(engine.question(run), 0.0)).machine

    def close(self) -> None:
        """See Engine."""
        for process in self._processes:
            process.end()
        self._dispatch.close()
        for process in self._processes:
            process.join()


class _Process:
    """A worker, and what it holds."""

    def __init__(self, name: str, tells: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process: Any = context.Process(target=_work, args=(theirs, tells), name=name, daemon=True)
        with signals.started_deaf():
            self._process.start()
        theirs.close()
        self._shelf = _Shelf()

    def ask(self, task: Task) -> Reply:
        """Send the order and wait for the reply. Raises PoolError when the process has ended."""
        parcel = Parcel(order=task.order, **self._shelf.put(task.blobs))
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(parcel))
            return msgspec.msgpack.decode(self._connection.recv_bytes(), type=Reply)
        except (EOFError, OSError):
            self._process.join(1.0)
            raise PoolError(
                f"a worker process ended (exit code {self._process.exitcode}); when memory is short, "
                "take fewer --workers"
            ) from None

    def end(self) -> None:
        """It holds nothing, and ends in the middle of what it does."""
        self._process.kill()

    def join(self) -> None:
        """Wait for its end."""
        self._process.join()
        self._connection.close()


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


# --- in the worker process ------------------------------------------------------------------------


def _work(connection: Connection, tells: bool) -> None:
    """Answer orders until the other end of the pipe is gone. One worker `tells` of this machine, for all."""
    signals.leave_to_parent()
    if not tells:
        logging.getLogger("fedbac_edge.learning").setLevel(logging.ERROR)
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
    return answer(order, blobs, lambda: _opened(order.folder, order.about))


@lru_cache(maxsize=4)
def _opened(folder: str, about: bytes) -> Sets:
    """The maps; of another run they may be others in the same folder."""
    return samples.opened(Path(folder))
