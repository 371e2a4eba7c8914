"""`fedbac device`: what an operator does about one device."""

from __future__ import annotations

from pathlib import Path

import click

from fedbac_edge.commands.failures import Failed, Misconfigured, explained
from fedbac_edge.commands.options import address, broker_options


@click.group()
def device() -> None:
    """One device of a federation.

    \b
    Example:
      fedbac device forget kitchen
    """


@device.command()
@click.argument("name")
@broker_options
@click.option("--federation", help="Its federation.  [default: the one that knows the device]")
@click.option("--edge", help="Its gateway.  [default: the one that knows the device]")
@click.option("--force", is_flag=True, help="Even when it says that it is online.")
@click.option("--timeout", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Seconds.")
def forget(
    name: str,
    broker: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    federation: str | None,
    edge: str | None,
    force: bool,
    timeout: float,
) -> None:
    """Clear what the broker keeps of the device NAME; its gateway then drops all that it learned about it.

    For a device that is gone for good. Where federation.toml lists it, take it out there first: a listed
    device is waited for. A device of this name that joins later is a new one.

    \b
    Example:
      fedbac device forget kitchen --broker mqtt://broker.local
    """
    with explained():
        from broker import topics, wire
        from fedbac_edge.commands.forgetting import Conversation
        from fedbac_edge.protocol.messages import Forgotten

        topics.check_name(name, "device")
        for given, what in ((federation, "federation"), (edge, "gateway")):
            if given is not None:
                topics.check_name(given, what)
        url = address(broker, ca, cert, key)
        where = f"{topics.ROOT}/{federation or '+'}/edge/{edge or '+'}/device/{name}/+"
        with Conversation(url, where, timeout) as talk:
            found = talk.remains()
            if not found.names:
                raise Failed(
                    f"the broker at {url} holds nothing of a device {name!r}; fedbac status lists those that "
                    "there are, and an access list hides them from other users than the cloud's"
                )
            places = {
                (place.federation, place.gateway or "")
                for place in map(topics.parse, found.names)
                if place is not None
            }
            if len(places) > 1:
                listed = ", ".join(f"--federation {a} --edge {b}" for a, b in sorted(places))
                raise Misconfigured(f"there are several devices {name!r}: choose one ({listed})")
            if found.online and not force:
                raise Failed(f"{name} is online: stop it first, or give --force if it is known to be gone")
            (home, gateway), *_ = places
            # Said first: an empty message alone tells a gateway nothing, devices test their access with such.
            talk.tell(topics.device(home, gateway, name, "status"), wire.encode(Forgotten()))
            talk.clear(found.names)
        click.echo(
            f"cleared {len(found.names)} retained topics of {name} at {gateway} in {home}; a gateway that "
            "runs forgets it now"
        )
