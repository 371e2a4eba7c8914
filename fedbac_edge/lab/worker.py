"""In a worker: from an order and its parts to a reply."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Protocol, cast

from fedbac_edge.lab.engine import Laboratory, Order, Reply, WorkFailed
from fedbac_edge.lab.samples import Sets
from fedbac_edge.models.description import Architecture

JOBS: dict[Laboratory, str] = {
    "fleet": "fedbac_edge.lab.fleet.jobs",
    "flat": "fedbac_edge.lab.flat.jobs",
}
"""Laboratory -> the module that reads its work."""


class Jobs(Protocol):
    """What each of these modules has."""

    @staticmethod
    def perform(about: bytes, work: bytes, blobs: Mapping[str, bytes], sets: Sets) -> bytes:
        """Do the work. Raises WorkFailed."""

    @staticmethod
    def model(about: bytes) -> Architecture:
        """The network whose training path belongs to a run's identity."""


def answer(order: Order, blobs: Mapping[str, bytes], sets: Callable[[], Sets]) -> Reply:
    """Do what is asked; `sets` gives the samples. No error is raised: it stands in the reply."""
    try:
        if not order.work:
            return Reply(machine=machine_for(order.laboratory, order.about))
        return Reply(done=_jobs(order.laboratory).perform(order.about, order.work, blobs, sets()))
    except WorkFailed as error:
        return Reply(failed=str(error)[:400])
    except ModuleNotFoundError as error:
        return _without(error)
    except Exception as error:
        return Reply(broken=f"{type(error).__name__} in a worker: {error}")


def _without(error: ModuleNotFoundError) -> Reply:
    return Reply(broken=f"{error.name} is missing: pip install 'fedbac-edge[train]'")


@lru_cache(maxsize=4)
def machine_for(laboratory: Laboratory, about: bytes) -> dict[str, str]:
    """What this process's results depend on when it trains that run's model."""
    from fedbac_edge.lab.machine import machine

    return machine(_jobs(laboratory).model(about))


def _jobs(laboratory: Laboratory) -> Jobs:
    return cast(Jobs, importlib.import_module(JOBS[laboratory]))
