"""The bus over a real broker: what must survive a connection, and when to make the next one.

One thread owns the connection (`link.py`). What callers ask for is kept in tables under one lock and handed
to the connection as its window allows; what the broker has not acknowledged when a connection ends goes
back to the front of the queue. So nothing is lost, and something can be sent twice.

The waits between attempts are drawn with full jitter: after a power cut a fleet comes back spread out.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Literal, Protocol

from broker import peer, reasons
from broker.bus import Answering, BusEvent, Connected, Delivery, Disconnected, Published, Subscribed, Will
from broker.link import Answer, Answered, Arrived, Complaint, Down, Link, LinkSettings, Waker
from broker.url import BadUrl, BrokerUrl
from broker.windows import Incoming, Message, Outgoing

log = logging.getLogger(__name__)

# Handed to a connection and not yet acknowledged. At 10 KB/s the byte window is 25 seconds.
WINDOW_MESSAGES = 16
WINDOW_BYTES = 256 * 1024
# Mosquitto before 2.1 and rumqttd do not say 0x8E: they close the older connection without a word. So many
# connections in a row, each accepted at the first try and closed by the broker before long, mean the same.
SILENT_TAKEOVERS = 5
# So many connections in a row that ended after an equally long silence were cut for being idle: by a load
# balancer, a firewall or an address translation on the way. A namesake throws out at any moment.
IDLE_CUTS = 3
IDLE_LEAST_S = 1.0
# After so many connections in a row without an answer the peer is asked what it is.
UNANSWERED = 3
PING_LEAST_S = 0.5
# Some brokers close the connection over a packet that is too large, without a word. So many connections in a
# row that ended while a packet was on its way that is larger than any this broker ever took, mean that.
SILENT_REFUSALS = 4
SURE_PACKET = 16_384
"""Smaller packets than that are never suspected."""


class Inbox(Protocol):
    """Where events go: a queue.SimpleQueue or an unbounded queue.Queue."""

    def put(self, event: BusEvent, /) -> object:
        """Append; must not block."""


def full_jitter(
    attempt: int, base: float, cap: float, draw: Callable[[float, float], float] = random.uniform
) -> float:
    """Seconds to wait after failed attempt number `attempt` (from 0): uniform in 0 .. min(cap, base 2^n)."""
    return draw(0.0, min(cap, base * 2.0 ** min(attempt, 32)))


class MqttBus:
    """A `Bus` over MQTT 5 with a session that outlives its connections.

    Args:
        url: the broker; its certificate files are read here (BadUrl), and again for every connection, so
            that certificates can be replaced under a running process.
        client_id: stable, and unique in the broker; one that `url` carries goes before it.
        inbox: receives every BusEvent, from the bus's own thread.
        will: published (QoS 1, retained) by the broker when this client vanishes.
        keep_alive: seconds after which the broker may think us dead; pings go out twice as often.
        receive_maximum: deliveries the broker may have open; bounds the inbox.
        session_expiry: seconds the broker keeps our session and queue while we are away.
        back_off, back_off_cap: seconds; see `full_jitter`.
        connect_timeout: seconds for TCP and TLS, and again for the broker's answer.
        maximum_packet: largest packet we take, bytes.

    """

    def __init__(
        self,
        url: BrokerUrl,
        client_id: str,
        inbox: Inbox,
        will: Will | None = None,
        *,
        keep_alive: int = 30,
        receive_maximum: int = 8,
        session_expiry: int = 3600,
        back_off: float = 1.0,
        back_off_cap: float = 30.0,
        connect_timeout: float = 10.0,
        maximum_packet: int = 1024 * 1024,
    ) -> None:
        self._settings = LinkSettings(
            url=url,
            client_id=url.client_id or client_id,
            will=will,
            keep_alive=keep_alive,
            session_expiry=session_expiry,
            receive_maximum=receive_maximum,
            maximum_packet=maximum_packet,
            connect_timeout=connect_timeout,
        )
        url.tls_context()
        self._certified = url.certificate is not None
        self._inbox = inbox
        self._back_off, self._back_off_cap = back_off, back_off_cap
        self._waker = Waker()
        self._closing = threading.Event()
        self._close_at = 0.0
        self._thread: threading.Thread | None = None

        # Under the lock:
        self._lock = threading.Lock()
        self._outgoing = Outgoing(WINDOW_MESSAGES, WINDOW_BYTES)
        self._incoming = Incoming()
        self._filters: dict[str, bool] = {}  # filter -> the broker's session has it, or was asked
        self._leaving: dict[str, None] = {}  # filters to unsubscribe, in order
        self._renewing: list[str] = []  # filters that the broker's session should have, to be repeated

        # Of the bus's thread alone:
        self._asked: dict[int, tuple[Literal["subscribe", "renew", "unsubscribe"], str]] = {}  # by packet id
        self._fresh: set[str] = set()  # filters subscribed on the present connection
        self._largest: int | None = None  # the broker's packet limit
        self._silent_takeovers = 0
        self._unanswered = 0  # connections in a row that the peer closed instead of answering
        self._silences: list[float] = []  # before the ends of the latest connections, in seconds
        self._silent_refusals = 0
        self._proven = SURE_PACKET  # the largest packet that the broker ever took
        self._told = ""  # the last reason that was reported

    def start(self) -> None:
        """See Bus.start."""
        if self._thread is None:
            name = f"mqtt {self._settings.client_id}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def publish(
        self,
        topic: str,
        payload: bytes,
        retain: bool = False,
        token: int = 0,
        answering: Answering | None = None,
    ) -> None:
        """See Bus.publish; see Outgoing.add for what is not queued twice."""
        with self._lock:
            self._outgoing.add(Message(topic, bytes(payload), retain, token, answering))
        self._waker.wake()

    def subscribe(self, filter: str) -> None:
        """See Bus.subscribe."""
        with self._lock:
            self._filters.setdefault(filter, False)
        self._waker.wake()

    def unsubscribe(self, filter: str) -> None:
        """See Bus.unsubscribe. Subscribing again afterwards brings the retained messages again."""
        with self._lock:
            self._filters.pop(filter, None)
            self._leaving[filter] = None
        self._waker.wake()

    def acknowledge(self, ticket: int) -> None:
        """See Bus.acknowledge. The broker is told in the order of arrival, see Incoming."""
        with self._lock:
            self._incoming.acknowledge(ticket)
        self._waker.wake()

    def close(self, timeout: float = 5.0) -> None:
        """See Bus.close. Can take `connect_timeout` longer when a connection is just being made."""
        if not self._closing.is_set():
            self._close_at = time.monotonic() + timeout
            self._closing.set()
            self._waker.wake()
        if self._thread is not None:
            self._thread.join()
        self._waker.close()

    @property
    def backlog(self) -> int:
        """Payload bytes that the broker has not acknowledged yet."""
        with self._lock:
            return self._outgoing.size

    # The bus's thread.

    def _run(self) -> None:
        attempt = 0
        while not self._is_done():
            began = time.monotonic()
            try:
                accepted, reason, final = self._connection()
            except Exception as error:  # a thread that dies silently would be worse than any retry
                log.exception("%s: the connection failed in an unforeseen way", self._settings.client_id)
                accepted, reason, final = False, f"unforeseen: {error!r}", False
            if not accepted and (dates := self._settings.url.dates_trouble()):
                reason, final = f"{reason}; {dates}", False  # a new certificate, or a set clock, will help
            if self._is_done():
                return
            if accepted or final or reason != self._told:
                self._told = reason
                self._inbox.put(Disconnected(reason, final))
            if final:
                return
            # A link that held longer than the longest wait has earned a quick return.
            attempt = 0 if accepted and time.monotonic() - began > self._back_off_cap else attempt
            wait = full_jitter(attempt, self._back_off, self._back_off_cap)
            attempt += 1
            if self._closing.wait(wait):
                time.sleep(min(wait, 0.2))  # closing: what is queued gets another quick chance

    def _connection(self) -> tuple[bool, str, bool]:
        """One connection from its opening to its end: was it accepted, why it ended, is that final."""
        broker = str(self._settings.url)
        try:
            context = self._settings.url.tls_context()
        except BadUrl as error:  # it was good before: the files are being replaced
            return False, str(error), False
        link = Link(self._settings, context, self._waker)
        try:
            link.open()
        except (OSError, ValueError) as error:
            link.close()
            self._silent_takeovers = 0
            return (False, *reasons.of_error(error, broker, self._certified))
        began = time.monotonic()
        answer_by = began + self._settings.connect_timeout
        accepted, complaint = False, ""
        try:
            while True:
                while link.facts:
                    match link.facts.popleft():
                        case Answer() as answer:
                            end = self._refusal(answer)
                            if end is not None:
                                return (False, *end)
                            accepted = True
                            self._accept(link, answer)
                        case Down(code=reasons.TOO_LARGE as code, name=name) if accepted:
                            self._give_back_large(name.lower())
                            return (True, *reasons.of_code(code, name, self._settings.client_id))
                        case Down(code=int() as code, name=name):
                            return (accepted, *reasons.of_code(code, name, self._settings.client_id))
                        case Complaint(text=complaint):
                            pass
                        case Arrived() as arrived:
                            self._deliver(arrived)
                        case Answered() as answered:
                            self._answered(answered)
                if not link.is_open:
                    self._unanswered = 0 if accepted else self._unanswered + 1
                    # Not at once: a link that is cut here and now proves nothing.
                    if (
                        self._unanswered
                        and self._unanswered % UNANSWERED == 0
                        and (trouble := peer.trouble(self._settings.url, context))
                    ):
                        return False, trouble, True
                    return (accepted, *self._lost(complaint, accepted, time.monotonic() - began, link.quiet))
                if accepted:
                    self._pump(link)
                elif time.monotonic() > answer_by:
                    return False, f"{broker} takes connections but does not answer like a broker", False
                if self._is_done():
                    link.goodbye(max(0.5, self._close_at - time.monotonic()))
                    return accepted, "closed", False
                link.step(self._patience(None if accepted else answer_by))
        finally:
            link.close()
            with self._lock:
                self._outgoing.connection_lost()
                self._incoming.connection_lost()
                for what, filter in self._asked.values():  # not answered: ask again
                    if what == "unsubscribe":
                        self._leaving[filter] = None
                    elif what == "subscribe" and filter in self._filters:
                        self._filters[filter] = False
            self._asked.clear()
            self._fresh.clear()

    def _refusal(self, answer: Answer) -> tuple[str, bool] | None:
        """Why this CONNACK is no basis for a federation, and whether that is final; None: it is one."""
        if answer.code >= 0x80:
            return reasons.of_code(answer.code, answer.name, self._settings.client_id)
        if getattr(answer.properties, "RetainAvailable", 1) == 0:
            return reasons.of_code(0x9A, "", self._settings.client_id)
        if getattr(answer.properties, "MaximumQoS", 1) == 0:
            return reasons.of_code(0x9B, "", self._settings.client_id)
        return None

    def _accept(self, link: Link, answer: Answer) -> None:
        self._told = ""
        self._largest = getattr(answer.properties, "MaximumPacketSize", None)
        link.use_keep_alive(getattr(answer.properties, "ServerKeepAlive", 0))
        with self._lock:
            broker_window = getattr(answer.properties, "ReceiveMaximum", WINDOW_MESSAGES)
            self._outgoing.most_messages = min(WINDOW_MESSAGES, broker_window)
            if not answer.session_present:
                self._filters = dict.fromkeys(self._filters, False)
                self._leaving.clear()
            # A broker that came back with an older memory has an older session: what was asked for since is
            # not in it. Asking again costs a few bytes, and what is retained comes for new filters only.
            self._renewing = [filter for filter, known in self._filters.items() if known]
        self._inbox.put(Connected(answer.session_present, self._largest))

    def _deliver(self, arrived: Arrived) -> None:
        message = arrived.message
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""  # not MQTT and no topic; the caller drops it with its acknowledgement
        ticket = 0
        if message.qos > 0:
            with self._lock:
                ticket = self._incoming.arrived(message.mid)
        self._inbox.put(
            Delivery(
                topic,
                bytes(message.payload),
                bool(message.retain),
                ticket,
                getattr(message.properties, "ResponseTopic", ""),
                getattr(message.properties, "CorrelationData", None),
            )
        )

    def _answered(self, answered: Answered) -> None:
        refused = answered.code >= 0x80
        if answered.what != "publish":
            what, filter = self._asked.pop(answered.mid, (None, ""))
            if what == "subscribe" or (what == "renew" and refused):
                self._inbox.put(Subscribed(filter, not refused))
            return
        with self._lock:
            message = self._outgoing.acknowledged(answered.mid)
        if message is not None:
            if not refused:
                self._proven = max(self._proven, message.packet_size)
            self._settle(message, answered.name if refused else "", answered.code if refused else 0)

    def _give_back_large(self, why: str) -> None:
        """The broker ended the connection over a packet's size: the owners cut what is as large smaller."""
        with self._lock:
            largest = self._outgoing.largest
            taken = self._outgoing.take_larger(largest // 2) if largest else []
        for message in taken:
            self._settle(message, f"{why}: a packet of {message.packet_size} bytes", reasons.TOO_LARGE)

    def _settle(self, message: Message, refused: str, code: int) -> None:
        if refused:
            log.debug("%s was not published: %s", message.topic, refused)  # the owner of the token tells
        if message.token:
            self._inbox.put(Published(message.token, refused, code))

    def _pump(self, link: Link) -> None:
        """Hand over what callers asked for: acknowledgements, filters, messages as the window allows."""
        too_large = []
        with self._lock:
            for mid in self._incoming.due():
                link.acknowledge(mid)
            for filter in self._leaving:
                # rumqttd ignores UNSUBSCRIBE for what an earlier connection subscribed: make it this one's.
                if filter not in self._fresh:
                    link.subscribe(filter, "never")
                self._asked[link.unsubscribe(filter)] = ("unsubscribe", filter)
            self._leaving.clear()
            for filter in self._renewing:
                if self._filters.get(filter):
                    self._asked[link.subscribe(filter, "if new")] = ("renew", filter)
            self._renewing = []
            for filter in [f for f, known in self._filters.items() if not known]:
                self._filters[filter] = True
                self._fresh.add(filter)
                self._asked[link.subscribe(filter)] = ("subscribe", filter)
            while (message := self._outgoing.next()) is not None:
                if self._largest is not None and message.packet_size > self._largest:
                    too_large.append(message)
                else:
                    packet_id = link.publish(
                        message.topic, message.payload, message.retain, message.answering
                    )
                    self._outgoing.sent(packet_id, message)
        for message in too_large:
            self._settle(
                message,
                f"a packet of {message.packet_size} bytes, and the broker takes {self._largest}",
                reasons.TOO_LARGE,
            )

    def _lost(self, complaint: str, accepted: bool, lived: float, quiet: float) -> tuple[str, bool]:
        """Sentence for a connection that ended without a reason code, and whether to stay away."""
        broker = str(self._settings.url)
        if accepted:
            with self._lock:
                suspect = self._outgoing.largest > self._proven
            self._silent_refusals = self._silent_refusals + 1 if suspect else 0
            if self._silent_refusals >= SILENT_REFUSALS:
                self._silent_refusals = self._silent_takeovers = 0
                self._give_back_large(f"{broker} closed {SILENT_REFUSALS} connections over it")
        if accepted and (idle := self._cut_for_idleness(quiet)):
            self._silent_takeovers = 0
            return idle, False
        if complaint:
            self._silent_takeovers = 0
            return reasons.of_text(complaint, broker, self._certified)
        if not accepted:
            self._silent_takeovers = 0
            login = "a wrong user or password, or " if self._settings.url.user is not None else ""
            return f"{broker} closed the connection without an answer: {login}no MQTT 5 broker", False
        self._silent_takeovers = self._silent_takeovers + 1 if lived < self._back_off_cap else 0
        if self._silent_takeovers < SILENT_TAKEOVERS:
            return f"{broker} closed the connection", False
        return (
            f"{broker} closed {SILENT_TAKEOVERS} connections in a row: most likely another process is "
            f"connected as {self._settings.client_id}: {reasons.ONE_OF_TWO}",
            True,
        )

    def _cut_for_idleness(self, quiet: float) -> str:
        """The sentence for a link that was cut since nothing moved on it; empty: that is not why it ended.

        Pings go out more often from then on.
        """
        if quiet < IDLE_LEAST_S:
            self._silences.clear()
            return ""
        self._silences = [*self._silences, quiet][-IDLE_CUTS:]
        longest = max(self._silences)
        if len(self._silences) < IDLE_CUTS or longest - min(self._silences) > max(0.3, 0.1 * longest):
            return ""
        self._silences.clear()
        now = self._settings.ping_every or self._settings.keep_alive / 2
        ping = max(PING_LEAST_S, min(longest / 3, now / 2))
        self._settings = dataclasses.replace(self._settings, ping_every=ping)
        return (
            f"{self._settings.url}, or something on the way to it, cuts links on which nothing moves for "
            f"{longest:.0f} s; a ping goes out every {ping:.1f} s from now on"
        )

    def _is_done(self) -> bool:
        if not self._closing.is_set():
            return False
        with self._lock:
            return not self._outgoing or time.monotonic() >= self._close_at

    def _patience(self, until: float | None) -> float:
        """Longest wait for the socket, in seconds: to a deadline if there is one."""
        deadlines = [t for t in (until, self._close_at if self._closing.is_set() else None) if t is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else 60.0
