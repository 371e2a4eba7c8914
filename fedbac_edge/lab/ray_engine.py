"""Workers on a Ray cluster: the engine for more than one machine, or a Ray of its own on this one.

A worker is a Ray actor. It keeps nothing between two jobs: the samples lie in Ray's object store, put there
once, and so does each part while it is in use, so that nothing depends on a shared file system and a worker
that was lost is begun anew, with its job. Our orders and replies travel as MessagePack; Ray itself carries
them, and the name of the class, by pickle between its own processes: a cluster is trusted ground.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import socket
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from fedbac_edge import __version__
from fedbac_edge.host import vector_level
from fedbac_edge.host.cgroups import available_cores
from fedbac_edge.host.signals import POLL_S, Stop, kept
from fedbac_edge.lab import engine, samples
from fedbac_edge.lab.dispatch import Dispatch
from fedbac_edge.lab.engine import Laboratory, Order, PoolError, Reply, Run, Task
from fedbac_edge.lab.samples import Sets
from fedbac_edge.lab.worker import answer, machine_for

TRIES = 3
"""How often a job is given to a worker that ends at it."""
BEGIN_S = 180.0
"""Seconds within which all workers must have begun."""
CONNECT_S = 10.0
SETS, PARTS = 4, 64
"""Data sets and parts that are kept in the object store for jobs to come."""


class NoRay(RuntimeError):
    """Ray is not installed, or cannot be reached as it was asked for: nothing was begun."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A reply, and what machine it comes from."""

    reply: Reply
    node: str
    kind: dict[str, str]
    """All that results depend on: of one run, every answer has the same."""


class RayEngine:
    """`workers` actors (see `Engine`). `address`: of a cluster; None: RAY_ADDRESS, else a Ray of its own.

    A Ray of its own listens on the loopback address alone and ends with this engine. Raises NoRay, and
    PoolError when the workers do not begin.
    """

    def __init__(
        self, workers: int | None = None, address: str | None = None, stop: Stop | None = None
    ) -> None:
        self.stop = stop or Stop()
        self._ray, self._ending = _connected(workers, address or os.environ.get("RAY_ADDRESS"))
        self._kinds = OneKind()
        try:
            self.workers = workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            self._sets = _Stored(self._ray, SETS)
            self._parts = _Stored(self._ray, PARTS)
            actor = self._ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=TRIES - 1)(_Worker)
            self._actors = [actor.remote() for _ in range(self.workers)]
            self._await_all()
            self._dispatch = Dispatch([partial(self._ask, actor) for actor in self._actors])
        except BaseException:
            self._ending.close()
            raise

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, task: Task, due: float = float("inf")) -> Future[Reply]:
        """See Engine."""
        return self._dispatch.put(task, due)

    def machine(self, run: Run) -> dict[str, str]:
        """See Engine. Every worker is asked, before anything is begun."""
        task = engine.question(run)
        asked = [self._sent(actor, task) for actor in self._actors]
        return [self._received(task.order, reference) for reference in asked][-1].machine

    def close(self) -> None:
        """See Engine."""
        for actor in self._actors:
            self._ray.kill(actor)  # the thread that waits for its answer is told
        self._dispatch.close()
        self._ending.close()

    def _await_all(self) -> None:
        began = [actor.ready.remote() for actor in self._actors]
        end = time.monotonic() + BEGIN_S
        missing = began
        while missing and time.monotonic() < end:
            self.stop.check()
            there, missing = self._ray.wait(began, num_returns=len(began), timeout=POLL_S)
        if missing:
            raise PoolError(
                f"of {self.workers} workers {len(there)} have begun within {BEGIN_S:g} s: the cluster has no "
                "processor left for the others; take fewer --workers"
            )
        try:
            self._ray.get(began)
        except self._ray.exceptions.RayError as error:
            raise PoolError(
                f"the workers cannot begin ({str(error).strip().splitlines()[-1]}): is fedbac-edge "
                f"{__version__} installed on every machine of the cluster, with the extras train and ray?"
            ) from error

    def _ask(self, actor: Any, task: Task) -> Reply:
        return self._received(task.order, self._sent(actor, task))

    def _sent(self, actor: Any, task: Task) -> Any:
        """A reference to an Answer that is to come."""
        order, data = task.order, list(task.blobs.items())
        sets = self._sets.of((order.folder, order.about), partial(_arrays, order)) if data else []
        parts = [ref for hash, part in data for ref in self._parts.of(hash, partial(list, (part,)))]
        return actor.answer.remote(msgspec.msgpack.encode(order), list(task.blobs), *parts, *sets)

    def _received(self, order: Order, reference: Any) -> Reply:
        found = msgspec.msgpack.decode(self._get(reference), type=Answer)
        self._kinds.check(order.about, found)
        return found.reply

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise PoolError(
                f"a Ray worker cannot do what it is asked ({str(error).strip().splitlines()[-1]})"
            ) from error
        except self._ray.exceptions.RayError as error:
            raise PoolError(
                f"a Ray worker ended, {TRIES} times at the same job ({type(error).__name__}); when memory is "
                "short, take fewer --workers"
            ) from error


