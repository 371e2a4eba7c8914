"""Options that several commands share, with the same names, variables and defaults everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from broker.url import BrokerUrl

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BROKER = "mqtt://localhost:1883"
FILE = click.Path(path_type=Path)


def broker_options(function: F) -> F:
    """--broker, --ca, --cert, --key."""
    for option in (
        click.option(
            "--key",
            type=FILE,
            envvar="FEDBAC_KEY",
            show_envvar=True,
            help="Key of the client certificate (PEM).",
        ),
        click.option(
            "--cert", type=FILE, envvar="FEDBAC_CERT", show_envvar=True, help="Client certificate (PEM)."
        ),
        click.option(
            "--ca",
            type=FILE,
            envvar="FEDBAC_CA",
            show_envvar=True,
            help="Authority of the broker's certificate (PEM).",
        ),
        click.option(
            "--broker",
            metavar="URL",
            envvar="FEDBAC_BROKER",
            show_envvar=True,
            default=DEFAULT_BROKER,
            show_default=True,
            help="mqtt[s]://[user:password@]host[:port].",
        ),
    ):
        function = option(function)
    return function


def given(context: click.Context, names: Iterable[str]) -> str | None:
    """The first of these options that the caller gave, as a flag; None when all stand at their defaults."""
    for name in names:
        if context.get_parameter_source(name) not in (ParameterSource.DEFAULT, None):
            return next(p.opts[0] for p in context.command.params if p.name == name)
    return None


def json_option(help: str) -> Callable[[F], F]:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def ledger_option(function: F) -> F:
    """--ledger-rounds."""
    option = click.option(
        "--ledger-rounds",
        type=click.IntRange(min=0),
        default=1000,
        show_default=True,
        help="Rounds that the ledger goes back; 0: all.",
    )
    return option(function)


def address(broker: str, ca: Path | None, cert: Path | None, key: Path | None) -> BrokerUrl:
    """The broker's address from the shared options; raises BadUrl."""
    from broker.url import BrokerUrl

    return BrokerUrl.parse(broker, ca=ca, certificate=cert, key=key)


def say_warnings() -> None:
    """What the running tiers log goes to stderr as plain sentences."""
    import logging

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
