"""`fedbac gateway run`: one site's gateway, until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbac_edge.commands.failures import explained
from fedbac_edge.commands.options import FILE, address, broker_options, ledger_option, say_warnings

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.url import BrokerUrl
    from fedbac_edge.node import Node
    from fedbac_edge.store import LedgerLine


@click.group()
def gateway() -> None:
    """The gateway of a site.

    \b
    Example:
      fedbac gateway run gw1
    """


@gateway.command()
@click.argument("name")
@broker_options
@click.option("--federation", help="Its name.  [default: the one that the broker knows]")
@click.option("--state", type=FILE, help="Where the gateway remembers.  [default: runs/<federation>]")
@ledger_option
def run(
    name: str,
    broker: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    federation: str | None,
    state: Path | None,
    ledger_rounds: int,
) -> None:
    """Serve the devices of the site NAME: choose, collect, average. Stays until SIGTERM or Ctrl-C.

    \b
    Example:
      fedbac gateway run gw1 --broker mqtt://broker.local
    """
    with explained():
        from broker.mqtt import MqttBus
        from broker.topics import check_name
        from fedbac_edge import notify, tiers
        from fedbac_edge.runtime import LEAVE_S, Runtime, opened_store, stopping_on_signals

        say_warnings()
        check_name(name, "gateway")
        url = address(broker, ca, cert, key)
        found = check_name(federation, "federation") if federation else _discover(url)
        directory = state or Path("runs") / found
        with opened_store(directory, f"gateway-{name}") as store:
            node = tiers.gateway(found, name, store, ledger_rounds=ledger_rounds)
            runtime = Runtime(
                store,
                node,
                lambda inbox, will: MqttBus(url, f"fedbac-{found}-gateway-{name}", inbox, will),
                observe=Narrate(node, lambda: runtime.link),
            )
            click.echo(f"gateway {name} of {found} at {url}, state in {directory}")
            notify.notify("READY=1", f"STATUS=gateway {name} of {found}")
            with stopping_on_signals(runtime.stop, LEAVE_S), notify.watched([runtime.poke]):
                runtime.run()
            notify.notify("STOPPING=1")
            click.echo("stopped")


def _discover(url: BrokerUrl) -> str:
    """The name of the only federation on the broker; waits for it, until a signal ends the wait."""
    import threading

    from fedbac_edge import notify
    from fedbac_edge.discovery import find_spec
    from fedbac_edge.runtime import LEAVE_S, stopping_on_signals

    stop = threading.Event()
    turns = notify.Turns(stop.is_set)
    notify.notify("READY=1", "STATUS=looking for the federation")
    with stopping_on_signals(stop.set, LEAVE_S), notify.watched([turns.poke]):
        return find_spec(url, None, "fedbac-gateway", click.echo, turns).federation.name


class Narrate:
    """Says in plain lines what the gateway's ledger says, after every event."""

    def __init__(self, node: Node, link: Callable[[], str]) -> None:
        lines = node.store.ledger()
        self._last = lines[-1].id if lines else 0
        self._link, self._told_link = link, "connecting"
        self._told_presence = ""

    def __call__(self, node: Node) -> None:
        """See the class."""
        if self._link() != self._told_link:
            self._told_link = self._link()
            click.echo(f"broker: {self._told_link}")
        presence = self._presence(node)
        if presence != self._told_presence:
            self._told_presence = presence
            click.echo(presence)
        for line in node.store.ledger(after=self._last):
            self._last = line.id
            text = sentence(line)
            if text:
                click.echo(text)

    def _presence(self, node: Node) -> str:
        state = node.machine.state
        if state.spec is None:
            return "waiting for the cloud"
        online = sum(member.online for member in state.members.values())
        return (
            f"{'ready' if state.announced else 'not ready'}: {online} of {len(state.members)} devices online"
        )


def sentence(line: LedgerLine) -> str:
    """A ledger line of a gateway for people; empty for what they need not see."""
    detail = line.detail
    match line.kind:
        case "spec":
            return f"federation {line.subject} described by the cloud"
        case "selected":
            how = "drawn" if detail["warm_up"] else "ranked by their posteriors"
            return f"round {line.round}: asked {', '.join(detail['asked']) or 'nobody'} ({how})"
        case "accepted":
            return (
                f"round {line.round}: {line.subject} answered, {detail['samples']} samples in "
                f"{detail['seconds']:.1f} s"
            )
        case "refused" | "declined":
            return f"round {line.round}: {line.subject} {line.kind}: {detail['why']}"
        case "silent":
            return f"round {line.round}: {line.subject} did not answer in time"
        case "closed":
            outcome = f"void: {detail['void']}" if detail["void"] else f"{detail['samples']} samples"
            return (
                f"round {line.round}: closed with {detail['answered']} of {detail['asked']} answers, "
                f"{len(detail['refused'])} refused, {outcome}"
            )
        case "scored":
            return f"round {line.round}: {detail['answered']} devices scored the clusters"
        case "receipt" if not detail["accepted"]:
            return f"round {line.round}: the cloud refused our report: {detail['why']}"
        case "job failed" | "unreadable" | "publish refused":
            return f"{line.kind}: {line.subject}: {detail['why']}"
    return ""
