"""Options that several commands share, with the same names, variables and defaults everywhere."""

from __future__ import annotations

import dataclasses
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
_CLIENT_ID = f"{__name__}.client_id"


def broker_options(function: F) -> F:
    """--broker, --ca, --cert, --key, --client-id."""
    for option in (
        click.option(
            "--client-id",
            metavar="ID",
            envvar="FEDBAC_CLIENT_ID",
            show_envvar=True,
            expose_value=False,
            callback=_remember_client_id,
            help="Client name, where the broker prescribes it. One process alone may use it at a time.",
        ),
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


def labels_option(help: str, default: float | None = 0.1) -> Callable[[F], F]:
    """--labels: the share of samples that keep their label, 0.1 or 10% of them."""
    return click.option(
        "--labels",
        type=labelled,
        metavar="SHARE",
        default=default,
        show_default=default is not None,
        help=help,
    )


def labelled(text: str | float) -> float:
    """A share above 0 and up to 1. A bare 10 is refused: beside 0.1 it is unclear what 1 means."""
    number = str(text).strip().removesuffix("%")
    percent = number != str(text).strip()
    try:
        share = float(number) / 100 if percent else float(number)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a share: say 0.1 or 10%") from None
    if 1 < share <= 100 and not percent:
        raise click.BadParameter(
            f"{text} is more than all; for {share:g} percent say {share / 100:g} or {share:g}%"
        )
    if not 0 < share <= 1:
        raise click.BadParameter(f"{text} is not a share above 0 and up to 1 (or 100%)")
    return share


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

    url = BrokerUrl.parse(broker, ca=ca, certificate=cert, key=key)
    context = click.get_current_context(silent=True)
    client_id = None if context is None else context.meta.get(_CLIENT_ID)
    return dataclasses.replace(url, client_id=client_id)


def _remember_client_id(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None and not value.strip():
        raise click.BadParameter("a client name is not empty")
    context.meta[_CLIENT_ID] = value


def say_warnings() -> None:
    """What the running tiers log goes to stderr as plain sentences."""
    import logging

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
