"""What `fedbac broker config --out` and `fedbac broker run --federation` do: access by user for a roster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from fedbac_edge.commands.failures import Misconfigured

if TYPE_CHECKING:
    from fedbac_edge.settings.federation import Federation


def prepare(
    folder: Path, federation: Federation, others: Sequence[str], keys: Path | None, tls: bool
) -> dict[str, Any]:
    """Write access list and passwords, or with `keys` certificates; options of `mosquitto.configuration`.

    `others` are users beyond the roster; `tls` tells that the broker has certificates of another source.
    """
    from broker import access, access_files

    users = access.users(federation.gateways, others)
    listed = {access.split(user)[0] for user in users if "/" in user}
    for gateway in federation.gateways:
        if gateway not in listed:
            click.echo(
                f"{gateway} lists no devices, so none may join there: list them under [gateways], or give "
                f"them with --user {gateway}/NAME",
                err=True,
            )
    options = access_files.write_access_list(folder, federation.name, users)
    if keys is not None:
        return {**options, **_certificates(folder, keys, tls)}
    return {**options, **access_files.write_passwords(folder, users)}


def _certificates(folder: Path, keys: Path, tls: bool) -> dict[str, Any]:
    from broker import access_files

    if tls:
        raise Misconfigured("--keys brings its own certificates: leave out --ca, --cert and --key")
    files = [keys / name for name in ("ca.pem", "server.pem", "server.key")]
    for file in files:
        if not file.is_file():
            raise Misconfigured(f"there is no {file}: fedbac keys init --dir {keys} --host NAME makes it")
    return access_files.copy_certificates(folder, *files)


def explain(folder: Path, options: dict[str, Any], host: str, port: int) -> list[str]:
    """Where things lie and what to do with them; no secret among it."""
    from broker.mosquitto import is_loopback

    folder = folder.resolve()
    scheme = "mqtt" if options.get("tls") is None else "mqtts"
    place = f"{host if is_loopback(host) else 'HOST'}:{port}"
    lines = [f"wrote {folder / 'mosquitto.conf'} and its access list"]
    if "password_file" in options:
        user = quote("gw1/dev1", safe="")
        lines += [
            f"passwords: {folder / 'users'}, a file for each user, readable by you alone",
            f"a client is let in with its own: {scheme}://{user}:PASSWORD@{place}",
        ]
    else:
        lines += [
            f"a client is let in with its certificate: {scheme}://{place} --ca ca.pem --cert ... --key ..."
        ]
    lines += [
        f"start it: mosquitto -c {folder / 'mosquitto.conf'}",
        f"when it runs as user mosquitto: chown mosquitto {folder} {' '.join(map(str, _its_files(folder)))}",
        "after a change: run this again, then kill -HUP its process; clients stay connected",
    ]
    return lines


def _its_files(folder: Path) -> list[Path]:
    names = ("mosquitto.conf", "acl", "passwords", "ca.pem", "server.pem", "server.key")
    return [folder / name for name in names if (folder / name).exists()]
