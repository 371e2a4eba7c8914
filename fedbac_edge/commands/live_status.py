"""What the retained topics of a broker say about its federations."""

from __future__ import annotations

import queue
import secrets
import time
from typing import Any

import msgspec

from broker import topics, wire
from broker.bus import BusEvent, Connected, Delivery, Disconnected, Subscribed
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.commands.stored_status import too_long
from fedbac_edge.protocol.messages import (
    CloudStatus,
    DeviceStatus,
    GatewayStatus,
    Release,
    RoundSummary,
    ServingStatus,
    Spec,
)
from fedbac_edge.signing.manifest import Manifest, Unreadable, read
from fedbac_edge.terminal import narrow, rounds

NO_ANSWER = "no answer"
QUIET_S = 0.4
"""Retained messages come in one go: so long without one means that was all."""

RETAINED = (
    "spec",
    "cloud/status",
    "edge/+/status",
    "edge/+/release",
    "edge/+/device/+/status",
    "edge/+/device/+/serving",
)
"""Topics that tell where a federation stands, below its root."""


class Unreachable(OSError):
    """No answer from the broker; the message says why."""


def ask(url: BrokerUrl, federation: str | None, timeout: float) -> list[dict[str, Any]]:
    """Every federation known to the broker, or the one named, in name order. Raises Unreachable."""
    inbox: queue.SimpleQueue[BusEvent] = queue.SimpleQueue()
    bus = MqttBus(url, f"fedbac-status-{secrets.token_hex(6)}", inbox, session_expiry=0, receive_maximum=100)
    root = f"{topics.ROOT}/{federation or '+'}"
    filters = [f"{root}/{rest}" for rest in RETAINED]
    for filter in filters:
        bus.subscribe(filter)
    bus.start()
    try:
        return _assemble(_collect(bus, inbox, len(filters), timeout, str(url)))
    finally:
        bus.close(1.0)


def _collect(
    bus: MqttBus, inbox: queue.SimpleQueue[BusEvent], expected: int, timeout: float, broker: str
) -> dict[str, bytes]:
    """Topic -> retained payload, until it has been quiet or the time is over."""
    retained: dict[str, bytes] = {}
    why, connected, answered = NO_ANSWER, False, 0
    end = time.monotonic() + timeout
    while (left := end - time.monotonic()) > 0:
        try:
            event = inbox.get(timeout=min(left, QUIET_S) if answered >= expected else left)
        except queue.Empty:
            break
        match event:
            case Connected():
                connected = True
            case Disconnected(reason, final):
                why = reason
                if final:
                    break
            case Subscribed(filter, granted):
                answered += 1
                if not granted:
                    every = filter.startswith(f"{topics.ROOT}/+/")
                    remedy = "name the federation with --federation, and " if every else ""
                    raise Unreachable(
                        f"{broker} refuses the subscription {filter}: {remedy}check its access list "
                        f"(the user observer may read all of one federation)"
                    )
            case Delivery(topic, payload, _, ticket):
                bus.acknowledge(ticket)
                retained[topic] = payload
    if not connected:
        raise Unreachable(f"{broker} cannot be asked: {why}{_remedy(why)}")
    return retained


def _remedy(why: str) -> str:
    """What to do about a broker that is not there; one that turned us away has said itself what is wrong."""
    if why == NO_ANSWER or "no broker listens" in why:
        return "; start it (fedbac broker run), or say where it is with --broker"
    return "; say where it is with --broker" if "has no address" in why else ""


