"""Brokers that remember less than they should, limit what they do not announce, or are of another make."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from broker import bridges, reasons, topics
from broker.bus import Delivery, Published, Will
from broker.mosquitto import MosquittoBroker
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.cli import cli
from fedbac_edge.commands.gateway import sentence
from fedbac_edge.lab.trials import trials
from fedbac_edge.node.node import Node
from fedbac_edge.node.runtime import Runtime
from fedbac_edge.node.store import Store, StoreError
from fedbac_edge.parts.part import digest
from fedbac_edge.protocol.events import Announce, Channel, Hello, Keep, Send, Withdraw
from fedbac_edge.protocol.messages import CloudStatus
from fedbac_edge.settings.federation import ModelTable
from fedbac_edge.vocabulary.terms import PartRef
from tests.field import ejabberd
from tests.field.test_link import Fleet, wait_for_round

needs_ejabberd = pytest.mark.skipif(not ejabberd.installed(), reason="ejabberd is not installed")


class State(msgspec.Struct, kw_only=True):
    timers: dict[str, float] = {}


class Publisher:
    """A machine that keeps one part published; it makes a new generation of it when it is told to."""

    def __init__(self) -> None:
        self.state = State()
        self.data = b"first" * 100

    @property
    def ref(self) -> PartRef:
        return PartRef("global", digest(self.data), len(self.data))

    def handle(self, event: Any, now: float) -> list[Any]:
        match event:
            case Hello():
                return [self.status("training")]
            case bytes():
                before, self.data = self.ref.hash, event
                return [Keep(self.ref.hash, event), Announce(self.ref, 2), Withdraw(before)]
        return [Keep(self.ref.hash, self.data), Announce(self.ref, 1)]

    def status(self, state: str) -> Send:
        return Send(Channel("status"), CloudStatus(state=state, session=1), retain=True)

    def timers(self) -> Mapping[str, float]:
        return self.state.timers

    def wanted(self) -> Mapping[str, PartRef]:
        return {}

    def kept(self) -> Set[str]:
        return {self.ref.hash}


class Retained:
    """What a newcomer finds retained under a filter, and what comes live after that."""

    def __init__(self, url: str, filter: str) -> None:
        self.found: dict[str, bytes] = {}
        self._bus = MqttBus(BrokerUrl.parse(url), f"eyes-{time.monotonic_ns()}", self, session_expiry=0)
        self._bus.subscribe(filter)
        self._bus.start()

    def put(self, event: object, /) -> None:
        if isinstance(event, Delivery):
            self.found[event.topic] = event.payload
            self._bus.acknowledge(event.ticket)

    def close(self) -> None:
        self._bus.close(1.0)


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.05)


@pytest.fixture
def remembering(tmp_path: Path) -> Iterator[tuple[MosquittoBroker, str]]:
    """A Mosquitto with `persistence true`, as Debian configures it, and its address."""
    port = ejabberd.free_port()
    memory = tmp_path / "memory"
    memory.mkdir()
    with MosquittoBroker("127.0.0.1", port, tmp_path / "mosquitto", persistence_dir=memory) as broker:
        yield broker, f"mqtt://127.0.0.1:{port}"


def save(broker: MosquittoBroker, folder: Path) -> None:
    """Have it write its memory to the disk (SIGUSR1), and wait for that."""
    process = broker.process._process
    assert process is not None
    os.kill(process.pid, signal.SIGUSR1)
    wait_until(lambda: (folder / "mosquitto.db").exists(), "nothing was saved")


def test_a_broker_that_comes_back_with_an_older_memory(
    remembering: tuple[MosquittoBroker, str], tmp_path: Path
) -> None:
    """It says "session present" and holds older models: the owner publishes today's again."""
    broker, url = remembering
    machine = Publisher()
    running: list[Runtime] = []

    def open_bus(inbox: Any, will: Will) -> MqttBus:
        return MqttBus(BrokerUrl.parse(url), "cloud", inbox, will, back_off=0.05, back_off_cap=0.3)

    def run() -> None:
        store = Store(tmp_path / "cloud.sqlite")
        running.append(Runtime(store, Node(machine, store, "t", {topics.spec("t"): ()}), open_bus))
        running[0].run()
        store.close()

    def stands(hash: str) -> bool:
        """The manifest of this part is at the broker, and so are its chunks."""
        manifest = Retained(url, topics.model("t", "global"))
        blob = Retained(url, topics.blob_filter("t", hash))
        try:
            time.sleep(0.3)
            return hash.encode() in manifest.found.get(topics.model("t", "global"), b"") and bool(blob.found)
        finally:
            manifest.close()
            blob.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: stands(machine.ref.hash), "the part did not go out")
    save(broker, tmp_path / "memory")
    today = b"today's" * 100
    runtime = running[0]
    runtime.tell(today)  # type: ignore[arg-type]
    wait_until(lambda: machine.data == today and stands(machine.ref.hash), "the new part did not go out")
    broker.kill()
    wait_until(lambda: runtime.link != "connected", "the link did not break")
    broker.start()
    wait_until(lambda: runtime.link == "connected", "the link did not come back")
    try:
        wait_until(lambda: stands(machine.ref.hash), "today's part is not there")
    finally:
        runtime.stop()
        thread.join(20)
    assert [line.subject for line in Store(tmp_path / "cloud.sqlite").ledger("broker forgot")]


