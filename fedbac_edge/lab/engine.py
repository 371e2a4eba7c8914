"""What does a laboratory's work: processes of this machine (`pool`), or of a cluster (`ray_engine`).

A result depends on the order alone, never on which worker carried it out or when: a run gives the same bits
with any engine and any number of workers, as long as all of them are machines of one kind. An engine knows
nothing of what it carries; each laboratory writes and reads its own work (`jobs` of each).
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from fedbac_edge.host.signals import Stop

Laboratory = Literal["fleet", "flat"]


class PoolError(RuntimeError):
    """A worker ended, met an error that no work should meet, or cannot be had; a sentence."""


class WorkFailed(RuntimeError):
    """What was asked cannot be done, as a device would say it; a sentence."""


@dataclass(frozen=True)
class Run:
    """What all orders of a run share."""

    laboratory: Laboratory
    folder: Path
    """Where this process has laid the samples out (`samples`)."""
    about: bytes
    """The federation, or the study, in MessagePack."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is asked: a piece of `work`, empty to ask what machine it is."""

    laboratory: Laboratory
    folder: str
    about: bytes
    work: bytes = b""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker answers: one of these."""

    done: bytes = b""
    """The result, in the laboratory's own words."""
    failed: str = ""
    """It cannot be done, as a device would say it."""
    broken: str = ""
    """The worker met an error that is a fault of this software."""
    machine: dict[str, str] = {}


@dataclass(frozen=True)
class Task:
    """An order, the parts that it names (hash -> bytes), and where the reply goes."""

    order: Order
    blobs: dict[str, bytes]
    future: Future[Reply] = field(default_factory=Future)


def task(run: Run, work: bytes, blobs: dict[str, bytes]) -> Task:
    """A piece of work of `run`, with the parts that it needs."""
    order = Order(laboratory=run.laboratory, folder=str(run.folder), about=run.about, work=work)
    return Task(order, blobs)


def question(run: Run) -> Task:
    """The task of saying what machine a worker is."""
    return task(run, b"", {})


class Engine(Protocol):
    """Workers that carry orders out; close it, or use it as a context. One may serve several runs."""

    @property
    def workers(self) -> int:
        """How many."""

    @property
    def stop(self) -> Stop:
        """Whether the run is to end; every wait for a worker asks it."""

    def put(self, task: Task, due: float = float("inf")) -> Future[Reply]:
        """Queue a task. Of those that wait, the one with the smallest `due` is begun first."""

    def machine(self, run: Run) -> dict[str, str]:
        """Versions, processor and training path of the workers. Raises PoolError when they differ."""

    def close(self) -> None:
        """End the workers, whatever they do."""