def _assemble(retained: dict[str, bytes]) -> list[dict[str, Any]]:
    federations: dict[str, dict[str, Any]] = {}
    for topic, payload in sorted(retained.items()):
        place = topics.parse(topic)
        if place is None or not payload:
            continue
        found = federations.setdefault(
            place.federation, {"federation": place.federation, "spec": None, "cloud": None, "gateways": {}}
        )
        try:
            message = wire.decode(
                payload, Spec, CloudStatus, GatewayStatus, DeviceStatus, Release, ServingStatus
            )
            fields = msgspec.to_builtins(
                read(message.manifest, Manifest) if isinstance(message, Release) else message
            )
        except (wire.WireError, Unreadable) as error:
            found.setdefault("unreadable", {})[topic] = str(error)
            continue
        if place.gateway:
            gateway = found["gateways"].setdefault(
                place.gateway, {"status": None, "release": None, "devices": {}, "serving": {}}
            )
            if place.device:
                gateway["serving" if place.kind == "serving" else "devices"][place.device] = fields
            else:
                gateway["release" if place.kind == "release" else "status"] = fields
        else:
            found["spec" if place.kind == "spec" else "cloud"] = fields
    return list(federations.values())


def show(found: dict[str, Any]) -> list[str]:
    """One federation in plain lines."""
    lines = [f"federation {found['federation']}"]
    spec, cloud = found["spec"], found["cloud"]
    if spec is not None:
        method = spec["federation"]["method"]["name"]
        lines.append(f"  {method}, instance {spec['instance']}, software {spec['software']}")
    if cloud is None:
        lines.append("  cloud: never seen")
    else:
        state = "finished" if is_finished(cloud) else cloud["state"]
        lines.append(f"  cloud: {state}, round {cloud['round']} of {cloud['rounds']}")
        if cloud["last"] is not None:
            last = msgspec.convert(cloud["last"], RoundSummary)
            lines += rounds.RoundTable(narrow.terminal_width(), "  ").lines(last)
    for name, gateway in found["gateways"].items():
        status = gateway["status"]
        if status is None:
            lines.append(f"  gateway {name}: never seen")
        else:
            ready = "" if status["state"] == "offline" else ", ready" if status["ready"] else ", not ready"
            online, devices = count_devices(gateway)
            lines.append(f"  gateway {name}: {status['state']}{ready}, {online} of {devices} devices online")
        if status is not None:
            lines += [f"    {name}: {too_long(times)}" for name, times in status["refused"].items()]
        lines += _releases(gateway)
        for device, said in gateway["devices"].items():
            lines.append(
                f"    {device}: {said['state']}, {said['samples']} samples, {said['holdout']} held out"
                + (f", {said['hardware']}" if said["hardware"] else "")
            )
    lines += [f"  unreadable: {topic}: {why}" for topic, why in found.get("unreadable", {}).items()]
    return lines


def is_finished(cloud: dict[str, Any]) -> bool:
    """A cloud that ends after its last round says "offline", as one that was stopped does."""
    last = cloud["last"]
    if cloud["state"] != "offline" or last is None:
        return bool(cloud["state"] == "finished")
    return bool(cloud["round"] == cloud["rounds"] == last["round"] and last["phase"] == "evaluate")


def count_devices(gateway: dict[str, Any]) -> tuple[int, int]:
    """(online, known) devices of a gateway, by their own word.

    The gateway's own count is older once it is offline. It counts where the devices cannot be heard: behind a
    bridge what they say stays at the site.
    """
    status, said = gateway["status"], gateway["devices"]
    if not said:
        return (0 if status["state"] == "offline" else status["online"]), status["devices"]
    return sum(each["state"] != "offline" for each in said.values()), max(len(said), status["devices"])


def _releases(gateway: dict[str, Any]) -> list[str]:
    """What a site was given, and what its devices made of it. Signatures are checked by devices, not here."""
    lines = []
    given = gateway["release"]
    if given is not None:
        back = f" (the model of release {given['model']} again)" if given["model"] != given["number"] else ""
        accuracy = "" if given["accuracy"] is None else f", hold-out {100 * given['accuracy']:.1f} %"
        lines.append(
            f"    release {given['number']}{back}, cluster {given['cluster']}, round {given['round']}"
            f"{accuracy}"
        )
    for device, said in gateway["serving"].items():
        model = f" release {said['number']}" if said["number"] else ""
        doing = f", {said['doing']}" if said["doing"] else ""
        refused = f"; refused: {said['refused']}" if said["refused"] else ""
        lines.append(f"    {device}: {said['state']}{model}{doing}{refused}")
    return lines
