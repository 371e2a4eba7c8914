"""Which federation is on this broker: the retained `spec`, waited for as long as it takes.

Everybody may start first: the broker may not be there yet, and the cloud may not have spoken yet. Whoever
waits says what for, at once and then every half minute.
"""

from __future__ import annotations

import queue
import secrets
import time
from collections.abc import Callable

from broker import topics, wire
from broker.bus import BusEvent, Connected, Delivery, Disconnected, Subscribed
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.protocol.messages import Spec

PATIENCE_S = 1.0
"""Nothing is said about a wait shorter than this."""
REMIND_S = 30.0
SETTLE_S = 0.3
"""Without a name: how long others may follow the first description. A broker sends all at once."""
POLL_S = 0.2
BACK_OFF_S = 0.5


class DiscoveryError(RuntimeError):
    """There is no federation to work with; the message says why and what to do."""


class SeveralFederations(DiscoveryError):
    """No name was given and the broker holds more than one federation."""


class Interrupted(Exception):
    """`stop()` became true before a federation was found."""


def find_spec(
    url: BrokerUrl,
    federation: str | None,
    client_id: str,
    say: Callable[[str], None],
    stop: Callable[[], bool] = lambda: False,
    *,
    timeout: float | None = None,
) -> Spec:
    """The description of `federation`, or of the only one on this broker when the name is None.

    `client_id` begins the name that this short connection uses. `say` is told what is waited for. With a
    `timeout` (seconds) the wait is bounded. Raises DiscoveryError (refused for good, not readable here,
    timeout), SeveralFederations, Interrupted.
    """
    search = _Search(url, federation)
    inbox: queue.SimpleQueue[BusEvent] = queue.SimpleQueue()
    bus = MqttBus(url, f"{client_id}:{secrets.token_hex(4)}", inbox, session_expiry=0, back_off=BACK_OFF_S)
    bus.subscribe(search.filter)
    began = time.monotonic()
    speak_at, asked = began + PATIENCE_S, federation is None
    bus.start()
    try:
        while True:
            now = time.monotonic()
            if stop():
                raise Interrupted
            if (spec := search.answer(now)) is not None:
                return spec
            if timeout is not None and now - began > timeout:
                raise DiscoveryError(f"gave up after {timeout:g} s: {search.waiting}")
            if now >= speak_at and not asked:
                bus.subscribe(search.every)  # to name the others: the name may be misspelt
                speak_at, asked = now + SETTLE_S, True
            elif now >= speak_at:
                say(f"waiting: {search.waiting}")
                speak_at = now + REMIND_S
            try:
                event = inbox.get(timeout=search.patience(now))
            except queue.Empty:
                continue
            search.take(event, time.monotonic())
            if isinstance(event, Delivery):
                bus.acknowledge(event.ticket)
    finally:
        bus.close(1.0)


class _Search:
    """What has been heard so far."""

    def __init__(self, url: BrokerUrl, federation: str | None) -> None:
        self._url, self._wanted = url, federation
        self.every = f"{topics.ROOT}/+/spec"
        self.filter = self.every if federation is None else topics.spec(federation)
        self._link = f"no answer from {url} yet"
        self._found: dict[str, Spec] = {}
        self._unreadable: dict[str, str] = {}
        self._latest = 0.0

    def take(self, event: BusEvent, now: float) -> None:
        """Note what the bus says; raises DiscoveryError when waiting cannot help."""
        match event:
            case Connected():
                self._link = ""
            case Disconnected(reason, final):
                self._link = reason
                if final:
                    raise DiscoveryError(reason)
            case Subscribed(filter, granted=False) if filter == self.filter:
                raise DiscoveryError(
                    f"the broker at {self._url} does not let this client read {filter}: check its access list"
                )
            case Delivery(topic, payload) if payload:
                address = topics.parse(topic)
                if address is not None and address.kind == "spec":
                    self._latest = now
                    self._read(address.federation, payload)

    def _read(self, name: str, payload: bytes) -> None:
        try:
            spec = wire.decode(payload, Spec)
            if spec.federation.name != name:
                raise wire.WireError(f"it describes {spec.federation.name!r}")
        except wire.WireError as error:
            self._found.pop(name, None)
            self._unreadable[name] = str(error)
        else:
            self._unreadable.pop(name, None)
            self._found[name] = spec

    def answer(self, now: float) -> Spec | None:
        """The federation, once it is clear; raises DiscoveryError when it is clear that there is none."""
        if self._wanted is not None:
            self._refuse_unreadable(self._wanted)
            return self._found.get(self._wanted)
        if not self._latest or now - self._latest < SETTLE_S:
            return None
        if len(self._found) > 1:
            raise SeveralFederations(
                f"{self._url} holds several federations ({', '.join(sorted(self._found))}): "
                f"choose one, for example --federation {min(self._found)}; one that is over is cleared with "
                "fedbac broker forget NAME"
            )
        if not self._found and self._unreadable:
            self._refuse_unreadable(min(self._unreadable))
        return next(iter(self._found.values()), None)

    def patience(self, now: float) -> float:
        """Seconds until `answer` may have become clear by mere waiting, or `stop` should be asked."""
        left = self._latest + SETTLE_S - now
        return left + 0.01 if 0 <= left < POLL_S else POLL_S

    def _refuse_unreadable(self, name: str) -> None:
        if name in self._unreadable:
            raise DiscoveryError(
                f"the description of federation {name!r} cannot be read here: {self._unreadable[name]}"
            )

    @property
    def waiting(self) -> str:
        """What is missing, for people."""
        if self._link:
            return self._link
        if self._wanted is None:
            return f"no federation on {self._url} yet; start its cloud (fedbac cloud run)"
        others = sorted(set(self._found) - {self._wanted})
        hint = f"; there is: {', '.join(others)}" if others else ""
        return f"no federation called {self._wanted!r} on {self._url} yet{hint}"
