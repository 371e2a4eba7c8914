"""In a worker: from an order and its parts to a reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import msgspec

from fedbac_edge.federation import Federation
from fedbac_edge.protocol.engine import Trained
from fedbac_edge.simulation.engine import Order, Reply
from fedbac_edge.simulation.grounds import Sets


def answer(order: Order, blobs: Mapping[str, bytes], sets: Callable[[], Sets]) -> Reply:
    """Do what is asked; `sets` gives the samples. No error is raised: it stands in the reply."""
    try:
        from fedbac_edge.learning.jobs import JobError, perform
    except ModuleNotFoundError as error:
        return _without(error)
    federation = described(order.federation)
    job = order.train or order.evaluate
    try:
        if job is None:
            return Reply(machine=machine_for(order.federation))
        there = sets()
        event = perform(job, blobs, federation, there.at(order.samples), there.at(order.holdout))
    except JobError as error:
        return Reply(failed=str(error)[:400])
    except ModuleNotFoundError as error:
        return _without(error)
    except Exception as error:
        return Reply(broken=f"{type(error).__name__} in a worker: {error}")
    return Reply(trained=event) if isinstance(event, Trained) else Reply(evaluated=event)


def _without(error: ModuleNotFoundError) -> Reply:
    return Reply(broken=f"{error.name} is missing: pip install 'fedbac-edge[train]'")


@lru_cache(maxsize=4)
def described(federation: bytes) -> Federation:
    """The federation."""
    return msgspec.msgpack.decode(federation, type=Federation)


@lru_cache(maxsize=4)
def machine_for(federation: bytes) -> dict[str, str]:
    """What this process's results depend on when it trains that federation's model."""
    from fedbac_edge.models.catalog import architecture
    from fedbac_edge.simulation.machine import machine

    model = described(federation).model
    return machine(architecture(model.architecture, model.input, len(model.classes)))
