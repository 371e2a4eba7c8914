"""Does the broker let this client say and hear all that it must? Tried on the topics themselves.

An *empty* message carries nothing; every receiver ignores it. So a client sends one on each topic of its
own: MQTT 5 answers a denied one with "not authorized". What may not be read cannot be seen from here, since
Mosquitto grants every subscription and then stays silent. So the hearer of an empty message on a `reply`
topic answers with empty ones on `task` and `receipt` beside it: the gateway to its devices, the cloud to its
gateways. What of this does not come while that peer says that it is online, is denied to one of the two.

The runtime does this once, when a process comes up; `fedbac doctor` does it for any user at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from broker import access, topics, wire
from broker.bus import BusEvent, Connected, Delivery, Disconnected, Published, Subscribed
from fedbac_edge.protocol.messages import CloudStatus, GatewayStatus

ANSWER_S = 20.0
"""When for so long nothing at all has come, an answer is missing. One packet at 10 KB/s takes 12 s."""

MOST_OPEN = 10_000
"""Empty messages that the broker has not answered; more are not sent. A peer that misses one asks again."""

Verb = Literal["publish on", "read"]


@dataclass(frozen=True)
class Denial:
    """`user` lacks a right on `topic` that it needs; `why` is the broker's word, or how it was noticed."""

    user: str
    verb: Verb
    topic: str
    why: str

    def __str__(self) -> str:
        return f"the broker does not let {self.user} {self.verb} {self.topic}: {self.why}"


def remedy(user: str) -> str:
    """What to do about a denial, for people."""
    return (
        f"check its access list and that this client is let in as {user!r} "
        f"(fedbac broker config --federation ... --out ... writes both)"
    )


@dataclass(frozen=True)
class Plan:
    """What one user tries.

    Attributes:
        writes: topics that get an empty message; they include the `reply` that asks for an answer.
        answers: topics on which the answer must come; empty for the cloud, which no peer answers.
        peer: retained status of the answering peer; empty like `answers`.

    """

    writes: tuple[str, ...]
    answers: tuple[str, ...] = ()
    peer: str = ""


def plan(
    federation: str,
    gateway: str | None,
    device: str | None,
    roster: Mapping[str, Sequence[str]] | None = None,
) -> Plan:
    """The plan of a device, a gateway, or (no names) the cloud; the roster tells the peers of the others."""
    roster = roster or {}
    if gateway is None:
        own = [
            topics.spec(federation),
            topics.cloud_status(federation),
            topics.model(federation, "self-test"),
            topics.blob(federation, "0" * 64, 0),
        ]
        below = [topics.edge(federation, name, leaf) for name in roster for leaf in access.DOWN]
        return Plan((*own, *below))
    if device is None:
        members = roster.get(gateway, ())
        return Plan(
            (
                *(topics.edge(federation, gateway, leaf) for leaf in access.UP),
                *(topics.device(federation, gateway, name, leaf) for name in members for leaf in access.DOWN),
            ),
            tuple(topics.edge(federation, gateway, leaf) for leaf in access.DOWN),
            topics.cloud_status(federation),
        )
    return Plan(
        tuple(topics.device(federation, gateway, device, leaf) for leaf in access.UP),
        tuple(topics.device(federation, gateway, device, leaf) for leaf in access.DOWN),
        topics.edge(federation, gateway, "status"),
    )


def plan_of(will: str, hears: Sequence[str]) -> Plan:
    """The plan of a process with its will on topic `will` and subscriptions to the filters `hears`."""
    own = topics.parse(will)
    if own is None or own.kind != "status":
        return Plan((will,))
    whole = plan(own.federation, own.gateway, own.device)
    return whole if set(whole.answers) <= set(hears) else Plan(whole.writes)


def answers_to(topic: str) -> tuple[str, ...]:
    """Topics on which the hearer of an empty message on `topic` answers: beside a `reply`, nothing else."""
    address = topics.parse(topic)
    if address is None or address.kind != "reply" or address.gateway is None:
        return ()
    if address.device is None:
        return tuple(topics.edge(address.federation, address.gateway, leaf) for leaf in access.DOWN)
    return tuple(
        topics.device(address.federation, address.gateway, address.device, leaf) for leaf in access.DOWN
    )


