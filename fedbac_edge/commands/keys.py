"""`fedbac keys`: a certificate authority of one's own, a certificate for the broker and for each client."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import click

from fedbac_edge.commands.failures import Failed, Misconfigured, explained
from fedbac_edge.commands.options import FILE

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names that the broker's certificate always has, for clients on its own machine."""


@click.group()
def keys() -> None:
    """Certificates with which clients and broker know each other (mutual TLS).

    \b
    Example: from nothing to a device that joins over mutual TLS
      fedbac keys init --host broker.local --federation federation.toml
      fedbac broker run --host 0.0.0.0 --federation federation.toml --keys keys
      fedbac-agent join --edge gw1 --name dev1 --data photos/ --broker mqtts://broker.local
          --ca keys/ca.pem --cert keys/devices/gw1/dev1.pem --key keys/devices/gw1/dev1.key
    """


_folder = click.option(
    "--dir", "folder", type=FILE, default=Path("keys"), show_default=True, help="Folder of the keys."
)
_days = click.option("--days", type=click.IntRange(1, 3650), help="How long it is valid.  [default: 397]")


@keys.command()
@_folder
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="Name or IP address by which clients reach the broker.  [default: this machine's name]",
)
@click.option(
    "--federation", "file", type=FILE, help="Issue for every gateway and device on its roster, too."
)
@click.option(
    "--user", "others", multiple=True, help="Issue for this one, too: a gateway, or GATEWAY/DEVICE."
)
def init(folder: Path, hosts: tuple[str, ...], file: Path | None, others: tuple[str, ...]) -> None:
    """Make an authority, the broker's certificate, and those of the cloud and the observer.

    Anyone with the folder's ca.key can issue valid certificates: keep it where you make them.

    \b
    Example:
      fedbac keys init --host broker.local --host 192.168.1.20
    """
    with _explained():
        from broker import access, certificates
        from fedbac_edge.federation_file import reading

        roster = {} if file is None else reading.load(file).gateways
        users = access.users(roster, others)
        certificates.check_names(users)
        certificates.create_authority(folder, [*(hosts or [socket.gethostname()]), *LOCAL])
        for user in users:
            certificates.issue(folder, user)
        click.echo(f"made an authority in {folder}, with certificates for the broker and {len(users)} users")
        click.echo(
            f"keep {certificates.authority_pair(folder).key} safe: it can issue a certificate for any name"
        )
        for gateway in [name for name, devices in roster.items() if not devices]:
            click.echo(
                f"{gateway} lists no devices; for each: fedbac keys issue {gateway}/NAME --dir {folder}"
            )
        if file is None:
            click.echo(f"next: fedbac keys issue gw1 gw1/dev1 --dir {folder}")
        else:
            click.echo(f"next: fedbac broker run --federation {file} --keys {folder}")


@keys.command()
@click.argument("names", nargs=-1, required=True)
@_folder
@_days
def issue(names: tuple[str, ...], folder: Path, days: int | None) -> None:
    """Make a certificate for each NAME: cloud, observer, a gateway, or GATEWAY/DEVICE.

    \b
    Example:
      fedbac keys issue gw1 gw1/dev1
    """
    _issue(names, folder, days, replace=False)


@keys.command()
@click.argument("names", nargs=-1)
@click.option("--broker", is_flag=True, help="The broker's certificate.")
@click.option(
    "--host", "hosts", multiple=True, help="With --broker: its names from now on.  [default: as they are]"
)
@_folder
@_days
def rotate(
    names: tuple[str, ...], broker: bool, hosts: tuple[str, ...], folder: Path, days: int | None
) -> None:
    """Replace the certificates and keys of each NAME, at the same place.

    A running client shows the new one when it connects the next time, and loses nothing.

    \b
    Example:
      fedbac keys rotate gw1/dev1
      fedbac keys rotate --broker
    """
    if not names and not broker:
        raise click.UsageError("give names, or --broker")
    if hosts and not broker:
        raise click.UsageError("--host goes with --broker")
    if broker:
        with _explained():
            from broker import certificates

            if not certificates.server_pair(folder).exists:
                raise Misconfigured(f"there is no broker's certificate in {folder}: fedbac keys init")
            pair = certificates.issue_server(folder, [*hosts, *LOCAL] if hosts else ())
            click.echo(
                f"broker: {pair.certificate}; run fedbac broker config again, then kill -HUP Mosquitto"
            )
    _issue(names, folder, days, replace=True)


def _issue(names: tuple[str, ...], folder: Path, days: int | None, *, replace: bool) -> None:
    with _explained():
        from broker import certificates

        certificates.check_names(names)
        for name in names:
            pair = certificates.issue(folder, name, days or certificates.CLIENT_DAYS, replace=replace)
            click.echo(f"{name}: {pair.certificate} and {pair.key}")


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    with explained():
        try:
            yield
        except ImportError as error:
            raise Failed(str(error)) from error