class OneKind:
    """Holds every answer of a run to the machine that the first one came from."""

    def __init__(self) -> None:
        self._first: dict[bytes, Answer] = {}
        self._lock = threading.Lock()

    def check(self, about: bytes, found: Answer) -> None:
        """Results of unlike machines are not mixed: raises PoolError naming what differs."""
        if (version := found.kind["fedbac-edge"]) != __version__:
            raise PoolError(
                f"{found.node} has fedbac-edge {version}, here is {__version__}: install the same"
            )
        with self._lock:
            first = self._first.setdefault(about, found)
        unlike = [name for name, value in found.kind.items() if value != first.kind.get(name)]
        if unlike:
            told = "; ".join(f"{name} {first.kind.get(name)!r} and {found.kind[name]!r}" for name in unlike)
            raise PoolError(
                f"machines of the cluster differ, {first.node} and {found.node}: {told}. Equal seeds would "
                "not give equal results: run on machines of one kind, with one set of packages"
            )


class _Stored:
    """Values in Ray's object store: the latest of them, each put there once."""

    def __init__(self, ray: Any, limit: int) -> None:
        self._ray, self._limit = ray, limit
        self._lock = threading.Lock()
        self._references: OrderedDict[Hashable, list[Any]] = OrderedDict()

    def of(self, key: Hashable, make: Callable[[], list[Any]]) -> list[Any]:
        """References to what `make()` gives, a list; holding them keeps it in the store."""
        with self._lock:
            if key not in self._references:
                self._references[key] = [self._ray.put(value) for value in make()]
            self._references.move_to_end(key)
            while len(self._references) > self._limit:
                self._references.popitem(last=False)
            return self._references[key]


def _arrays(order: Order) -> list[npt.NDArray[Any]]:
    """The four arrays of `Sets`, in the order of its fields."""
    there = samples.opened(Path(order.folder))
    return [np.asarray(getattr(there, name)) for name in samples.FILES]


def _connected(workers: int | None, address: str | None) -> tuple[Any, contextlib.ExitStack]:
    """(the module ray, what ends the connection). Raises NoRay."""
    if importlib.util.find_spec("ray") is None:
        raise NoRay("--engine ray needs Ray: pip install 'fedbac-edge[ray]'")
    ending = contextlib.ExitStack()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with contextlib.ExitStack() as undo:
        undo.push(ending)
        if address is None or address == "local":
            # Read when ray is imported: without a cluster it keeps to the loopback address, as on a Mac.
            ending.enter_context(_set("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"))
            place = tempfile.mkdtemp(prefix="ray-")
            ending.callback(shutil.rmtree, place, ignore_errors=True)
            options: dict[str, Any] = {
                "address": "local",
                "num_cpus": workers or available_cores(),
                "include_dashboard": False,
                "_temp_dir": place,
            }
        else:
            _check_somebody_listens(address)
            options = {"address": address}
        import ray

        try:
            with kept():  # it takes SIGTERM for itself
                ray.init(log_to_driver=False, logging_level="ERROR", **options)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            where = address or "this machine"
            raise NoRay(
                f"no Ray at {where}: {error}. Is it up, of this version, and where it wants a token, is "
                "RAY_AUTH_MODE=token set here?"
            ) from error
        ending.callback(ray.shutdown)
        undo.pop_all()
    return ray, ending


def _check_somebody_listens(address: str) -> None:
    """Ray itself tries for minutes. Raises NoRay."""
    host, colon, port = address.rpartition(":")
    if address == "auto" or "://" in address:
        return
    if not colon or not port.isdigit():
        raise NoRay(f"--ray-address {address!r}: give HOST:PORT, or auto for the cluster of this machine")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise NoRay(f"no Ray at {address}: {error}") from error


@contextlib.contextmanager
def _set(name: str, value: str) -> Iterator[None]:
    """An environment variable for a while."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


# --- in the worker --------------------------------------------------------------------------------


class _Worker:
    """The actor: its answers are functions of what it is given."""

    def __init__(self) -> None:
        os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

    def ready(self) -> bool:
        """It has begun."""
        return True

    def answer(self, order: bytes, hashes: list[str], *stored: Any) -> bytes:
        """An order's Answer. `stored`: a part for each hash, then the arrays of the samples, if any."""
        asked = msgspec.msgpack.decode(order, type=Order)
        parts, arrays = stored[: len(hashes)], stored[len(hashes) :]
        reply = answer(asked, dict(zip(hashes, parts, strict=True)), lambda: Sets(*arrays))
        kind = _kind(asked.laboratory, asked.about)
        return msgspec.msgpack.encode(Answer(reply=reply, node=platform.node(), kind=kind))


@lru_cache(maxsize=4)
def _kind(laboratory: Laboratory, about: bytes) -> dict[str, str]:
    return {
        **machine_for(laboratory, about),
        "fedbac-edge": __version__,
        "processor": vector_level.model_name(),
    }
