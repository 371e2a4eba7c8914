"""`fedbac-agent serve`: the site's newest good release, asked over MQTT. Imports neither torch nor onnx.

Its own process and its own MQTT client beside `join`, under the same identity. Everything is in
STATE/serving: the store with the current and the previous model, the pinned key and the ledger, and
`model.onnx`, a copy of the current one for `fedbac-agent infer` and for other programs.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import msgspec

from broker import topics
from broker.bus import Bus, BusEvent, Delivery, Will
from broker.mqtt import MqttBus
from device_agent import identity
from device_agent.answering import Answerer, Live
from device_agent.endings import GOODBYE_S, Misconfigured
from device_agent.recovery import opened_or_new
from device_agent.settings import ServeSettings
from device_agent.stay import find, staying
from device_agent.trial import TrialWorker
from device_agent.voice import Voice
from export.infer import SERVED
from fedbac_edge.host import systemd
from fedbac_edge.host.files import write_bytes
from fedbac_edge.host.signals import Stop
from fedbac_edge.node import assemble
from fedbac_edge.node.node import Node
from fedbac_edge.node.runtime import Inbox, Runtime
from fedbac_edge.node.store import LedgerLine, Store, StoreError
from fedbac_edge.parts.part import digest
from fedbac_edge.protocol.events import ModelFailed
from fedbac_edge.protocol.serving import Serving, ServingState
from fedbac_edge.settings.membership import gateway_missing
from fedbac_edge.signing import keys

BACK_OFF_S = 0.5
STORE_COST = (
    "the site's release is fetched again; a key that was not given by --release-key is trusted anew with it"
)
SESSION_S = 30
"""Seconds for which the broker keeps questions while the link is down; older ones are of no use."""
OPEN_QUESTIONS = 64
"""Deliveries that the broker may have open."""


def serve(settings: ServeSettings, voice: Voice) -> None:
    """Serve and stay; returns after SIGINT or SIGTERM. Main thread only. Raises Misconfigured, Failed."""
    if importlib.util.find_spec("cryptography") is None:
        raise Misconfigured("signatures are checked with cryptography: pip install 'fedbac-edge[infer]'")
    with (
        staying(voice) as leaving,
        identity.held(settings.state, settings.name, "serve.lock") as name,
        opened_or_new(  # a damaged model is found when it is tried, and gives way to the one before
            settings.state / SERVED.parent, settings.edge, ServingState, voice, STORE_COST, check_blobs=False
        ) as store,
    ):
        federation = settings.federation or _remembered(store)
        if federation is None:
            client_id = f"fedbac:{settings.edge}:{name}:serve"
            spec = find(
                settings.broker, None, client_id, voice, leaving, lambda f: gateway_missing(f, settings.edge)
            )
            if spec is not None:
                federation = spec.federation.name
        if federation is not None:
            _serve(settings, federation, name, store, voice, leaving)


def _remembered(store: Store) -> str | None:
    """The federation that this store is of: after a reboot there may be no broker to ask."""
    stored = store.read("machine")
    if stored is None:
        return None
    try:
        return msgspec.msgpack.decode(stored, type=ServingState).federation or None
    except msgspec.DecodeError as error:
        raise StoreError(f"what this device was serving cannot be read: {error}") from error


def _serve(
    settings: ServeSettings, federation: str, name: str, store: Store, voice: Voice, leaving: Stop
) -> None:
    node = assemble.serving(federation, settings.edge, name, settings.release_key, store)
    assert isinstance(node.machine, Serving)
    questions = topics.device(federation, settings.edge, name, "infer")
    trials = TrialWorker()
    answerer = Answerer(
        federation,
        lambda hash, reason: runtime.tell(ModelFailed(hash, reason)),
        lambda text: voice.say("unanswered", text),
        fit=settings.fit,
    )
    observer = _Observer(settings, node.machine, trials, answerer, voice, store)

    def open_bus(inbox: Inbox, will: Will) -> Bus:
        client = f"fedbac:{federation}:{settings.edge}:{name}:serve"
        bus = _Bus(settings, client, _Sorting(inbox, questions, answerer), answerer, will)
        bus.subscribe(questions)
        answerer.start(bus)
        return bus

    voice.say(
        "starting",
        f"{name} serves {settings.edge} of {federation} ({settings.broker}); questions to {questions}",
        federation=federation,
        gateway=settings.edge,
        device=name,
        topic=questions,
    )
    if node.machine.state.key:
        trusted = keys.fingerprint(node.machine.state.key)
        voice.say("key", f"trusting releases signed with the key {trusted}", key=trusted)
    runtime = Runtime(store, node, open_bus, trials, observe=lambda node: observer(node, runtime.link))
    if node.machine.state.current is None:
        systemd.notify("READY=1", "STATUS=waiting for a first release")
    with leaving.wakes(runtime.stop), systemd.watched([runtime.poke, answerer.poke]):
        runtime.run()


class _Sorting:
    """The bus's inbox: questions go to the answerer, everything else to the runtime."""

    def __init__(self, inbox: Inbox, questions: str, answerer: Answerer) -> None:
        self._inbox, self._questions, self._answerer = inbox, questions, answerer

    def put(self, event: BusEvent, /) -> None:
        """See broker.mqtt.Inbox."""
        if isinstance(event, Delivery) and event.topic == self._questions:
            self._answerer.take(event)
        else:
            self._inbox.put(event)