@needs_ejabberd
def test_a_fleet_on_one_node_of_ejabberd(tmp_path: Path) -> None:
    shape: trials.Shape = (2, 2, 3, "float32")
    with ejabberd.nodes(tmp_path, "ea") as (node,):
        fleet = Fleet(trials.federation_of(shape), tmp_path)
        fleet.start(lambda name: node.url, back_off=0.05, back_off_cap=0.5)
        fleet.finish(200)
    assert fleet.hashes() == trials.undisturbed(shape)[0]
    assert fleet.assert_counted_once() > 0


@needs_ejabberd
@pytest.mark.soak
@pytest.mark.parametrize("killed", [False, True])
def test_a_cluster_of_two_nodes(tmp_path: Path, killed: bool, record: Callable[[str], None]) -> None:
    """gw2 and its devices on the second node, which has nothing of what is retained on the first one."""
    shape: trials.Shape = (2, 2, 4, "float32")
    began = time.monotonic()
    with ejabberd.nodes(tmp_path, "ea", "eb") as (one, two):
        federation = trials.federation_of(shape)
        there = {"gw2", *federation.gateways["gw2"]}
        fleet = Fleet(federation, tmp_path)
        fleet.start(lambda name: (two if name in there else one).url, back_off=0.05, back_off_cap=1.0)
        if killed:
            wait_for_round(tmp_path / "cloud.sqlite", 2, 200.0)
            two.kill()
            time.sleep(2.0)
            two.start()
        fleet.finish(500)
    record(f"two nodes, second one killed: {killed}: {time.monotonic() - began:.0f} s")
    assert fleet.hashes() == trials.undisturbed(shape)[0]


LIMIT = 65_536
"""A broker's limit that is below the size of packets that are sent when none is announced."""


def unannounced(kind: str, folder: Path) -> contextlib.AbstractContextManager[str]:
    """The address of a broker that refuses larger packets without having said so."""

    @contextlib.contextmanager
    def running() -> Iterator[str]:
        if kind == "ejabberd":
            if not ejabberd.installed():
                pytest.skip("ejabberd is not installed")
            with ejabberd.nodes(folder, "ea", most=LIMIT) as (node,):
                yield node.url
            return
        port = ejabberd.free_port()
        broker = MosquittoBroker("127.0.0.1", port, folder / "mosquitto")
        lines = broker.configuration.read_text().splitlines()
        kept = [line for line in lines if not line.startswith("max_packet_size")]
        broker.configuration.write_text("\n".join([*kept, f"message_size_limit {LIMIT}", ""]))
        with broker:
            yield f"mqtt://127.0.0.1:{port}"

    return running()


