"""`fedbac status`: where a federation stands, asked from its broker or read from a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fedbac_edge.commands.failures import Failed, Misconfigured, explained
from fedbac_edge.commands.options import FILE, address, broker_options, json_option


@click.command()
@broker_options
@click.option("--federation", help="Only this one; without it, all that the broker knows.")
@click.option("--state", type=FILE, help="Read this state directory (or .sqlite file), not the broker.")
@click.option(
    "--ledger", "lines", type=click.IntRange(0), default=5, show_default=True, help="Last lines shown."
)
@click.option("--timeout", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Seconds.")
@json_option("One JSON list.")
def status(
    broker: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    federation: str | None,
    state: Path | None,
    lines: int,
    timeout: float,
    as_json: bool,
) -> None:
    """Show cloud, gateways, devices, round and accuracy. Changes nothing.

    \b
    Example:
      fedbac status --broker mqtt://broker.local
      fedbac status --state runs/orchard --json
    """
    with explained():
        if state is not None:
            from fedbac_edge.commands import stored_status

            found = stored_status.read(state, lines)
            if not found:
                raise Misconfigured(f"there is no store in {state}")
            show = stored_status.show
        else:
            from broker.topics import check_name
            from fedbac_edge.commands import live_status

            if federation is not None:
                check_name(federation, "federation")
            url = address(broker, ca, cert, key)
            found = live_status.ask(url, federation, timeout)
            if not found:
                which = f"{federation!r}" if federation else "any federation"
                hidden = ""
                if url.user is not None or url.certificate is not None:
                    hidden = " And may this user read it? (fedbac doctor --as)"
                raise Failed(
                    f"the broker at {url} does not know {which}: has the cloud been started?{hidden}"
                )
            show = live_status.show
    click.echo(json.dumps(found, ensure_ascii=False) if as_json else "\n\n".join(map(_text(show), found)))


def _text(show: Any) -> Any:
    return lambda item: "\n".join(show(item))
