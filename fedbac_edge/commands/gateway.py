"""`fedbac gateway run`: one site's gateway, until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbac_edge import output, signals
from fedbac_edge.commands.failures import Misconfigured, explained
from fedbac_edge.commands.options import FILE, address, broker_options, ledger_option, say_warnings

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.url import BrokerUrl
    from fedbac_edge.federation import Federation
    from fedbac_edge.node import Node
    from fedbac_edge.protocol.messages import Spec
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

    Exit code 2 when the federation lists its gateways and NAME is not among them.

    \b
    Example:
      fedbac gateway run gw1 --broker mqtt://broker.local
    """
    output.not_needed()
    with signals.stopping() as stop, explained():
        from broker.mqtt import MqttBus
        from broker.topics import check_name
        from fedbac_edge import notify, tiers
        from fedbac_edge.runtime import Runtime, opened_store

        say_warnings()
        check_name(name, "gateway")
        url = address(broker, ca, cert, key)
        if federation is not None:
            check_name(federation, "federation")
        found = federation or ""
        # A gateway that was there before can do without the cloud: its store has the description.
        if not found or not ((state or Path("runs") / found) / f"gateway-{name}.sqlite").exists():
            spec = _discover(url, federation, stop)
            if spec is None:
                stop.raise_failure()
                click.echo("stopped before a federation was found")
                return
            check_listed(spec.federation, name)
            found = spec.federation.name
        directory = state or Path("runs") / found
        with opened_store(directory, f"gateway-{name}") as store:
            node = tiers.gateway(found, name, store, ledger_rounds=ledger_rounds)
            narrate = Narrate(node, lambda: runtime.link)

            def observe(node: Node) -> None:
                if (spec := node.machine.state.spec) is not None:
                    check_listed(spec.federation, name)
                narrate(node)

            runtime = Runtime(
                store,
                node,
                lambda inbox, will: MqttBus(url, f"fedbac-{found}-gateway-{name}", inbox, will),
                observe=observe,
            )
            click.echo(f"gateway {name} of {found} at {url}, state in {directory}")
            notify.notify("READY=1", f"STATUS=gateway {name} of {found}")
            with stop.wakes(runtime.stop), notify.watched([runtime.poke]):
                runtime.run()
            stop.raise_failure()
            notify.notify("STOPPING=1")
            click.echo("stopped")


def check_listed(federation: Federation, name: str) -> None:
    """A cloud that lists its gateways would never ask another one. Raises Misconfigured."""
    if federation.gateways and name not in federation.gateways:
        raise Misconfigured(
            f"federation {federation.name} has no gateway {name!r}; NAME is one of: "
            f"{', '.join(sorted(federation.gateways))} (they stand in its federation.toml under [gateways])"
        )


def _discover(url: BrokerUrl, federation: str | None, stop: signals.Stop) -> Spec | None:
    """The named federation, or the only one on the broker; waits for it. None: a signal ended the wait."""
    from fedbac_edge import notify
    from fedbac_edge.discovery import Interrupted, SeveralFederations, find_spec

    turns = notify.Turns(stop)
    notify.notify("READY=1", "STATUS=looking for the federation")
    with notify.watched([turns.poke]):
        try:
            return find_spec(url, federation, "fedbac-gateway", click.echo, turns)
        except Interrupted:
            notify.notify("STOPPING=1")
            return None
        except SeveralFederations as error:
            raise Misconfigured(str(error)) from error


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
    from fedbac_edge import stalls

    detail = line.detail
    match line.kind:
        case "spec":
            return f"federation {line.subject} described by the cloud"
        case "restored":
            return f"the cloud was restored from an older backup; following it (instance {line.subject})"
        case "stale task" if "newest" in detail:
            return (
                f"round {line.round}: asked again, but round {detail['newest']} has begun here; told the "
                "cloud, which may have been restored from an older backup"
            )
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
        case "stalled":
            return f"round {line.round}: {stalls.sentence(detail['times'])}"
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
