"""`fedbac cloud run`: hold a federation's rounds until its campaign is finished."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbac_edge.commands.failures import Failed, explained, remedied
from fedbac_edge.commands.options import (
    FILE,
    address,
    broker_options,
    json_option,
    ledger_option,
    say_warnings,
)
from fedbac_edge.host import output, signals

if TYPE_CHECKING:
    from fedbac_edge.node.node import Node
    from fedbac_edge.node.store import LedgerLine
    from fedbac_edge.protocol.cloud.state import CloudState
    from fedbac_edge.settings.federation import Federation
    from fedbac_edge.terminal.views import View


@click.group()
def cloud() -> None:
    """The cloud of a federation.

    \b
    Example:
      fedbac cloud run --federation federation.toml
    """


@cloud.command()
@click.option("--federation", "file", type=FILE, default=Path("federation.toml"), show_default=True)
@broker_options
@click.option("--state", type=FILE, help="The cloud's state folder.  [default: runs/<federation>]")
@click.option(
    "--continue", "continuing", is_flag=True, help="After the last round begin another campaign, without end."
)
@ledger_option
@json_option("One JSON object per line and round.")
def run(
    file: Path,
    broker: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    state: Path | None,
    continuing: bool,
    ledger_rounds: int,
    as_json: bool,
) -> None:
    """Run the rounds of a federation; ends when the last one is evaluated, or never with --continue.

    Stopped (SIGTERM, Ctrl-C: exit code 0) or killed at any point, the same command goes on from there.

    \b
    Example:
      fedbac cloud run --federation federation.toml --broker mqtt://broker.local
    """
    output.not_needed()
    with signals.stopping() as stop, explained():
        from broker.mqtt import MqttBus
        from fedbac_edge.commands.releasing import ReleaseNotes, open_key
        from fedbac_edge.federation_file import beginnings, reading
        from fedbac_edge.host import systemd
        from fedbac_edge.node import assemble, second_cloud
        from fedbac_edge.node.runtime import Runtime, opened_store
        from fedbac_edge.protocol.cloud.machine import Cloud
        from fedbac_edge.releases import worker
        from fedbac_edge.settings.live import Change
        from fedbac_edge.signing import keys
        from fedbac_edge.terminal.views import showing

        say_warnings()
        federation = reading.load(file)
        url = address(broker, ca, cert, key)
        directory = state or Path("runs") / federation.name
        to_restore = (
            f"go back to a backup with: fedbac restore BACKUP --state {directory}; without a backup move the "
            "file away, and a new federation begins"
        )
        with remedied(to_restore), opened_store(directory, "cloud") as store:
            missing = worker.missing()
            signer = None if missing else open_key(file, federation, directory, make=True)
            told = store.ledger(kind="setting")
            node = assemble.cloud(
                federation,
                secrets.token_hex(4),
                store,
                signer=signer,
                continuing=continuing,
                ledger_rounds=ledger_rounds,
                start=beginnings.load(file, federation) if store.read("machine") is None else None,
            )
            machine = node.machine
            assert isinstance(machine, Cloud)
            federation = machine.federation  # with the clusters that there are
            rival = second_cloud.find(url, federation.name, node.machine.state.instance, stop)
            if rival is not None:
                raise Failed(
                    f"another cloud (instance {rival}) holds the federation {federation.name!r} on {url}: "
                    "stop that one first, or give this federation another name"
                )
            with showing(federation.rounds, as_json) as view:
                follow = Follow(view, node, federation, lambda: runtime.link)
                notes = ReleaseNotes(view, node)

                def observe(node: Node) -> None:
                    follow(node)
                    notes(node)

                runtime = Runtime(
                    store,
                    node,
                    lambda inbox, will: MqttBus(url, f"fedbac-{federation.name}-cloud", inbox, will),
                    worker=None if signer is None else worker.ReleaseWorker(federation),
                    observe=observe,
                    until=is_finished,
                )
                view.note(f"{federation.name} at {url}, state in {directory}")
                for line in store.ledger(kind="setting", after=told[-1].id if told else 0):
                    change = Change(line.subject, line.detail["before"], line.detail["after"])
                    view.note(f"from round {line.round} on: {change}")
                if signer is None:
                    view.note(
                        f"no releases for devices that serve: {' and '.join(missing)} missing "
                        "(pip install 'fedbac-edge[export]')"
                    )
                else:
                    public, short = keys.to_text(signer.public), keys.fingerprint(signer.public)
                    view.note(f"releases are signed with the key {public} (in short {short})")
                systemd.notify("READY=1", f"STATUS=cloud of {federation.name}")
                with stop.wakes(runtime.stop), systemd.watched([runtime.poke]):
                    runtime.run()
                stop.raise_failure()
                systemd.notify("STOPPING=1")
                if not is_finished(node):
                    reached: CloudState = node.machine.state
                    total = machine.campaign.last_round
                    where = (
                        f"in round {reached.round} of {total}" if reached.round else "before the first round"
                    )
                    view.note(f"stopped {where}; the same command goes on from there")
                    return
                if machine.campaign.has_given_up:
                    raise Failed(
                        f"gave up in round {machine.state.round}: no update has counted in "
                        f"{machine.state.voids} rounds in a row. What gateways print says why devices "
                        "declined or were refused; the same command goes on from there"
                    )
                view.note(f"finished: {federation.rounds} rounds; next: fedbac export --state {directory}")


def is_finished(node: Node) -> bool:
    """True when the campaign is over and its last release is built."""
    state = node.machine.state
    return bool(state.phase == "finished" and state.building is None)


class Follow:
    """Tells a view what the cloud's node has come to, after every event."""

    def __init__(self, view: View, node: Node, federation: Federation, link: Callable[[], str]) -> None:
        self._view, self._federation, self._link = view, federation, link
        self._told_link = "connecting"
        self._told_waiting = ""
        lines = node.store.ledger(kind="summary")
        self._last = lines[-1].id if lines else 0
        self._last_restored = node.store.ledger()[-1].id if node.store.ledger() else 0
        if lines:
            view.note(f"going on after round {lines[-1].round}")
            view.campaign(*self._campaign(node, lines[-1].round))

    def __call__(self, node: Node) -> None:
        """See the class."""
        import msgspec

        from fedbac_edge.protocol.messages import RoundSummary

        for line in node.store.ledger(kind="summary", after=self._last):
            self._last = line.id
            self._view.campaign(*self._campaign(node, line.round))
            self._view.summary(msgspec.convert(line.detail, RoundSummary), line.wall)
        for line in node.store.ledger(kind="restored", after=self._last_restored):
            self._last_restored = line.id
            self._view.note(restored(line))
        if self._link() != self._told_link:
            self._told_link = self._link()
            self._view.note(f"broker: {self._told_link}")
        state: CloudState = node.machine.state
        if state.phase == "gathering":
            waiting = missing(state, self._federation)
            if waiting != self._told_waiting:
                self._told_waiting = waiting
                self._view.note(f"waiting for {waiting}")
        else:
            self._view.doing(
                f"round {state.round}, {state.phase}: " + (", ".join(state.collecting.waiting) or "-")
            )

    def _campaign(self, node: Node, round: int) -> tuple[int, int]:
        """Number of the campaign that `round` belongs to, and the rounds before it.

        The evaluation that ends a campaign is told when the state has come to the next one.
        """
        state: CloudState = node.machine.state
        number, before = state.campaign, state.campaign_after
        if before is None:
            before = self._federation.rounds * (number - 1)
        if number > 1 and round <= before:
            return number - 1, max(0, before - self._federation.rounds)
        return number, before + state.unused


def restored(line: LedgerLine) -> str:
    """The ledger's line about a restored cloud, for people."""
    return (
        f"restored from an older backup ({line.detail['why']}): going on from round {line.round} as "
        f"instance {line.subject}; gateways and devices follow"
    )


def missing(state: CloudState, federation: Federation) -> str:
    """Who must still come before a round can begin, in words."""
    from fedbac_edge.protocol.cloud import sites

    absent = []
    for name in sites.names(federation, state):
        site = sites.site(state, name)
        if not site.ready:
            absent.append(f"{name} ({'its devices' if site.online else 'not there'})")
    return ", ".join(absent) or "a first gateway"
