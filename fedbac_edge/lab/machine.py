"""What a run's results depend on beside its settings: equal hashes need it equal."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedbac_edge.host import vector_level
from fedbac_edge.models.description import Architecture


def machine(model: Architecture) -> dict[str, str]:
    """Versions, processor family, vector level, and the path on which this process trains `model`."""
    import torch

    from fedbac_edge.learning.local import best_backend

    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),
        "machine": platform.machine(),
        "level": vector_level.level(),
        "training": best_backend(model),
    }


def host() -> str:
    """Processor and system in a line, for people: nothing is compared by it."""
    name = vector_level.model_name().removeprefix("model name ")
    return f"{name}, {platform.system()} {platform.release()}"


def now() -> str:
    """Date and time, UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(" ", "seconds")


def check_machine(
    folder: Path, stored: Mapping[str, str], here: Mapping[str, str], command: str, error: type[Exception]
) -> None:
    """May the run in `folder`, begun on `stored`, go on `here`? Raises `error` naming what differs.

    What a run of an earlier version did not record is not held against it.
    """
    unlike = {name for name, value in stored.items() if here.get(name) != value}
    if not unlike:
        return
    told = ", ".join(f"{name} {stored[name]}, here {here.get(name, 'none')}" for name in sorted(unlike))
    remedy = "start it anew in another folder"
    if "level" in unlike:
        # Of a lower level the path may be another one, too: first the level.
        if stored["level"] in vector_level.levels():
            cap = f"{vector_level.VARIABLE}={stored['level']}"
            remedy = f"go on with {cap} fedbac {command} --resume --out {folder}, or {remedy}"
        else:
            remedy = f"go on where the processor has {stored['level']}, or {remedy}"
    raise error(f"{folder} was begun with {told}: its results would be mixed; {remedy}")
