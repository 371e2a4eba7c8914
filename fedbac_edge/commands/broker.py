"""`fedbac broker`: one in the foreground, the configuration for an installed one, what one should forget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbac_edge.commands.failures import Failed, Misconfigured, explained
from fedbac_edge.commands.options import FILE, address, broker_options
from fedbac_edge.host import output, signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.mosquitto import Tls


@click.group()
def broker() -> None:
    """The MQTT broker in between.

    \b
    Example:
      fedbac broker run --port 1883
      fedbac broker config --federation federation.toml > mosquitto.conf
      fedbac broker forget orchard
    """


def _listener_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--insecure", is_flag=True, help="Allow plain text or an open broker where others can reach it."
        ),
        click.option("--user", "others", multiple=True, help="Mosquitto: a user beyond the roster."),
        click.option("--keys", type=FILE, help="Mosquitto: certificates of fedbac keys, not passwords."),
        click.option("--require-certificate", is_flag=True, help="Every client shows one signed by --ca."),
        click.option("--key", type=FILE, help="Key of --cert (PEM)."),
        click.option("--cert", type=FILE, help="The broker's certificate (PEM): TLS."),
        click.option("--ca", type=FILE, help="Authority of the certificates (PEM)."),
        click.option("--acl-file", type=FILE, help="Mosquitto: read and write rights per user and topic."),
        click.option("--password-file", type=FILE, help="Mosquitto: made with mosquitto_passwd."),
        click.option("--port", type=click.IntRange(1, 65535), help="[default: 1883, with certificates 8883]"),
        click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    ):
        function = option(function)
    return function


@broker.command()
@click.option(
    "--kind",
    type=click.Choice(["auto", "mosquitto", "embedded"]),
    default="auto",
    show_default=True,
    help="auto: Mosquitto when it is installed.",
)
@click.option("--state", type=FILE, default=Path("runs/broker"), show_default=True, help="Its files and log.")
@click.option("--federation", "file", type=FILE, help="Mosquitto: let in only the users of this roster.")
@_listener_options
def run(
    kind: Any,
    state: Path,
    file: Path | None,
    host: str,
    port: int | None,
    insecure: bool,
    keys: Path | None,
    others: tuple[str, ...],
    **options: Any,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C. The default is for this machine alone.

    \b
    Example:
      fedbac broker run
      fedbac broker run --host 0.0.0.0 --federation federation.toml --keys keys
    """
    output.not_needed()
    with signals.stopping() as stop, explained():
        from broker import run as brokers

        given = _mosquitto_options(**options)
        if file is not None:
            given.update(_access(state, file, keys, others, given), **_sized_for(file))
        elif keys is not None or others:
            raise Misconfigured(
                "--keys and --user need --federation: its roster sets the rights of each user"
            )
        brokers.run(kind, host, port or _port(given), state, stop, insecure=insecure, **given)


@broker.command()
@click.option("--federation", "file", type=FILE, help="Size the queues for it; its roster is let in.")
@click.option("--out", type=FILE, help="Write it to this folder, with access list and passwords.")
@click.option("--persistence", type=FILE, help="Keep messages over a restart in this folder.")
@click.option(
    "--bridge",
    metavar="SITE",
    help="Print the section that connects the broker of this site to the cloud's, nothing else.",
)
@click.option(
    "--to",
    metavar="URL",
    help="The cloud's broker for --bridge; user, password, --ca, --cert and --key are the gateway's there.",
)
@_listener_options
def config(
    file: Path | None,
    out: Path | None,
    persistence: Path | None,
    bridge: str | None,
    to: str | None,
    host: str,
    port: int | None,
    insecure: bool,
    keys: Path | None,
    others: tuple[str, ...],
    **options: Any,
) -> None:
    """Print a commented mosquitto.conf, or write it with the files that set each user's rights.

    \b
    Example:
      fedbac broker config --federation federation.toml > mosquitto.conf
      fedbac broker config --federation federation.toml --out mosquitto --host 0.0.0.0 --keys keys
      mosquitto -c mosquitto/mosquitto.conf
      fedbac broker config --federation federation.toml --bridge gw1 --to mqtts://broker.example.org \\
        --ca ca.pem --cert gw1.pem --key gw1.key >> mosquitto.conf
    """
    if bridge is not None or to is not None:
        with explained():
            click.echo(_bridge(file, bridge, to, options), nl=False)
        return
    with explained():
        from broker import secret_files
        from broker.mosquitto import check_exposure, configuration
        from fedbac_edge.commands import access

        given = _mosquitto_options(**options)
        if out is not None:
            if file is None:
                raise Misconfigured("--out needs --federation: its roster sets the rights of each user")
            if not insecure:  # before anything is written
                check_exposure(host, closed=True, encrypted=keys is not None or "tls" in given)
            given.update(_access(out, file, keys, others, given))
        elif keys is not None or others:
            raise Misconfigured("--keys and --user need --out, a folder for what they make")
        port = port or _port(given)
        sized = {} if file is None else _sized_for(file)
        text = configuration(host, port, persistence_dir=persistence, insecure=insecure, **given, **sized)
        if out is not None:
            secret_files.write(out / "mosquitto.conf", text.encode())
            text = "\n".join(access.explain(out, given, host, port)) + "\n"
    click.echo(text, nl=False)