@pytest.mark.parametrize("kind", ["mosquitto", "ejabberd"])
def test_a_limit_that_is_not_announced(kind: str, tmp_path: Path) -> None:
    """Mosquitto answers 0x95 (message_size_limit), ejabberd hangs up: what was refused is cut smaller."""
    federation = trials.federation_of((1, 2, 2, "float32"))
    model = ModelTable(classes=tuple("0123456789"), input=(3, 32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    federation = msgspec.structs.replace(federation, model=model)
    fleet = Fleet(federation, tmp_path)
    with unannounced(kind, tmp_path) as url:
        fleet.start(lambda name: url, back_off=0.05, back_off_cap=0.5)
        fleet.finish(150)
    assert fleet.assert_counted_once() > 0
    lines = Store(tmp_path / "cloud.sqlite").ledger("publish refused")
    assert any("cut into packets" in line.detail["why"] for line in lines)


RULES = """\
    access_publish:
      "fedbac/v1/orchard/edge/gw1/#": all
    access_subscribe:
      "fedbac/v1/orchard/#": all
"""


@needs_ejabberd
def test_what_ejabberd_denies_is_called_so(tmp_path: Path) -> None:
    """A denied publish is 0x90 there, not 0x87; a denied subscription is refused, as Mosquitto never does."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with ejabberd.nodes(tmp_path, "ea", rules=RULES) as (node,):
        bus = MqttBus(BrokerUrl.parse(node.url), "gw2", inbox)
        bus.publish("fedbac/v1/orchard/edge/gw2/reply", b"", token=1)
        bus.start()
        while not isinstance(answer := inbox.get(timeout=60.0), Published):
            pass
        bus.close(1.0)
        status = CliRunner().invoke(cli, ["status", "--broker", node.url])
        named = CliRunner().invoke(cli, ["status", "--broker", node.url, "--federation", "orchard"])
    assert answer.code in reasons.DENIED, answer
    assert status.exit_code != 0
    assert "--federation" in status.output
    assert "refuses the subscription" not in named.output


@pytest.mark.soak
@pytest.mark.parametrize(
    ("lacking", "kind", "words"),
    [("/blob/#", "stalled", "blob/#"), ("/edge/gw1/update", "unanswered", "edge/gw1/update to it")],
)
def test_a_bridge_that_lacks_a_topic(lacking: str, kind: str, words: str, tmp_path: Path) -> None:
    """A silent hang before: the gateway says what does not come or who is silent, and where to look."""
    ports = ejabberd.free_port(), ejabberd.free_port()
    section = bridges.section("trial", "gw1", BrokerUrl.parse(f"mqtt://127.0.0.1:{ports[0]}"))
    kept = [line for line in section.splitlines() if f"{lacking} " not in line]
    assert len(kept) == len(section.splitlines()) - 1
    site = MosquittoBroker("127.0.0.1", ports[1], tmp_path / "site")
    with site.configuration.open("a") as configuration:
        configuration.write("\n".join([*kept, ""]))
    fleet = Fleet(trials.federation_of((1, 1, 2, "float32")), tmp_path)

    def told() -> str:
        with contextlib.suppress(StoreError):
            store = Store(tmp_path / "gw1.sqlite", read_only=True)
            try:
                return " ".join(map(sentence, store.ledger(kind)))
            finally:
                store.close()
        return ""

    with MosquittoBroker("127.0.0.1", ports[0], tmp_path / "cloud"), site:
        fleet.start(lambda name: f"mqtt://127.0.0.1:{ports[0 if name == 'cloud' else 1]}")
        try:
            wait_until(lambda: words in told(), f"nothing was said of {lacking}", 150.0)
        finally:
            for runtime in fleet._runtimes.values():
                runtime.stop()
            for thread in fleet._threads.values():
                thread.join(30)