class SelfTest:
    """The test of one client over its own bus; also answers the tests of others.

    Args:
        user: as in `broker.access`, for sentences.
        plan: what to try, once the link is up.
        publish: sends an empty, unretained message with this token (negative: no other sender has those).
        subscribe, unsubscribe: of the bus; only the peer's status is asked for here.
        deny: told every denial, each once.
        patience: seconds; see ANSWER_S.

    """

    def __init__(
        self,
        user: str,
        plan: Plan,
        publish: Callable[[str, int], None],
        subscribe: Callable[[str], None],
        unsubscribe: Callable[[str], None],
        deny: Callable[[Denial], None],
        patience: float = ANSWER_S,
    ) -> None:
        self._user, self._plan, self._patience = user, plan, patience
        self._publish, self._subscribe, self._unsubscribe, self._deny = publish, subscribe, unsubscribe, deny
        self._token = 0
        self._topics: dict[int, str] = {}
        """Token -> topic of what the broker has not answered yet."""
        self._open: set[str] = set()
        """These topics."""
        self._begun = False
        self._missing = set(plan.answers)
        self._peer_online = False
        self._answer_by: float | None = None
        self._told: set[tuple[Verb, str]] = set()

    @property
    def settled(self) -> bool:
        """True when everything is known that can be known while the peer is as it is."""
        return self._begun and not self._topics and (not self._missing or self._answer_by is None)

    @property
    def unheard(self) -> bool:
        """True when reading could not be judged: no answer, and the peer is not there to give one."""
        return bool(self._missing) and not any(verb == "read" for verb, _ in self._told)

    def due(self) -> float | None:
        """When `tick` has something to do."""
        return self._answer_by

    def tick(self, now: float) -> None:
        """Judge an answer that is overdue. Silence proves something only when a peer could speak."""
        if self._answer_by is None or now < self._answer_by:
            return
        self._answer_by = None
        if self._peer_online or self._missing != set(self._plan.answers):
            self._unsubscribe(self._plan.peer)
            for topic in self._plan.answers:
                if topic in self._missing:
                    self.denied("read", topic, "nothing comes there, and the sender says that it is online")

    def take(self, event: BusEvent, now: float) -> bool:
        """Look at what the bus says; True when it concerned nothing else."""
        if self._answer_by is not None:
            self._answer_by = now + self._patience
        match event:
            case Connected():
                self._connected(now)
            case Disconnected():
                self._answer_by = None
            case Published(token, refused) if token < 0:
                topic = self._topics.pop(token, "")
                self._open.discard(topic)
                if refused and topic:
                    self.denied("publish on", topic, refused)
                return True
            case Subscribed(filter, granted=False):
                self.denied("read", filter, "the broker refused the subscription")
            case Delivery(topic, b"") if _carries_tests(topic):
                self._empty(topic)
                return True
            case Delivery(topic, payload) if topic == self._plan.peer:
                self._peer(payload, now)
        return False

    def denied(self, verb: Verb, topic: str, why: str) -> None:
        """Tell it, once."""
        if (verb, topic) not in self._told:
            self._told.add((verb, topic))
            self._deny(Denial(self._user, verb, topic, why))

    def _connected(self, now: float) -> None:
        if not self._begun:
            self._begun = True
            if self._plan.answers:
                self._subscribe(self._plan.peer)
            for topic in self._plan.writes:
                self._try(topic)
        self._ask(now)

    def _ask(self, now: float) -> None:
        """Ask for an answer while one is missing."""
        if self._missing:
            self._answer_by = now + self._patience
            for topic in self._plan.writes:
                if answers_to(topic):
                    self._try(topic)

    def _try(self, topic: str) -> None:
        if len(self._open) >= MOST_OPEN or topic in self._open:
            return
        self._token -= 1
        self._topics[self._token] = topic
        self._open.add(topic)
        self._publish(topic, self._token)

    def _empty(self, topic: str) -> None:
        for answer in answers_to(topic):
            self._try(answer)
        if topic in self._missing:
            self._missing.discard(topic)
            if not self._missing:
                self._answer_by = None
                self._unsubscribe(self._plan.peer)

    def _peer(self, payload: bytes, now: float) -> None:
        try:
            status = wire.decode(payload, CloudStatus, GatewayStatus)
        except wire.WireError:
            return
        assert isinstance(status, (CloudStatus, GatewayStatus))
        before, self._peer_online = self._peer_online, status.state != "offline"
        if self._peer_online and not before:
            self._ask(now)  # it may have come up after we had asked


def _carries_tests(topic: str) -> bool:
    """Not every topic does: an empty question to a model deserves an answer in words."""
    address = topics.parse(topic)
    return address is not None and address.kind in (*access.UP, *access.DOWN)
