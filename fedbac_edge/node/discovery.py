"""Which federation is on this broker: the retained `spec`, waited for as long as it takes.

Any role may start first: the broker may not be there yet, the cloud may not have spoken yet, and it may not
have the newcomer on its list yet. A waiting process says what for, at once and then every half minute. What
cannot be read is waited out too: a stranger can write there, and the cloud then puts its own back.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import time
from collections.abc import Callable

from broker import topics, wire
from broker.bus import BusEvent, Connected, Delivery, Disconnected, Subscribed
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.protocol.messages import CloudStatus, Spec
from fedbac_edge.settings.federation import Federation

PATIENCE_S = 1.0
"""Nothing is said about a wait shorter than this."""
REMIND_S = 30.0
SETTLE_S = 0.3
"""Without a name: how long others may follow the first description. A broker sends all at once."""
POLL_S = 0.2
CLOUDS = f"{topics.ROOT}/+/cloud/status"
"""Where clouds say whether they are there."""
BACK_OFF_S = 0.5


OFFLINE = "offline"
"""What a cloud's will says; one that has never spoken counts as this, too."""


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
    missing: Callable[[Federation], str] = lambda federation: "",
    timeout: float | None = None,
) -> Spec:
    """The description of `federation`, or of the only one on this broker when the name is None.

    `client_id` begins the name that this short connection uses. `say` is told what is waited for. `missing`
    says why there is no place for the caller in a federation (""); it is waited for. Without a name one whose
    cloud is there goes before those that say that theirs is not. With a `timeout` (seconds) the wait is
    bounded. Raises DiscoveryError (refused for good, timeout), SeveralFederations, Interrupted.
    """
    search = _Search(url, federation, missing)
    inbox: queue.SimpleQueue[BusEvent] = queue.SimpleQueue()
    bus = MqttBus(url, f"{client_id}:{secrets.token_hex(4)}", inbox, session_expiry=0, back_off=BACK_OFF_S)
    bus.subscribe(search.filter)
    if federation is None:
        bus.subscribe(CLOUDS)
    began = time.monotonic()
    speak_at, asked = began + PATIENCE_S, federation is None
    said: set[str] = set()
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
            elif now >= speak_at or (said and search.waiting not in said):  # news are said at once
                if search.waiting:
                    said.add(search.waiting)
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

    def __init__(self, url: BrokerUrl, federation: str | None, missing: Callable[[Federation], str]) -> None:
        self._url, self._wanted, self._missing = url, federation, missing
        self.every = f"{topics.ROOT}/+/spec"
        self.filter = self.every if federation is None else topics.spec(federation)
        self._link = f"no answer from {url} yet"
        self._found: dict[str, Spec] = {}
        self._unreadable: dict[str, str] = {}
        self._clouds: dict[str, str] = {}
        """Federation -> what its cloud last said that it does."""
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
                elif address is not None and address.kind == "status" and address.gateway is None:
                    with contextlib.suppress(wire.WireError):
                        self._clouds[address.federation] = wire.decode(payload, CloudStatus).state
            case Delivery(topic):  # cleared: that federation is over
                address = topics.parse(topic)
                if address is not None and address.kind == "spec":
                    self._found.pop(address.federation, None)
                    self._unreadable.pop(address.federation, None)

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
        """The federation, once it is clear and has a place; raises SeveralFederations."""
        places = {name: spec for name, spec in self._found.items() if not self._missing(spec.federation)}
        if self._wanted is not None:
            return places.get(self._wanted)
        if not self._latest or now - self._latest < SETTLE_S:
            return None
        living = [name for name in places if self._clouds.get(name, OFFLINE) != OFFLINE]
        if len(living) == 1:
            return places[living[0]]
        if len(places) > 1:
            raise SeveralFederations(
                f"{self._url} holds several federations ({', '.join(sorted(places))}): "
                f"choose one, for example --federation {min(places)}; one that is over is cleared with "
                "fedbac broker forget NAME"
            )
        return next(iter(places.values()), None)

    def patience(self, now: float) -> float:
        """Seconds until `answer` may have become clear by mere waiting, or `stop` should be asked."""
        left = self._latest + SETTLE_S - now
        return left + 0.01 if 0 <= left < POLL_S else POLL_S

    @property
    def waiting(self) -> str:
        """What is missing, for people; "" while others are heard out."""
        if self._link:
            return self._link
        name = self._wanted if self._wanted is not None else min(self._unreadable, default="")
        if name in self._unreadable:
            return (
                f"the description of federation {name!r} cannot be read here: {self._unreadable[name]}; "
                "its cloud puts its own back when a stranger has written there, and a newer cloud's needs "
                "newer software here"
            )
        looked_at = self._found.values() if self._wanted is None else [self._found.get(self._wanted)]
        if reasons := [self._missing(spec.federation) for spec in looked_at if spec is not None]:
            return "; ".join(reasons) if all(reasons) else ""
        if self._wanted is None:
            return f"no federation on {self._url} yet; start its cloud (fedbac cloud run){self._or_access}"
        others = sorted(set(self._found) - {self._wanted})
        hint = f"; there is: {', '.join(others)}" if others else ""
        return f"no federation called {self._wanted!r} on {self._url} yet{hint}{self._or_access}"

    @property
    def _or_access(self) -> str:
        """A broker hides from a user that is not in its access list, without a word, what others can read."""
        if self._url.certificate is not None:
            who = f"the name in {self._url.certificate}"
        elif self._url.user is not None:
            who = f"the user {self._url.user}"
        else:
            return ""
        return f"; if it runs, {who} is not in the broker's access list: fedbac doctor --as tells"
