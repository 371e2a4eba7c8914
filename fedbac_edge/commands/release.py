"""`fedbac release`: which models the devices that serve were given, and how to give them an earlier one."""

from __future__ import annotations

import json
import queue
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbac_edge.commands.failures import Failed, Misconfigured, explained
from fedbac_edge.commands.options import FILE, address, broker_options, json_option, say_warnings

if TYPE_CHECKING:
    from broker.url import BrokerUrl
    from fedbac_edge.node.store import Store
    from fedbac_edge.protocol.cloud.state import CloudState, Release
    from fedbac_edge.protocol.messages import Order
    from fedbac_edge.settings.federation import Federation
    from fedbac_edge.signing.keys import SigningKey

_STATE = click.option("--state", type=FILE, help="The cloud's state directory.  [default: runs/<federation>]")
_FILE = click.option("--federation", "file", type=FILE, default=Path("federation.toml"), show_default=True)


@click.group()
def release() -> None:
    """Releases: the models that `fedbac-agent serve` answers with.

    \b
    Example:
      fedbac release list
      fedbac release rollback
    """


@release.command("list")
@_FILE
@_STATE
@json_option("One JSON object per line and release.")
def list_(file: Path, state: Path | None, as_json: bool) -> None:
    """Show the latest releases, the newest last. Changes nothing.

    \b
    Example:
      fedbac release list --state runs/orchard
    """
    with explained():
        _, found = _read(_directory(file, state))
        for each in found.releases:
            click.echo(json.dumps(_as_json(each, found)) if as_json else _line(each, found))
        if not found.releases and not as_json:
            click.echo("no release yet")


@release.command()
@click.option("--to", type=click.IntRange(1), help="A release listed as kept.  [default: the one before]")
@_FILE
@_STATE
@broker_options
@click.option("--timeout", type=click.FloatRange(1), default=30.0, show_default=True, help="Seconds.")
def rollback(
    to: int | None,
    file: Path,
    state: Path | None,
    broker: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    timeout: float,
) -> None:
    """Give all devices the model of an earlier release again, as a new release with a higher number.

    Works with the cloud running (it gets a signed order over the broker) or not (this command does it).

    \b
    Example:
      fedbac release rollback
      fedbac release rollback --to 7 --state runs/orchard --broker mqtt://broker.local
    """
    with explained():
        from fedbac_edge.commands.releasing import open_key
        from fedbac_edge.node.runtime import opened_store
        from fedbac_edge.node.store import StoreInUse

        say_warnings()
        directory = _directory(file, state)
        federation, found = _read(directory)
        target = _target(found, to)
        signing = open_key(file if file.is_file() else None, federation, directory, make=False)
        url = address(broker, ca, cert, key)
        order = _order(federation, found, target, signing)
        try:
            with opened_store(directory, "cloud") as store:
                _give(store, federation, found, order, signing, url, timeout)
        except StoreInUse:
            _ask(federation, found, order, signing, url, timeout)
    number = found.release_number + 1
    click.echo(f"release {number} is out: the model of release {target.model} (round {target.round})")


def _directory(file: Path, state: Path | None) -> Path:
    from fedbac_edge.federation_file import reading

    return state or Path("runs") / reading.load(file).name


def _read(directory: Path) -> tuple[Federation, CloudState]:
    from export import from_store
    from fedbac_edge.node.store import Store

    store = Store(from_store.cloud_store(directory), read_only=True)
    try:
        return from_store.read(store)
    finally:
        store.close()


def _target(found: CloudState, to: int | None) -> Release:
    """The release to go back to; raises Misconfigured when it cannot be."""
    from fedbac_edge.protocol.cloud import releasing

    if not found.releases:
        raise Misconfigured("there is no release yet")
    current = found.releases[-1].model
    models = releasing.models_kept(found)
    if to is None:
        to = next((model for model in models if model != current), None)
        if to is None:
            raise Misconfigured("there is only one release: none to go back to")
    target = next((each for each in found.releases if each.number == to), None)
    if target is None or target.model not in models:
        raise Misconfigured(f"the files of release {to} are not kept; {releasing.can_go_to(found)}")
    if target.model == current:
        raise Misconfigured(f"the model of release {to} is the newest already; {releasing.can_go_to(found)}")
    return target


def _order(federation: Federation, found: CloudState, target: Release, signing: SigningKey) -> Order:
    from fedbac_edge.protocol.messages import Order
    from fedbac_edge.signing.manifest import ORDER, RollbackOrder, canonical

    wish = canonical(
        RollbackOrder(
            federation=federation.name,
            instance=found.instance,
            after=found.release_number,
            to=target.number,
        )
    )
    return Order(order=wish, signature=signing.sign(ORDER, wish))


