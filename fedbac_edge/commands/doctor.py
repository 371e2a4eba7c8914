"""`fedbac doctor`: is this machine fit for a federation, and is it let in? One line for each check."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbac_edge.commands.failures import explained
from fedbac_edge.commands.options import FILE, address, broker_options, json_option

if TYPE_CHECKING:
    from broker.url import BrokerUrl
    from fedbac_edge.commands.checks import Check


@click.command()
@broker_options
@click.option("--federation", help="Its name.  [default: the only one that the broker knows]")
@click.option("--as", "user", help="Try the topics of cloud, observer, a gateway, or GATEWAY/DEVICE.")
@click.option("--state", type=FILE, default=Path("runs"), show_default=True, help="Where state is kept.")
@json_option("One JSON list.")
@click.pass_context
def doctor(
    context: click.Context,
    broker: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    federation: str | None,
    user: str | None,
    state: Path,
    as_json: bool,
) -> None:
    """Check broker, access, certificates, limits, clock, disk, libraries and training. Changes nothing
    but the cache of compiled kernels.

    Exit code 1 when something is wrong; a warning or an unknown is no fault.

    \b
    Example:
      fedbac doctor --broker mqtt://broker.local
      fedbac doctor --broker mqtts://broker.local --ca ca.pem --cert dev1.pem --key dev1.key --as gw1/dev1
    """
    with explained():
        from broker import access
        from broker.topics import check_name

        if user is not None:
            access.split(user)
        if federation is not None:
            check_name(federation, "federation")
        url = address(broker, ca, cert, key)
        found: list[Check] = []
        for check in examine(url, federation, user, state):
            found.append(check)
            if not as_json:
                click.echo(line(check))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(check) for check in found], ensure_ascii=False))
    if any(check.result == "wrong" for check in found):
        context.exit(1)


def examine(url: BrokerUrl, federation: str | None, user: str | None, state: Path) -> Iterator[Check]:
    """Every check, in the order in which a person would look."""
    from fedbac_edge.commands import broker_checks, checks, memory_checks, training_check

    clients = 0
    with broker_checks.conversation(url) as talk:
        answers = broker_checks.broker(talk, url)
        yield from answers
        if answers[0].result == "ok":
            described, spec = broker_checks.federation(talk, federation)
            yield described
            if spec is not None:
                roster = spec.federation.gateways
                clients = 1 + len(roster) + sum(map(len, roster.values()))
            name = federation or (spec.federation.name if spec else None)
            if answers[-1].result == "ok" and (place := memory_checks.tried(user, name)) is not None:
                yield from memory_checks.memory(talk, place, talk.largest)
            if user is not None and name is not None:
                yield from broker_checks.self_test(talk, name, user, spec)
            elif user is not None:
                remedy = "give --federation, or start its cloud"
                yield checks.Check("access", "unknown", "the federation's name is not known", remedy)
    if url.tls:
        yield broker_checks.broker_certificate(url)
    if url.ca is not None:
        yield checks.certificate("authority", url.ca)
    if url.certificate is not None:
        yield checks.certificate("our certificate", url.certificate)
    yield checks.open_files(clients)
    yield checks.clock()
    yield checks.disk(state)
    libraries = checks.libraries()
    yield from libraries
    if any(each.name == "torch" and each.result == "ok" for each in libraries):
        yield training_check.training()


def line(check: Check) -> str:
    """One line for people."""
    remedy = f"; {check.remedy}" if check.remedy else ""
    return f"{check.result:8} {check.name:20} {check.found}{remedy}"
