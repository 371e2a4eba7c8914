"""The real loops of all tiers on a real Mosquitto that asks for certificates, with a stub that trains."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from broker import access, access_files, certificates
from broker.mosquitto import MosquittoBroker
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.federation_file import reading
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.node import assemble
from fedbac_edge.node.node import Node
from fedbac_edge.node.runtime import Runtime
from fedbac_edge.node.store import LedgerLine, Store
from fedbac_edge.parts.part import pack, unpack
from fedbac_edge.protocol.device.state import Profile
from fedbac_edge.protocol.events import Evaluated, Event, Job, Trained, TrainJob
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.randomness import generator
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import Score

INSTANCE = "0badcafe"


def free_port() -> int:
    """A TCP port of the loopback address that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def federation() -> Federation:
    """Two gateways with two devices each, some named like a gateway."""
    return reading.parse(
        """
        name = "orchard"
        rounds = 8
        eligibility = "roster"
        [model]
        classes = ["a", "b"]
        input = [1, 16, 16]
        [selection]
        participation = 1.0
        [assignment]
        every = 3
        [gateways]
        gw1 = ["gw2", "cam"]
        gw2 = ["cam", "gw2"]
        """
    )


class Stub:
    """A worker whose training is a seeded step, and takes `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: threading.Timer | None = None

    def start(self, job: Any, blobs: Mapping[str, bytes], done: Callable[[Event], None]) -> None:
        self.cancel()
        found = {hash: blobs[hash] for hash in job.parts.values()} if isinstance(job, TrainJob) else {}
        self._timer = threading.Timer(self._seconds, lambda: done(_result(job, found)))
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()

    def close(self) -> None:
        self.cancel()


def _result(job: Job, blobs: Mapping[str, bytes]) -> Event:
    score = Score(10, 6, 8.0)
    if not isinstance(job, TrainJob):
        return Evaluated(job.id, dict.fromkeys(job.candidates, score))
    rng = generator(*cast("tuple[int, str, str, int, str]", job.seed))
    schema = LeNet((1, 16, 16), 2).schema()
    parts = {}
    for role, hash in sorted(job.parts.items()):
        start = unpack(blobs[hash], schema)
        parts[role] = pack(
            {n: (t + 0.01 * rng.standard_normal(t.shape)).astype(np.float32) for n, t in start.items()}
        )
    return Trained(job.id, parts, 50, 50, 1.0, score, score if job.previous else None)


class Tier:
    """One tier's loop in a thread of its own."""

    def __init__(
        self, name: str, make: Callable[[Store], Node], bus: Callable[..., MqttBus], **how: Any
    ) -> None:
        self.connections = 0
        self.round = 0
        self.ledger: list[LedgerLine] = []
        self._link = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(make, bus, how), name=name, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def _run(self, make: Callable[[Store], Node], bus: Callable[..., MqttBus], how: dict[str, Any]) -> None:
        with contextlib.closing(Store(None)) as store:
            self._runtime = Runtime(store, make(store), bus, observe=self._observe, **how)
            self._ready.set()
            self._runtime.run()
            self.ledger = store.ledger()

    def _observe(self, node: Node) -> None:
        if self._runtime.link != self._link:
            self._link = self._runtime.link
            self.connections += self._link == "connected"
        self.round = getattr(node.machine.state, "round", 0)

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"{self._thread.name} did not end"

    def stop(self) -> None:
        self._runtime.stop()
        self.join(10)


class Cutter:
    """A TCP forwarder whose connections can be cut at any moment."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target, self._open, self._lock = target, list[socket.socket](), threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                with self._lock:
                    self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        with self._lock:
            doomed, self._open = self._open, []
        for sock in doomed:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def close(self) -> None:
        self._listener.close()
        self.cut()


class Orchard:
    """Broker, keys and tiers of a federation. `port` leads to the broker through a link that can be cut."""

    def __init__(self, folder: Path, federation: Federation) -> None:
        self.federation = federation
        self.keys, self.broker_folder = folder / "keys", folder / "broker"
        self.users = access.users(federation.gateways)
        certificates.create_authority(self.keys, ["127.0.0.1"])
        for user in self.users:
            certificates.issue(self.keys, user)
        files = (self.keys / "ca.pem", self.keys / "server.pem", self.keys / "server.key")
        options = {
            **access_files.write_access_list(self.broker_folder, federation.name, self.users),
            **access_files.copy_certificates(self.broker_folder, *files),
        }
        self.broker = MosquittoBroker("127.0.0.1", free_port(), self.broker_folder, **options)
        self.broker.start()
        self.link = Cutter(self.broker.process._port)
        self.tiers: dict[str, Tier] = {}

    def url(self, user: str) -> BrokerUrl:
        pair = certificates.client_pair(self.keys, user)
        return BrokerUrl.parse(
            f"mqtts://127.0.0.1:{self.link.port}",
            ca=self.keys / "ca.pem",
            certificate=pair.certificate,
            key=pair.key,
        )

    def start(self, user: str, *, credentials_of: str = "", **how: Any) -> Tier:
        """Start the tier of a user, with the certificate of another one if wanted."""
        gateway, device = access.split(user)
        name = self.federation.name
        spec = Spec(federation=self.federation, instance=INSTANCE, software="")
        profile = Profile(samples=50, labelled=50, holdout=10)

        def make(store: Store) -> Node:
            if gateway is None:
                return assemble.cloud(self.federation, INSTANCE, store)
            if device is None:
                return assemble.gateway(name, gateway, store)
            return assemble.device(spec, gateway, device, profile, store)

        if device is not None:
            how["worker"] = Stub(0.15)
        url = self.url(credentials_of or user)

        def bus(inbox: Any, will: Any) -> MqttBus:
            return MqttBus(url, f"tier {user}", inbox, will, back_off=0.05, back_off_cap=0.3)

        self.tiers[user] = Tier(user, make, bus, **how)
        return self.tiers[user]

    def rewrite_access_list(self, change: Callable[[str], str]) -> None:
        """Change the access list by hand and let Mosquitto read it again."""
        path = self.broker_folder / "acl"
        path.write_text(change(path.read_text()))
        self.broker.stop()
        self.broker.start()

    def close(self) -> None:
        try:
            for tier in self.tiers.values():
                tier.stop()
        finally:
            self.link.close()
            self.broker.stop()


@pytest.fixture
def orchard(tmp_path: Path, federation: Federation) -> Iterator[Orchard]:
    home = Orchard(tmp_path, federation)
    try:
        yield home
    finally:
        home.close()


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Poll a condition; fails the test when it does not come true."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            pytest.fail(f"{what} did not happen within {seconds:g} s")
        time.sleep(0.01)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the tiers put on the console, at the level of the commands."""
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def until() -> Callable[..., None]:
    """See wait_until."""
    return wait_until
