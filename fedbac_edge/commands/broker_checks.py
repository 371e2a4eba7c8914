"""What `fedbac doctor` asks a broker: is it there, what does it take, may this user say and read enough."""

from __future__ import annotations

import contextlib
import queue
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from broker import access, certificate_dates, topics, wire
from broker.bus import BusEvent, Connected, Delivery, Disconnected
from broker.chunks import FRAMING, PACKET_LIMIT
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.commands.checks import Check, dates
from fedbac_edge.node import access_probe
from fedbac_edge.protocol.messages import Spec

CONNECT_S = 5.0
"""How long a broker that does not answer is asked again."""
ANSWERED_S = 12.0
"""The bus waits CONNECT_S for TCP and TLS, and again for the broker's word, before it says what is wrong."""
SPEC_S = 2.0
"""A retained message comes at once."""
ANSWER_S = 5.0
"""Nothing else is on this connection; a loaded peer takes a moment."""
MOST_S = 30.0
LEAST_PACKET = 2 * FRAMING


@dataclass
class Conversation:
    """A short connection under a name of its own; it disturbs no other connection of the same user."""

    bus: MqttBus
    inbox: queue.SimpleQueue[BusEvent]
    largest: int | None = None
    """The packet size that the broker announced, in bytes."""

    def until(self, done: Callable[[BusEvent], bool], seconds: float) -> bool:
        """Hand events to `done` until it says True, or False after so many seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                event = self.inbox.get(timeout=left)
            except queue.Empty:
                return False
            if isinstance(event, Delivery):
                self.bus.acknowledge(event.ticket)
            if done(event):
                return True
        return False


@contextlib.contextmanager
def conversation(url: BrokerUrl) -> Iterator[Conversation]:
    """Begin to connect; ends without a trace in the broker."""
    inbox: queue.SimpleQueue[BusEvent] = queue.SimpleQueue()
    name = f"fedbac-doctor-{secrets.token_hex(6)}"
    bus = MqttBus(
        url, name, inbox, session_expiry=0, back_off=0.2, back_off_cap=0.5, connect_timeout=CONNECT_S
    )
    bus.start()
    try:
        yield Conversation(bus, inbox)
    finally:
        bus.close(1.0)


def broker(talk: Conversation, url: BrokerUrl) -> list[Check]:
    """Does it let us in, and how large may a packet be? The first check is not ok when it does not."""
    last: list[Connected | Disconnected] = []

    def answered(event: BusEvent) -> bool:
        if isinstance(event, (Connected, Disconnected)):
            last.append(event)
        return isinstance(event, Connected) or (isinstance(event, Disconnected) and event.final)

    if not talk.until(answered, CONNECT_S) and not last:
        talk.until(lambda event: answered(event) or bool(last), ANSWERED_S - CONNECT_S)
    match last[-1] if last else None:
        case Connected(_, maximum):
            talk.largest = maximum
            return [Check("broker", "ok", f"{url} lets us in, MQTT 5"), _packets(maximum)]
        case Disconnected(reason):
            return [Check("broker", "wrong", reason, _remedy(reason, url))]
        case _:
            return [Check("broker", "wrong", f"{url} does not answer", _remedy("", url))]


def _remedy(reason: str, url: BrokerUrl) -> str:
    if "certificate" in reason:
        return "check --ca, --cert and --key, and that the broker's certificate bears this host's name"
    if "password" in reason or "authorise" in reason:
        return "check user and password in --broker (a '/' in a user is written %2F)"
    if "no broker listens" in reason:
        return f"start it (fedbac broker run --port {url.port}), or give another --broker"
    return f"check host and port, and that no firewall is between: nc -vz {url.host} {url.port}"


def _packets(maximum: int | None) -> Check:
    if maximum is None:
        return Check("packet limit", "ok", f"names none; packets of at most {PACKET_LIMIT:,} bytes are sent")
    if maximum < LEAST_PACKET:
        return Check(
            "packet limit",
            "wrong",
            f"the broker takes {maximum:,} bytes, and {LEAST_PACKET:,} are needed",
            "raise its limit (Mosquitto: max_packet_size 131072)",
        )
    return Check("packet limit", "ok", f"{maximum:,} bytes; larger models and updates are cut to fit")


def broker_certificate(url: BrokerUrl) -> Check:
    """The dates of the certificate that the broker shows."""
    context = url.tls_context()
    assert context is not None
    try:
        with (
            socket.create_connection((url.host, url.port), timeout=CONNECT_S) as plain,
            context.wrap_socket(plain, server_hostname=url.host) as link,
        ):
            shown = link.getpeercert(binary_form=True)
        if not shown:
            raise certificate_dates.NoCertificate("the broker shows no certificate")
        return dates("broker's certificate", certificate_dates.of_der(shown), str(url))
    except ssl.SSLCertVerificationError as error:
        remedy = (
            "check --ca and the host in --broker, and rotate what has expired (fedbac keys rotate --broker)"
        )
        return Check("broker's certificate", "wrong", error.verify_message, remedy)
    except (OSError, certificate_dates.NoCertificate) as error:
        return Check("broker's certificate", "unknown", f"could not be seen ({error})")


def federation(talk: Conversation, name: str | None) -> tuple[Check, Spec | None]:
    """The description of the federation called `name`, or of the only one."""
    filter = f"{topics.ROOT}/+/spec" if name is None else topics.spec(name)
    found: dict[str, Spec] = {}

    def heard(event: BusEvent) -> bool:
        if isinstance(event, Delivery) and event.payload:
            with contextlib.suppress(wire.WireError):
                spec = wire.decode(event.payload, Spec)
                found[spec.federation.name] = spec
        return name in found

    talk.bus.subscribe(filter)
    talk.until(heard, SPEC_S)
    if len(found) == 1:
        (spec,) = found.values()
        gateways = len(spec.federation.gateways)
        described = (
            f"{spec.federation.name}, {spec.federation.method.name}, {gateways} gateways on its roster"
        )
        return Check("federation", "ok", described), spec
    if found:
        several = f"several: {', '.join(sorted(found))}"
        return Check("federation", "unknown", several, f"choose one: --federation {min(found)}"), None
    missing = "none is described here" if name is None else f"{name} is not described here"
    remedy = "start its cloud; if it runs, this user may not read its topics: check the broker's access list"
    return Check("federation", "unknown", missing, remedy), None


def self_test(talk: Conversation, name: str, user: str, spec: Spec | None) -> list[Check]:
    """Try every topic of `user` in the federation `name`; see `selftest`."""
    if user == access.OBSERVER:
        return [_observer(user, spec)]
    gateway, device = access.split(user)
    if spec is not None and (missing := _not_listed(spec, gateway, device)) is not None:
        return [missing]
    plan = access_probe.plan(name, gateway, device, spec.federation.gateways if spec else {})
    denials: list[access_probe.Denial] = []
    test = access_probe.SelfTest(
        user,
        plan,
        lambda topic, token: talk.bus.publish(topic, b"", token=token),
        talk.bus.subscribe,
        talk.bus.unsubscribe,
        denials.append,
        ANSWER_S,
    )
    for topic in plan.answers:
        talk.bus.subscribe(topic)
    began = time.monotonic()
    test.take(Connected(True, None), began)

    def settled(event: BusEvent) -> bool:
        test.take(event, time.monotonic())
        return test.settled

    while not test.settled and time.monotonic() < began + MOST_S:
        talk.until(settled, 0.2)
        test.tick(time.monotonic())
    if denials:
        return [Check("access", "wrong", str(denial), access_probe.remedy(user)) for denial in denials]
    said = f"{user} may publish on its {len(plan.writes)} topics"
    if not plan.answers:
        return [Check("access", "ok", said)]
    if test.unheard:
        found = f"{said}; what it may read could not be tried, since no peer is online to answer"
        return [Check("access", "unknown", found, f"start {'the cloud' if device is None else gateway}")]
    return [Check("access", "ok", f"{said} and read what is sent to it")]


def _not_listed(spec: Spec, gateway: str | None, device: str | None) -> Check | None:
    """A name that this federation has no place for."""
    federation = spec.federation
    if gateway is None or not federation.gateways:
        return None
    if gateway not in federation.gateways:
        known = ", ".join(sorted(federation.gateways))
        return Check("access", "wrong", f"{federation.name} has no gateway {gateway!r}", f"one of: {known}")
    members = federation.gateways[gateway]
    if device is not None and federation.eligibility == "roster" and device not in members:
        found = f"gateway {gateway} of {federation.name} has no device {device!r}"
        return Check("access", "wrong", found, f"one of: {', '.join(members)}")
    return None


def _observer(user: str, spec: Spec | None) -> Check:
    if spec is not None:
        return Check("access", "ok", f"{user} reads the federation")
    return Check("access", "unknown", f"{user} could read nothing yet", access_probe.remedy(user))
