"""A Mosquitto, a cloud whose campaign is over, publishers of good and bad releases, serving agents."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from broker import chunks, topics, wire
from broker.mosquitto import MosquittoBroker
from export import from_store, graph
from export.served import ServedModel, Term
from export.session import Session
from fedbac_edge.bandits import linucb
from fedbac_edge.federation_file import reading
from fedbac_edge.methods import method
from fedbac_edge.models.catalog import architecture
from fedbac_edge.node import assemble
from fedbac_edge.node.effects import StartJob
from fedbac_edge.node.runtime import opened_store
from fedbac_edge.node.store import LedgerLine, Store
from fedbac_edge.parts.part import digest, pack
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.events import Built, ReleaseJob
from fedbac_edge.protocol.messages import Release, ServingStatus
from fedbac_edge.releases import builder, vectors
from fedbac_edge.settings.federation import Federation
from fedbac_edge.signing import keys
from fedbac_edge.signing.manifest import MANIFEST, Manifest, canonical
from fedbac_edge.vocabulary.terms import PartRef

WAIT_S = 40.0
CLASSES = tuple("abcdefghij")
SHAPE = (1, 28, 28)
Pixels = npt.NDArray[np.uint8]

TOML = f"""
name = "shop"
rounds = 3
[releases]
keep = 2
[model]
classes = {json.dumps(CLASSES)}
mean = [0.3]
std = [0.35]
[method]
clusters = 2
[gateways]
gw1 = []
gw2 = []
"""


def wait_until(what: Callable[[], Any], why: str) -> Any:
    """The first true value; fails the test when there is none in time."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.02)
    pytest.fail(why)


# --- the broker, and a client that any other program could be --------------------------------------