class _Bus(MqttBus):
    """A bus that has what was asked answered, and says goodbye in less time than a device has to leave."""

    def __init__(
        self, settings: ServeSettings, client: str, inbox: _Sorting, answerer: Answerer, will: Will
    ) -> None:
        self._answerer = answerer
        super().__init__(
            settings.broker,
            client,
            inbox,
            will,
            back_off=BACK_OFF_S,
            receive_maximum=OPEN_QUESTIONS,
            session_expiry=SESSION_S,
        )

    def close(self, timeout: float = GOODBYE_S) -> None:
        """See Bus.close."""
        self._answerer.close()
        super().close(timeout)


class _Observer:
    """After every event: the current model, once it is open and stored, becomes the one that answers."""

    def __init__(
        self,
        settings: ServeSettings,
        machine: Serving,
        trials: TrialWorker,
        answerer: Answerer,
        voice: Voice,
        store: Store,
    ) -> None:
        self._file: Path = settings.state / SERVED
        self._machine, self._trials, self._answerer, self._voice = machine, trials, answerer, voice
        self._link = "connecting"
        lines = store.ledger()
        self._last = lines[-1].id if lines else 0

    def __call__(self, node: Node, link: str) -> None:
        """See the class."""
        self._swap(node.store)
        self._trials.keep(self._machine.kept())
        if link != self._link:
            self._link = link
            self._voice.say("link", link if link == "connected" else f"{link}; trying again")
        for line in node.store.ledger(after=self._last):
            self._last = line.id
            text = sentence(line)
            if text:
                self._voice.say(line.kind, text, **line.detail)

    def _swap(self, store: Store) -> None:
        current, live = self._machine.state.current, self._answerer.live
        if live is not None and live.hash not in self._machine.kept():
            self._answerer.serve(None)
        if current is None or (
            live is not None and (live.number, live.hash) == (current.number, current.hash)
        ):
            return
        session = self._trials.ready(current.hash)
        if session is None:
            return
        self._answerer.serve(Live(current.number, current.hash, session))
        self._copy(store.blobs[current.hash], current.hash)
        systemd.notify("READY=1", f"STATUS=serving release {current.number}")
        self._voice.say(
            "answering",
            f"answering with release {current.number} (cluster {current.cluster}, round {current.round})",
            number=current.number,
            hash=current.hash,
        )

    def _copy(self, data: bytes, hash: str) -> None:
        """For `infer`, which needs no store."""
        if not (self._file.is_file() and digest(self._file.read_bytes()) == hash):
            write_bytes(data, self._file)


def sentence(line: LedgerLine) -> str:
    """A ledger line of a serving device, for people; empty for what is said otherwise."""
    why = line.detail.get("why", "")
    match line.kind:
        case "pinned":
            return f"from now on trusting the key {line.subject}, which signed the first release that came"
        case "refused":
            return f"refused: {why}"
        case "restored":
            return (
                f"the cloud was restored from an older backup: following its release {line.detail['number']} "
                f"after release {line.detail['before']}"
            )
        case "new federation":
            return f"the federation has started anew: following its release {line.detail['number']}"
        case "went back":
            to = line.detail["to"]
            return f"went back to release {to}: {why}" if to else f"no model left: {why}"
        case "unreadable" | "publish refused":
            return f"{line.kind}: {line.subject}: {why}"
    return ""