def _give(
    store: Store,
    federation: Federation,
    found: CloudState,
    order: Order,
    signing: SigningKey,
    url: BrokerUrl,
    timeout: float,
) -> None:
    """The cloud is not running: be it, until the broker has the release."""
    import threading

    from broker.mqtt import MqttBus
    from fedbac_edge.node import assemble
    from fedbac_edge.node.runtime import Runtime
    from fedbac_edge.protocol.events import Channel, Received

    node = assemble.cloud(federation, found.instance, store, signer=signing)
    runtime = Runtime(
        store,
        node,
        lambda inbox, will: MqttBus(url, f"fedbac-{federation.name}-cloud", inbox, will),
        until=lambda node: bool(node.machine.state.release_number > found.release_number),
    )
    runtime.tell(Received(Channel("order"), order))
    impatience = threading.Timer(timeout, runtime.stop)
    impatience.daemon = True
    impatience.start()
    try:
        runtime.run()
    finally:
        impatience.cancel()
    if node.machine.state.release_number == found.release_number:
        raise Failed("the order was refused: fedbac status --state shows the cloud's ledger")
    if node.unsent():
        raise Failed(
            f"the release is made, but {url} did not take it within {timeout:g} s ({runtime.link}); "
            "it goes out when the cloud runs again: fedbac cloud run"
        )


def _ask(
    federation: Federation,
    found: CloudState,
    order: Order,
    signing: SigningKey,
    url: BrokerUrl,
    timeout: float,
) -> None:
    """The cloud is running: send it the order, and wait until the release is with the broker."""
    from broker import topics, wire
    from broker.bus import BusEvent, Connected, Delivery, Disconnected
    from broker.mqtt import MqttBus
    from fedbac_edge.protocol.messages import Release
    from fedbac_edge.signing.manifest import MANIFEST, Manifest, Unreadable, read

    inbox: queue.SimpleQueue[BusEvent] = queue.SimpleQueue()
    bus = MqttBus(url, f"fedbac-release-{secrets.token_hex(6)}", inbox, session_expiry=0)
    bus.subscribe(topics.edge_filter(federation.name, "release"))
    bus.publish(topics.cloud_order(federation.name), wire.encode(order))
    bus.start()
    why = "no answer"
    end = time.monotonic() + timeout
    try:
        while (left := end - time.monotonic()) > 0:
            try:
                event = inbox.get(timeout=left)
            except queue.Empty:
                break
            match event:
                case Connected():
                    why = "the cloud did not follow the order: fedbac status --state shows its ledger"
                case Disconnected(reason, final):
                    why = reason
                    if final:
                        break
                case Delivery(_, payload, _, ticket):
                    bus.acknowledge(ticket)
                    try:
                        message = wire.decode(payload, Release)
                        signed = signing.verify(MANIFEST, message.manifest, message.signature)
                        manifest = read(message.manifest, Manifest) if signed else None
                    except (wire.WireError, Unreadable):
                        continue
                    if manifest is not None and manifest.order == (found.founded, found.release_number + 1):
                        return
    finally:
        bus.close(1.0)
    raise Failed(f"no new release within {timeout:g} s: {why}")


def _line(each: Release, found: CloudState) -> str:
    """One release in plain words."""
    from fedbac_edge.protocol.cloud import releasing

    kept = "" if each.model in releasing.models_kept(found) else ", files gone"
    back = f", the model of release {each.model} again" if each.model != each.number else ""
    clusters = "; ".join(
        f"cluster {cluster}: {', '.join(model.sites)}, {model.size / 1000:.0f} kB"
        + ("" if model.accuracy is None else f", hold-out {100 * model.accuracy:.1f} %")
        for cluster, model in sorted(each.models.items())
    )
    newest = "* " if each is found.releases[-1] else "  "
    return f"{newest}release {each.number}  round {each.round}{back}{kept}  {clusters}"


def _as_json(each: Release, found: CloudState) -> dict[str, object]:
    from fedbac_edge.protocol.cloud import releasing

    return {
        "number": each.number,
        "model": each.model,
        "round": each.round,
        "kept": each.model in releasing.models_kept(found),
        "clusters": {
            str(cluster): {
                "sites": list(model.sites),
                "hash": model.hash,
                "bytes": model.size,
                "accuracy": model.accuracy,
                "accuracy_round": model.accuracy_round,
            }
            for cluster, model in sorted(each.models.items())
        },
    }
