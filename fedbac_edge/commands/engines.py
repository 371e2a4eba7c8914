"""The options that say where a laboratory's workers run, and the engine that they name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedbac_edge.commands.failures import Misconfigured

if TYPE_CHECKING:
    from fedbac_edge.host.signals import Stop
    from fedbac_edge.lab.engine import Engine

F = TypeVar("F", bound=Callable[..., Any])


def engine_options(command: F) -> F:
    """--workers, --engine and --ray-address."""
    for option in (
        click.option(
            "--ray-address", metavar="HOST:PORT", help="[default: RAY_ADDRESS, else a Ray of its own]"
        ),
        click.option(
            "--engine",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            help="Where workers run: on this machine, or on a Ray cluster ('fedbac-edge[ray]').",
        ),
        click.option("--workers", type=click.IntRange(1), help="Processes. [default: one per usable core]"),
    ):
        command = option(command)
    return command


def check_engine(engine: str, ray_address: str | None) -> None:
    """Raises UsageError for options that do not go together."""
    if ray_address is not None and engine != "ray":
        raise click.UsageError("--ray-address goes only with --engine ray")


def start_engine(name: str, workers: int | None, ray_address: str | None, most: int, stop: Stop) -> Engine:
    """The engine, begun; on this machine of at most `most` workers. Raises Misconfigured, PoolError."""
    if name == "local":
        from fedbac_edge.host.cgroups import available_cores
        from fedbac_edge.lab.pool import Pool

        return Pool(min(workers or available_cores(), most), stop)
    from fedbac_edge.lab.ray_engine import NoRay, RayEngine

    try:
        return RayEngine(workers, ray_address, stop)
    except NoRay as error:
        raise Misconfigured(str(error)) from error