@broker.command()
@click.argument("name")
@broker_options
@click.option("--force", is_flag=True, help="Clear it even if its cloud says that it is online.")
@click.option("--timeout", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Seconds.")
def forget(
    name: str,
    broker: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    force: bool,
    timeout: float,
) -> None:
    """Clear every retained topic of the federation NAME, which is over, so that no process finds it any more.

    Stores are not touched: a cloud, gateway or device that runs, or is started again, publishes anew.

    \b
    Example:
      fedbac broker forget orchard --broker mqtt://broker.local
    """
    with explained():
        from broker.topics import ROOT, check_name
        from fedbac_edge.commands.forgetting import Conversation

        check_name(name, "federation")
        url = address(broker, ca, cert, key)
        with Conversation(url, f"{ROOT}/{name}/#", timeout) as talk:
            found = talk.remains()
            if not found.names:
                raise Failed(f"the broker at {url} holds nothing of a federation {name!r}")
            if found.cloud and not force:
                raise Failed(
                    f"the cloud of {name} is online: stop it first, or give --force if it is known to be gone"
                )
            talk.clear(found.names)
        click.echo(f"cleared {len(found.names)} retained topics of {name} from {url}")
        if found.online:
            click.echo(
                f"still online, so they may publish again: {', '.join(sorted(found.online))}", err=True
            )


def _bridge(file: Path | None, site: str | None, to: str | None, options: dict[str, Any]) -> str:
    """See `bridges.section`; only the files of TLS are taken from `options`."""
    from broker.bridges import section
    from broker.url import BrokerUrl
    from fedbac_edge.federation_file import reading
    from fedbac_edge.settings.membership import gateway_missing

    if file is None or site is None or to is None:
        raise Misconfigured(
            "a bridge needs --federation FILE, --bridge SITE and --to URL of the cloud's broker"
        )
    federation = reading.load(file)
    if missing := gateway_missing(federation, site):
        raise Misconfigured(missing)
    url = BrokerUrl.parse(to, ca=options["ca"], certificate=options["cert"], key=options["key"])
    return section(federation.name, site, url)


def _access(
    folder: Path, file: Path, keys: Path | None, others: tuple[str, ...], given: dict[str, Any]
) -> dict[str, Any]:
    """Write each user's rights; see `access.prepare`."""
    from fedbac_edge.commands import access
    from fedbac_edge.federation_file import reading

    if "acl_file" in given or "password_file" in given:
        raise Misconfigured(
            "access list and passwords are written for the roster: leave out the files of others"
        )
    return access.prepare(folder, reading.load(file), others, keys, "tls" in given)


def _port(given: dict[str, Any]) -> int:
    return 8883 if given.get("tls") is not None else 1883


def _mosquitto_options(
    password_file: Path | None,
    acl_file: Path | None,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    require_certificate: bool,
) -> dict[str, Any]:
    """Only what was given: the embedded broker knows none of these."""
    given: dict[str, Any] = {}
    for name, path in (("password_file", password_file), ("acl_file", acl_file)):
        if path is not None:
            given[name] = _there(path)
    tls = _tls(ca, cert, key, require_certificate)
    return given if tls is None else {**given, "tls": tls}


def _tls(ca: Path | None, cert: Path | None, key: Path | None, require_certificate: bool) -> Tls | None:
    from broker.mosquitto import Tls

    if ca is None and cert is None and key is None and not require_certificate:
        return None
    if ca is None or cert is None or key is None:
        raise Misconfigured("TLS needs three files: --ca, --cert and --key")
    return Tls(_there(ca), _there(cert), _there(key), require_certificate)


def _there(path: Path) -> Path:
    if not path.is_file():
        raise Misconfigured(f"there is no file {path}")
    return path.resolve()


def _sized_for(file: Path) -> dict[str, Any]:
    """Room for a round and an evaluation of the largest site, for a client that is away meanwhile."""
    from broker.chunks import chunk_count
    from broker.mosquitto import MAX_PACKET
    from fedbac_edge.federation_file import reading
    from fedbac_edge.methods import method
    from fedbac_edge.models.catalog import architecture, float_count

    federation = reading.load(file)
    model = federation.model
    weights = 4 * float_count(architecture(model.architecture, model.input, len(model.classes)))
    parts = len(method(federation).parts())
    devices = max([100, *map(len, federation.gateways.values())])
    return {"max_queued_messages": max(20_000, 4 * chunk_count(weights, MAX_PACKET) * (parts + devices))}