@dataclass
class Client:
    """Plain paho with MQTT 5: keeps what is retained, publishes, asks."""

    port: int
    user: str = ""
    password: str = ""
    retained: dict[str, bytes] = field(default_factory=dict)
    answers: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        name = f"tester {self.user}"
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5)
        if self.user:
            self.paho.username_pw_set(self.user, self.password)
        self.paho.on_message = self._on_message
        self.paho.connect("127.0.0.1", self.port)
        self.paho.loop_start()
        for filter in ("fedbac/v1/shop/#", "my/#"):
            self.paho.subscribe(filter, options=SubscribeOptions(qos=1))

    def _on_message(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        if message.topic.startswith("my/") or "/answer/" in message.topic:
            self.answers.put(message)
        else:
            self.retained[message.topic] = bytes(message.payload)

    @staticmethod
    def wait_until(what: Callable[[], Any], why: str) -> Any:
        """See the function."""
        return wait_until(what, why)

    def publish(self, topic: str, payload: bytes, retain: bool = True) -> None:
        self.paho.publish(topic, payload, qos=1, retain=retain).wait_for_publish(10)

    def ask(
        self,
        device: str,
        payload: bytes,
        response_topic: str = "my/answers",
        qos: int = 1,
        edge: str = "gw1",
        correlation: bytes | None = None,
    ) -> bytes:
        """Publish one question; returns its correlation data."""
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ResponseTopic = response_topic
        data = correlation or str(next(self._numbers)).encode()
        properties.CorrelationData = data
        topic = topics.device("shop", edge, device, "infer")
        self.paho.publish(topic, payload, qos=qos, properties=properties)
        return data

    def answered(self, device: str, payload: bytes, **how: Any) -> dict[str, Any]:
        """Ask, and wait for the answer to exactly this question."""
        correlation = self.ask(device, payload, **how)
        message = self.answers.get(timeout=WAIT_S)
        assert message.properties.CorrelationData == correlation
        answer: dict[str, Any] = json.loads(message.payload)
        return answer

    def status(self, device: str = "dev-1", edge: str = "gw1") -> ServingStatus | None:
        payload = self.retained.get(topics.device("shop", edge, device, "serving"))
        return wire.decode(payload, ServingStatus) if payload else None

    def wait_for_status(self, device: str = "dev-1", edge: str = "gw1", **fields: Any) -> ServingStatus:
        """The device's status, once these fields hold; a callable is asked."""

        def holds() -> ServingStatus | None:
            status = self.status(device, edge)
            if status is None:
                return None
            for name, wanted in fields.items():
                value = getattr(status, name)
                if not (wanted(value) if callable(wanted) else value == wanted):
                    return None
            return status

        found: ServingStatus = wait_until(holds, f"{device} never said {fields}: {self.status(device, edge)}")
        return found

    def release(self, edge: str = "gw1") -> tuple[Release, Manifest] | None:
        """What is retained for a site."""
        payload = self.retained.get(topics.edge("shop", edge, "release"))
        if not payload:
            return None
        message = wire.decode(payload, Release)
        return message, msgspec.msgpack.decode(message.manifest, type=Manifest)

    def wait_for_release(self, number: int, edge: str = "gw1") -> tuple[Release, Manifest]:
        def there() -> tuple[Release, Manifest] | None:
            found = self.release(edge)
            return found if found and found[1].number == number else None

        found: tuple[Release, Manifest] = wait_until(there, f"release {number} never came to {edge}")
        return found

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Broker:
    """A Mosquitto of the test's own."""

    port: int
    directory: Path
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.stack.enter_context(MosquittoBroker("127.0.0.1", self.port, self.directory))

    def stop(self) -> None:
        self.stack.close()

    def client(self, user: str = "", password: str = "") -> Client:
        client = Client(self.port, user, password)
        self.stack.callback(client.close)
        return client


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Not started yet."""
    made = Broker(free_port(), tmp_path / "mosquitto")
    yield made
    made.stop()


@pytest.fixture
def client(broker: Broker) -> Client:
    """On a broker that runs."""
    broker.start()
    return broker.client()


# --- models ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def federation() -> Federation:
    return reading.parse(TOML)


def served(seed: int, cluster: int = 0, sites: str = "gw1", name: str = "shop") -> ServedModel:
    """A model with random weights, ten times larger than fresh ones: its answers are clear."""
    lenet = architecture("lenet", SHAPE, len(CLASSES))
    rng = np.random.default_rng(seed)
    terms = tuple(
        Term(part, {tensor: 2 * values for tensor, values in lenet.init(rng).items()})
        for part in ("global", f"cluster-{cluster}")
    )
    metadata = {"federation": name, "cluster": str(cluster), "sites": sites, "round": "3"}
    return ServedModel(lenet, terms, (0.3,), (0.35,), CLASSES, metadata)


@dataclass
class Publisher:
    """Signs and publishes what a cloud would, and what it never would."""

    client: Client
    key: keys.SigningKey
    founded: int = 1_700_000_000

    def release(self, number: int, seed: int, *, model: ServedModel | None = None, **fields: Any) -> Manifest:
        """A manifest for gw1 and its file, sent nowhere; `fields` change what the manifest says."""
        model = model or served(seed)
        self.onnx = graph.build(model).SerializeToString(deterministic=True)
        values: dict[str, Any] = {
            "federation": "shop",
            "instance": "11111111",
            "founded": self.founded,
            "number": number,
            "model": number,
            "site": "gw1",
            "cluster": 0,
            "round": number,
            "hash": digest(self.onnx),
            "size": len(self.onnx),
            "parts": {term.name: digest(pack(term.part)) for term in model.terms},
            "input": SHAPE,
            "vectors": vectors.of_model(model),
            "created_by": "test",
        }
        return Manifest(**{**values, **fields})

    def send(self, manifest: Manifest, onnx: bytes | None = None, **message: Any) -> Session:
        """Chunks and the signed manifest, retained; `message` changes fields of the message."""
        onnx = self.onnx if onnx is None else onnx
        for index in range(chunks.chunk_count(len(onnx), None)):
            payload = chunks.cut(onnx, manifest.hash, index, None)
            self.client.publish(topics.blob("shop", manifest.hash, index), payload)
        self.send_manifest(manifest, **message)
        return Session(self.onnx)

    def send_manifest(self, manifest: Manifest, **message: Any) -> None:
        """Without its file."""
        signed = canonical(manifest)
        release = Release(manifest=signed, signature=self.key.sign(MANIFEST, signed), key=self.key.public)
        release = msgspec.structs.replace(release, **message)
        self.client.publish(topics.edge("shop", "gw1", "release"), wire.encode(release))

    def publish(self, number: int, seed: int, **fields: Any) -> Session:
        """A good release."""
        return self.send(self.release(number, seed, **fields))


@pytest.fixture
def publisher(client: Client, tmp_path: Path) -> Publisher:
    return Publisher(client, keys.make(tmp_path / "publisher.key"))


@pytest.fixture
def offline_publisher(tmp_path: Path) -> Publisher:
    """Makes releases and sends none."""
    return Publisher(None, keys.make(tmp_path / "publisher.key"))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def image() -> Pixels:
    """28 x 28 x 1."""
    return vectors.image(SHAPE, 77)


# --- processes ------------------------------------------------------------------------------------


@dataclass
class Command:
    """A process; its output is kept line by line."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def wait_for(self, text: str) -> str:
        def there() -> str | None:
            if self.process.poll() is not None:
                self._thread.join()
            found = next((line for line in self.lines if text in line), None)
            if found is None and self.process.poll() is not None:
                pytest.fail(f"ended with {self.process.returncode} without {text!r}: {self.lines}")
            return found

        found: str = wait_until(there, f"never said {text!r}: {self.lines}")
        return found

    def kill(self) -> None:
        """As a power cut would."""
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """As systemd would."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def ended(self) -> int:
        """The exit code of a command that ends by itself; all its lines are here."""
        code = self.process.wait(WAIT_S)
        self._thread.join()
        return code

    def libraries(self) -> str:
        """Everything that is mapped into the process."""
        return Path(f"/proc/{self.process.pid}/maps").read_text()


Start = Callable[..., Command]


@contextlib.contextmanager
def starting() -> Iterator[Start]:
    """Starts `python -m MODULE ARGUMENTS`; kills what a test leaves."""
    started: list[Command] = []

    def begin(module: str, *arguments: object, **environment: str) -> Command:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**{k: v for k, v in os.environ.items() if not k.startswith("FEDBAC_")}, **environment},
        )
        started.append(Command(process))
        return started[-1]

    yield begin
    for command in started:
        if command.process.poll() is None:
            command.kill()


@pytest.fixture
def start() -> Iterator[Start]:
    """See `starting`."""
    with starting() as begin:
        yield begin


@pytest.fixture
def serve(start: Start, broker: Broker, tmp_path: Path) -> Start:
    """See `serving`."""
    return serving(start, broker, tmp_path)


@dataclass
class Place:
    """A broker that runs, a client and a publisher on it, and a way to start devices."""

    broker: Broker
    client: Client
    publisher: Publisher
    serve: Start


@pytest.fixture(scope="session")
def make_place() -> Callable[[Path], contextlib.AbstractContextManager[Place]]:
    """For fixtures that live longer than a test."""

    @contextlib.contextmanager
    def make(directory: Path) -> Iterator[Place]:
        broker = Broker(free_port(), directory / "mosquitto")
        broker.start()
        try:
            client = broker.client()
            publisher = Publisher(client, keys.make(directory / "publisher.key"))
            with starting() as start:
                yield Place(broker, client, publisher, serving(start, broker, directory))
        finally:
            broker.stop()

    return make


def serving(start: Start, broker: Broker, directory: Path) -> Start:
    """Starts a serving agent for gw1 as dev-1, or as another."""

    def begin(name: str = "dev-1", *arguments: object, **environment: str) -> Command:
        state = directory / "devices" / name
        common = ("serve", "--edge", "gw1", "--broker", broker.url, "--name", name, "--state", state)
        return start("device_agent", *common, *arguments, **environment)

    return begin


# --- a cloud whose campaign is over ----------------------------------------------------------------


@dataclass
class FinishedCloud:
    """The files of a cloud after its last round; each `learn` is one round more, not released yet."""

    directory: Path
    federation: Federation
    file: Path

    def learn(self, seed: int) -> int:
        """New parts for both clusters; returns their round."""
        used = method(self.federation)
        lenet = architecture("lenet", SHAPE, len(CLASSES))
        rng = np.random.default_rng(seed)
        with opened_store(self.directory, "cloud") as store:
            node = assemble.cloud(self.federation, "22222222", store)
            state: CloudState = node.machine.state
            drawn = {name: pack({t: 2 * v for t, v in lenet.init(rng).items()}) for name in used.parts()}
            state.parts = {name: PartRef(name, digest(data), len(data)) for name, data in drawn.items()}
            state.previous = {}
            state.phase, state.round = "finished", max(self.federation.rounds, state.round + 1)
            state.last_update = {"gw1": state.round}
            state.clustering = linucb.start({"gw1": 0, "gw2": 1}, 2, self.federation.assignment.arms)
            with store.transaction():
                for data in drawn.values():
                    store.keep_blob(digest(data), data)
                store.write("machine", msgspec.msgpack.encode(state))
            return state.round

    def release(self) -> None:
        """What the cloud's process would do about the newest round, but for publishing it."""
        key_file = self.directory / "release.key"
        key = keys.load(key_file) if key_file.is_file() else keys.make(key_file)
        with opened_store(self.directory, "cloud") as store:
            node = assemble.cloud(self.federation, "22222222", store, signer=key)
            (job,) = (effect.job for effect in node.start(0.0) if isinstance(effect, StartJob))
            assert isinstance(job, ReleaseJob)
            order = builder.Order(federation=self.federation, job=job, blobs=dict(store.blobs))
            node.finished(Built(job.id, builder.build(order)), 1.0)

    def gather(self) -> None:
        """Back to a campaign that waits for its gateways."""
        with opened_store(self.directory, "cloud") as store:
            state: CloudState = assemble.cloud(self.federation, "22222222", store).machine.state
            state.phase, state.round, state.timers = "gathering", 0, {}
            with store.transaction():
                store.write("machine", msgspec.msgpack.encode(state))

    def ledger(self, kind: str) -> list[LedgerLine]:
        """Lines of the cloud's ledger."""
        store = Store(self.directory / "cloud.sqlite", read_only=True)
        try:
            return store.ledger(kind=kind)
        finally:
            store.close()

    def state(self) -> CloudState:
        """What the store holds; also while the cloud runs."""
        store = Store(self.directory / "cloud.sqlite", read_only=True)
        try:
            return from_store.read(store)[1]
        finally:
            store.close()


@pytest.fixture
def finished(tmp_path: Path, federation: Federation) -> FinishedCloud:
    file = tmp_path / "federation.toml"
    file.write_text(TOML)
    made = FinishedCloud(tmp_path / "cloud", federation, file)
    made.learn(1)
    return made


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
