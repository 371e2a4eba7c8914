"""`fedbac gateway run`: one site's gateway, until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbac_edge.commands.failures import Misconfigured, explained, remedied
from fedbac_edge.commands.options import FILE, address, broker_options, ledger_option, say_warnings
from fedbac_edge.host import output, signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.url import BrokerUrl
    from fedbac_edge.node.node import Node
    from fedbac_edge.node.store import LedgerLine
    from fedbac_edge.protocol.messages import Spec


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
@click.option("--state", type=FILE, help="The gateway's state folder.  [default: runs/<federation>]")
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

    While the federation lists its gateways and NAME is not among them, it says so and waits to be added.
    Without --federation it leaves one whose cloud is gone for another on this broker whose cloud is there.

    \b
    Example:
      fedbac gateway run gw1 --broker mqtt://broker.local
    """
    output.not_needed()
    with signals.stopping() as stop, explained():
        from broker.topics import check_name

        say_warnings()
        check_name(name, "gateway")
        url = address(broker, ca, cert, key)
        if federation is not None:
            check_name(federation, "federation")
        # A gateway that was there before can do without the cloud: its store has the description.
        directory = state or Path("runs") / (federation or "")
        wanted = federation
        knows = federation is not None and (directory / f"gateway-{name}.sqlite").exists()
        while not stop():
            spec = None if knows else _discover(url, wanted, name, stop)
            if spec is None and not knows:
                stop.raise_failure()
                click.echo("stopped before a federation was found")
                return
            found = federation if spec is None else spec.federation.name
            assert found is not None
            knows = False
            directory = state or Path("runs") / found
            moves_to = _stay(
                *(name, url, found, directory, ledger_rounds, spec is not None, federation is None, stop)
            )
            wanted = moves_to or federation
        click.echo("stopped")


def _stay(
    name: str,
    url: BrokerUrl,
    federation: str,
    directory: Path,
    ledger_rounds: int,
    has_place: bool,
    may_move: bool,
    stop: signals.Stop,
) -> str | None:
    """Be the gateway `name` until told to leave, or until the federation has no place for it any more.

    Returns the federation that it moves to, if any.

    `has_place`: the description on the broker lists it, whatever an older one in the store says.
    `may_move`: no option named the federation, so a living one goes before this one when its cloud is dead.
    """
    import time

    from broker.mqtt import MqttBus
    from fedbac_edge.host import systemd
    from fedbac_edge.node import assemble
    from fedbac_edge.node.neighbours import Neighbours
    from fedbac_edge.node.runtime import Runtime, opened_store
    from fedbac_edge.settings.membership import gateway_missing

    to_go_on = (
        "move the file away and start again: the gateway then learns anew which devices help, nothing "
        "else is lost"
    )
    with remedied(to_go_on), opened_store(directory, f"gateway-{name}") as store:
        node = assemble.gateway(federation, name, store, ledger_rounds=ledger_rounds)
        older = node.machine.state.spec if has_place else None
        neighbours = Neighbours(federation, lambda other: gateway_missing(other, name)) if may_move else None

        def successor() -> str | None:
            return None if neighbours is None else neighbours.successor(time.monotonic())

        def is_over(node: Node) -> bool:
            spec = node.machine.state.spec
            left_out = spec is not None and spec is not older and gateway_missing(spec.federation, name)
            return bool(left_out) or successor() is not None

        runtime = Runtime(
            store,
            node,
            lambda inbox, will: MqttBus(url, f"fedbac-{federation}-gateway-{name}", inbox, will),
            observe=Narrate(node, lambda: runtime.link),
            until=is_over,
            neighbours=neighbours,
        )
        click.echo(f"gateway {name} of {federation} at {url}, state in {directory}")
        systemd.notify("READY=1", f"STATUS=gateway {name} of {federation}")
        with stop.wakes(runtime.stop), systemd.watched([runtime.poke]):
            runtime.run()
        stop.raise_failure()
        if stop():
            systemd.notify("STOPPING=1")
            return None
        if (other := successor()) is not None:
            click.echo(f"the cloud of {federation} is gone, and {other} has a place for {name}: moving there")
        return other


def _discover(url: BrokerUrl, federation: str | None, name: str, stop: signals.Stop) -> Spec | None:
    """The federation with a place for this gateway; waits for it. None: a signal ended the wait."""
    from fedbac_edge.host import systemd
    from fedbac_edge.node.discovery import Interrupted, SeveralFederations, find_spec
    from fedbac_edge.settings.membership import gateway_missing

    turns = systemd.Turns(stop)
    systemd.notify("READY=1", "STATUS=looking for the federation")
    with systemd.watched([turns.poke]):
        try:
            return find_spec(
                *(url, federation, "fedbac-gateway", click.echo, turns),
                missing=lambda federation: gateway_missing(federation, name),
            )
        except Interrupted:
            systemd.notify("STOPPING=1")
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
        from fedbac_edge.protocol.gateway import roster

        state = node.machine.state
        if state.spec is None:
            return "waiting for the cloud"
        members = roster.names(node.machine.status("online").channel.gateway, state)
        online = sum(roster.member(state, name).online for name in members)
        return f"{'ready' if state.announced else 'not ready'}: {online} of {len(members)} devices online"


def sentence(line: LedgerLine) -> str:
    """A ledger line of a gateway for people; empty for what they need not see."""
    from fedbac_edge.node import stalls
    from fedbac_edge.settings.live import Change

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
            return f"round {line.round}: asked {', '.join(detail['asked']) or 'no device'} ({how})"
        case "accepted":
            return (
                f"round {line.round}: {line.subject} answered, {detail['samples']} samples in "
                f"{detail['seconds']:.1f} s"
            )
        case "refused" | "declined":
            return f"round {line.round}: {line.subject} {line.kind}: {detail['why']}"
        case "stalled":
            return f"round {line.round}: {stalls.sentence(detail['times'])}"
        case "unanswered" if line.subject.endswith("/update"):
            return stalls.unanswered(line.subject, "the cloud")
        case "silent":
            return f"round {line.round}: {line.subject} did not answer in time"
        case "closed":
            outcome = f"void: {detail['void']}" if detail["void"] else f"{detail['samples']} samples"
            return (
                f"round {line.round}: closed with {detail['answered']} of {detail['asked']} answers, "
                f"{len(detail['refused'])} refused, {outcome}"
            )
        case "gone":
            return f"round {line.round}: {line.subject} has vanished and is not waited for"
        case "scored":
            return f"round {line.round}: {detail['answered']} devices scored the clusters"
        case "unlisted":
            return f"{line.subject} is not on the list of this gateway's devices, and is not asked"
        case "forgotten":
            return f"{line.subject} was forgotten: all that was learned about it is dropped"
        case "setting":
            return f"from the next round on: {Change(line.subject, detail['before'], detail['after'])}"
        case "unusable spec":
            return f"the description on the broker is not taken: {detail['why']}"
        case "receipt" if not detail["accepted"]:
            return f"round {line.round}: the cloud refused our report: {detail['why']}"
        case "job failed" | "unreadable" | "publish refused":
            return f"{line.kind}: {line.subject}: {detail['why']}"
    return ""
