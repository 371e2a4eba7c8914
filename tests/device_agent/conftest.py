"""Agents as processes, on a real broker, with a real cloud and gateway; and small slices of Fashion-MNIST."""

from __future__ import annotations

import contextlib
import gzip
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
import pytest

from broker import topics, wire
from broker.bus import Delivery, Published
from broker.mosquitto import MosquittoBroker
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.federation_file import reading
from fedbac_edge.node import assemble
from fedbac_edge.node.node import Node
from fedbac_edge.node.runtime import Runtime, opened_store
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.settings.federation import Federation

FASHION = Path("/usr/share/datasets/fashion-mnist")
CLASSES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 images of Fashion-MNIST and their labels as .npz."""
    if not FASHION.is_dir():
        pytest.skip(f"Fashion-MNIST is not at {FASHION} (Debian package dataset-fashion-mnist)")
    with gzip.open(FASHION / "train-images-idx3-ubyte.gz") as stream:
        x = np.frombuffer(stream.read(16 + 300 * 784), np.uint8)[16:].reshape(300, 28, 28)
    with gzip.open(FASHION / "train-labels-idx1-ubyte.gz") as stream:
        y = np.frombuffer(stream.read(8 + 300), np.uint8)[8:].astype(np.int64)
    path = tmp_path_factory.mktemp("data") / "garments.npz"
    np.savez(path, x=x, y=y)
    return path


@pytest.fixture(scope="session")
def federation() -> Federation:
    """A small one; tests change what they need with `msgspec.structs.replace`."""
    return reading.parse(
        f"""
        name = "tiny"
        rounds = 100000
        [model]
        classes = {json.dumps(CLASSES)}
        [method]
        clusters = 2
        [training]
        epochs = 1
        [selection]
        participation = 1.0
        [assignment]
        method = "fixed"
        [deadlines]
        gather_s = 0.5
        """
    )


def free_port() -> int:
    """A TCP port of the loopback address that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Site:
    """A Mosquitto, and on it what a test wants: descriptions, a cloud, a gateway, eyes."""

    directory: Path
    port: int = field(default_factory=free_port)
    options: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, list[bytes]] = field(default_factory=dict)
    """Topic -> payloads, of what the eyes were asked to see."""
    tiers: dict[str, Runtime] = field(default_factory=dict)
    """The cloud and the gateway that run here."""
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _bus: MqttBus | None = None
    _published: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    def start_broker(self) -> None:
        self._stack.enter_context(
            MosquittoBroker("127.0.0.1", self.port, self.directory / "mosquitto", **self.options)
        )

    def put(self, event: object, /) -> None:
        """Inbox of the site's own bus."""
        if isinstance(event, Delivery):
            self.seen.setdefault(event.topic, []).append(event.payload)
            assert self._bus is not None
            self._bus.acknowledge(event.ticket)
        if isinstance(event, Published):
            self._published.put(event.token)

    @property
    def bus(self) -> MqttBus:
        """A connection of the test's own."""
        if self._bus is None:
            self._bus = MqttBus(BrokerUrl.parse(self.url), "eyes", self, back_off=0.05)
            self._bus.start()
            self._stack.callback(self._bus.close, 0.5)
        return self._bus

    def publish(self, topic: str, payload: bytes) -> None:
        """Retained; returns when the broker has it."""
        self.bus.publish(topic, payload, retain=True, token=1)
        self._published.get(timeout=10)

    def describe(self, federation: Federation, instance: str = "11111111") -> None:
        """The retained spec, without any cloud."""
        spec = Spec(federation=federation, instance=instance, software="test")
        self.publish(topics.spec(federation.name), wire.encode(spec))

    def run_cloud_and_gateway(self, federation: Federation, gateway: str = "gw1") -> None:
        """Both tiers in threads of the test, as their processes would run them."""
        self._run("cloud", lambda store: assemble.cloud(federation, "11111111", store))
        self._run(gateway, lambda store: assemble.gateway(federation.name, gateway, store))

    def _run(self, name: str, make: Callable[[Store], Node]) -> None:
        started: queue.SimpleQueue[Runtime] = queue.SimpleQueue()

        def run() -> None:
            with opened_store(self.directory / "tiers", name) as store:
                runtime = Runtime(
                    store,
                    make(store),
                    lambda inbox, will: MqttBus(BrokerUrl.parse(self.url), name, inbox, will, back_off=0.05),
                )
                started.put(runtime)
                runtime.run()

        thread = threading.Thread(target=run, name=name)
        thread.start()
        runtime = self.tiers[name] = started.get(timeout=10)
        self._stack.callback(thread.join)
        self._stack.callback(runtime.stop)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site whose broker runs."""
    made = Site(tmp_path)
    made.start_broker()
    yield made
    made.close()


@dataclass
class Agent:
    """A running `fedbac-agent join --json`."""

    process: subprocess.Popen[str]
    lines: list[dict[str, Any]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _threads: list[threading.Thread] = field(default_factory=list)

    def listen(self) -> None:
        for target in (self._read_lines, self._read_errors):
            self._threads.append(threading.Thread(target=target, daemon=True))
            self._threads[-1].start()

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(json.loads(line))
                self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self.errors += list(self.process.stderr)

    def wait_for(self, event: str, timeout: float = 40.0, **fields: object) -> dict[str, Any]:
        """The first line of this kind; fails the test when it does not come."""
        end = time.monotonic() + timeout
        with self._changed:
            while True:
                for line in self.lines:
                    if line["event"] == event and all(line.get(k) == v for k, v in fields.items()):
                        return line
                if (left := end - time.monotonic()) <= 0 or self.process.poll() is not None:
                    pytest.fail(
                        f"no {event} {fields}; lines: {self.lines[-10:]}, errors: {self.errors[-10:]}"
                    )
                self._changed.wait(min(left, 0.5))

    def end(self, number: int = signal.SIGTERM, timeout: float = 10.0) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.exit_code(timeout)

    def exit_code(self, timeout: float = 40.0) -> int:
        """Wait for the end; all its lines are here afterwards."""
        code = self.process.wait(timeout)
        for thread in self._threads:
            thread.join(5)
        return code

    def children(self) -> list[int]:
        """Processes that this agent has started."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def libraries(self) -> str:
        """Everything that is mapped into the agent's own process."""
        return Path(f"/proc/{self.process.pid}/maps").read_text()


StartAgent = Callable[..., Agent]


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[StartAgent]:
    """Starts agents; kills those that a test leaves."""
    agents: list[Agent] = []

    def start(site: Site, data: Path, *arguments: str, name: str = "dev-1", state: str = "state") -> Agent:
        command = [sys.executable, "-m", "device_agent", "join", "--edge", "gw1", "--json"]
        command += ["--broker", site.url, "--data", str(data), "--state", str(tmp_path / state)]
        command += ["--name", name] if name else []
        process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("FEDBAC_")},
        )
        agents.append(Agent(process))
        agents[-1].listen()
        return agents[-1]

    yield start
    for agent in agents:
        if agent.process.poll() is None:
            agent.process.kill()
        agent.exit_code()


def gone(pid: int, timeout: float = 5.0) -> bool:
    """True once no process has this number any more (one that is dead and not yet reaped counts as gone)."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def is_gone() -> Callable[[int], bool]:
    """See `gone`."""
    return gone


def changed(federation: Federation, **tables: Any) -> Federation:
    """A federation with other fields."""
    return msgspec.structs.replace(federation, **tables)


@pytest.fixture
def site_without_broker(tmp_path: Path) -> Iterator[Site]:
    """A site whose broker a test starts later."""
    made = Site(tmp_path)
    yield made
    made.close()
