"""Uploads over Mosquitto through a link that is cut at random bytes, or that is very slow."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker import bridges
from broker.bus import Delivery
from broker.mosquitto import MosquittoBroker
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.lab.fleet.world import World
from fedbac_edge.lab.trials import stub, trials
from fedbac_edge.node import assemble
from fedbac_edge.node.node import Node
from fedbac_edge.node.runtime import Runtime
from fedbac_edge.node.store import Store, StoreError
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.events import AnyJob, Event, Job
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.settings.federation import Federation, ModelTable


@dataclass
class Proxy:
    """In front of a broker: resets connections at random bytes of a random direction, or slows them down."""

    target: int
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    cuts_left: int = 0
    reach: int = 120_000
    """The latest byte of a connection at which it is cut."""
    rate: float | None = None
    """Bytes per second in each direction."""
    blocked: bool = False
    """Nobody gets through."""
    cuts: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    _listener: socket.socket = field(default_factory=socket.socket)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)
    _open: set[socket.socket] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"

    def block(self) -> None:
        self.blocked = True
        for sock in list(self._open):
            _reset(sock)

    def close(self) -> None:
        self._over.set()
        self._listener.close()
        for sock in list(self._open):
            _reset(sock)

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                near, _ = self._listener.accept()
                if self.blocked:
                    _reset(near)
                    continue
                far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                return
            with self._lock:
                self.accepted += 1
                direction = self.rng.choice(("up", "down")) if self.cuts_left > 0 else ""
                at = self.rng.randint(1, self.reach)
            for sock in (near, far):
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(sock)
            for way, source, sink in (("up", near, far), ("down", far, near)):
                budget = at if way == direction else None
                threading.Thread(target=self._pump, args=(way, source, sink, budget), daemon=True).start()

    def _pump(self, way: str, source: socket.socket, sink: socket.socket, budget: int | None) -> None:
        try:
            while data := source.recv(4096):
                if budget is not None and len(data) >= budget:
                    sink.sendall(data[:budget])
                    with self._lock:
                        if self.cuts_left > 0:
                            self.cuts_left -= 1
                            self.cuts[way] += 1
                    return
                if budget is not None:
                    budget -= len(data)
                if self.rate is not None:
                    self._over.wait(len(data) / self.rate)
                sink.sendall(data)
        except OSError:
            return
        finally:
            _reset(source)
            _reset(sink)
            self._open -= {source, sink}


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RD)
    sock.close()


class StubWorker:
    def __init__(self, federation: Federation) -> None:
        self._federation = federation

    def start(self, job: AnyJob, blobs: Mapping[str, bytes], done: Callable[[Event], None]) -> None:
        assert isinstance(job, Job)
        done(stub.perform(job, blobs, self._federation))

    def cancel(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class Fleet:
    """All roles in threads of this process, each over a broker's address of its own."""

    federation: Federation
    folder: Path
    _threads: dict[str, threading.Thread] = field(default_factory=dict)
    _runtimes: dict[str, Runtime] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def start(self, url_of: Callable[[str], str], **bus: Any) -> None:
        spec = Spec(federation=self.federation, instance=trials.INSTANCE, software="")
        name = self.federation.name
        self._start("cloud", url_of, lambda s: assemble.cloud(self.federation, trials.INSTANCE, s), bus)

        def gateway_of(gateway: str) -> Callable[[Store], Node]:
            return lambda store: assemble.gateway(name, gateway, store)

        def device_of(gateway: str, device: str) -> Callable[[Store], Node]:
            return lambda store: assemble.device(
                spec, gateway, device, trials.profile(self.federation, device), store
            )

        for gateway, devices in self.federation.gateways.items():
            self._start(gateway, url_of, gateway_of(gateway), bus)
            for device in devices:
                self._start(device, url_of, device_of(gateway, device), bus)

    def _start(
        self, name: str, url_of: Callable[[str], str], make: Callable[[Store], Node], bus: dict[str, Any]
    ) -> None:
        worker = StubWorker(self.federation)

        def run() -> None:
            store = Store(self.folder / f"{name}.sqlite")
            try:
                runtime = Runtime(
                    store,
                    make(store),
                    lambda inbox, will: MqttBus(BrokerUrl.parse(url_of(name)), name, inbox, will, **bus),
                    worker,
                    until=lambda node: name == "cloud" and node.machine.state.phase == "finished",
                )
                self._runtimes[name] = runtime
                runtime.run()
            except Exception as error:
                self.failed.append(f"{name}: {error!r}")
            finally:
                store.close()

        self._threads[name] = threading.Thread(target=run, name=name, daemon=True)
        self._threads[name].start()

    def finish(self, timeout: float) -> None:
        self._threads["cloud"].join(timeout)
        late = self._threads["cloud"].is_alive()
        for runtime in self._runtimes.values():
            runtime.stop()
        for thread in self._threads.values():
            thread.join(20)
        assert self.failed == []
        assert not late

    def hashes(self) -> dict[str, str]:
        store = Store(self.folder / "cloud.sqlite")
        state = msgspec.msgpack.decode(store.read("machine") or b"", type=CloudState)
        return {name: ref.hash for name, ref in sorted(state.parts.items())}

    def assert_counted_once(self) -> int:
        """By the ledgers; returns how many updates counted."""
        updates = 0
        for gateway in self.federation.gateways:
            store = Store(self.folder / f"{gateway}.sqlite")
            lines = store.ledger("selected")
            asked = Counter((line.round, name) for line in lines for name in line.detail["asked"])
            counted = Counter((line.round, line.subject) for line in store.ledger("accepted"))
            assert counted == asked
            assert set(counted.values()) == {1}
            assert store.ledger("refused") == []
            updates += len(counted)
        return updates


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[int]:
    """The port of a Mosquitto."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with MosquittoBroker("127.0.0.1", port, tmp_path / "mosquitto"):
        yield port


def cut_campaign(broker: int, folder: Path, rounds: int, cuts: int, seed: int) -> tuple[Counter[str], int]:
    """Cuts by direction, and updates that counted; the models are those of the undisturbed run."""
    shape: trials.Shape = (1, 2, rounds, "float32")
    federation = trials.federation_of(shape)
    selection = msgspec.structs.replace(federation.selection, participation=1.0)
    federation = msgspec.structs.replace(federation, selection=selection)
    undisturbed = trials.Trial(federation, World())
    undisturbed.add_all(lambda name: Store(None))
    assert undisturbed.finish()

    proxy = Proxy(broker, random.Random(seed), cuts)
    fleet = Fleet(federation, folder)
    try:
        fleet.start(
            lambda name: f"mqtt://127.0.0.1:{broker}" if name == "cloud" else proxy.url,
            back_off=0.02,
            back_off_cap=0.1,
        )
        fleet.finish(60 + 20 * rounds)
    finally:
        proxy.close()
    assert fleet.hashes() == undisturbed.hashes()
    return proxy.cuts, fleet.assert_counted_once()


def test_cuts_at_random_bytes_in_both_directions(broker: int, tmp_path: Path) -> None:
    cuts, updates = cut_campaign(broker, tmp_path, rounds=3, cuts=1000, seed=1)
    assert updates == 6
    assert cuts["up"] >= 3, cuts
    assert cuts["down"] >= 3, cuts


class Eyes:
    """A client that sees what is retained at a site."""

    def __init__(self, url: str) -> None:
        self.retained: dict[str, bytes] = {}
        self._bus = MqttBus(BrokerUrl.parse(url), "eyes", self, session_expiry=0)
        self._bus.subscribe("fedbac/v1/trial/model/+")
        self._bus.subscribe("fedbac/v1/trial/blob/+/+")
        self._bus.start()

    def put(self, event: object, /) -> None:
        if isinstance(event, Delivery):
            if event.payload:
                self.retained[event.topic] = event.payload
            self._bus.acknowledge(event.ticket)

    def close(self) -> None:
        self._bus.close(1.0)


def test_a_site_that_is_cut_off_waits_serves_its_models_and_resumes(broker: int, tmp_path: Path) -> None:
    """Two brokers and a bridge between them; nothing of it leaves this machine."""
    shape: trials.Shape = (1, 2, 6, "float32")
    federation = trials.federation_of(shape)
    uplink = Proxy(broker)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        site_port: int = probe.getsockname()[1]
    site = MosquittoBroker("127.0.0.1", site_port, tmp_path / "site")
    with site.configuration.open("a") as configuration:
        configuration.write(bridges.section("trial", "gw1", BrokerUrl.parse(uplink.url)))
    fleet = Fleet(federation, tmp_path)
    with site:
        try:
            fleet.start(
                lambda name: f"mqtt://127.0.0.1:{broker if name == 'cloud' else site_port}",
                back_off=0.02,
                back_off_cap=0.1,
            )
            wait_for_round(tmp_path / "cloud.sqlite", 3)
            uplink.block()
            time.sleep(1.0)
            state = cloud_state(tmp_path / "cloud.sqlite")
            eyes = Eyes(f"mqtt://127.0.0.1:{site_port}")
            time.sleep(1.0)
            names = {topic.rsplit("/", 1)[1] for topic in eyes.retained if "/model/" in topic}
            eyes.close()
            assert names == {"global", "cluster-0", "cluster-1"}
            assert any("/blob/" in topic for topic in eyes.retained), "the site's own broker has the parts"
            later = cloud_state(tmp_path / "cloud.sqlite")
            assert later.round - state.round <= 1, "no round passes without the site"
            assert later.phase != "finished"
            uplink.blocked = False
            fleet.finish(120)
        finally:
            uplink.close()
    assert fleet.hashes() == trials.undisturbed(shape)[0]
    assert fleet.assert_counted_once() == 6


def cloud_state(path: Path) -> CloudState:
    store = Store(path, read_only=True)
    try:
        return msgspec.msgpack.decode(store.read("machine") or b"", type=CloudState)
    finally:
        store.close()


def wait_for_round(path: Path, round: int, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(StoreError, msgspec.DecodeError):
            if cloud_state(path).round >= round:
                return
        time.sleep(0.02)
    pytest.fail(f"round {round} did not come")


@pytest.mark.soak
def test_a_thousand_cuts(broker: int, tmp_path: Path, record: Callable[[str], None]) -> None:
    began = time.monotonic()
    cuts, updates = cut_campaign(broker, tmp_path, rounds=120, cuts=1000, seed=7)
    record(
        f"cuts: {dict(cuts)}, {updates} updates of 121 KB, each counted once, "
        f"{time.monotonic() - began:.0f} s"
    )
    assert updates == 240
    assert sum(cuts.values()) == 1000


@pytest.mark.soak
def test_ten_kilobytes_a_second(broker: int, tmp_path: Path, record: Callable[[str], None]) -> None:
    """Half a megabyte down and up again takes 100 s; the keep-alive is 30 s, and nobody hangs up."""
    federation = trials.federation_of((1, 1, 1, "float32"))
    model = ModelTable(classes=tuple("0123456789"), input=(3, 32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    federation = msgspec.structs.replace(federation, model=model)
    proxy = Proxy(broker, rate=10_000.0)
    fleet = Fleet(federation, tmp_path)
    began = time.monotonic()
    try:
        fleet.start(lambda name: proxy.url if name == "d11" else f"mqtt://127.0.0.1:{broker}", keep_alive=30)
        fleet.finish(400)
    finally:
        proxy.close()
    assert fleet.assert_counted_once() == 1
    (line,) = Store(tmp_path / "gw1.sqlite").ledger("accepted")
    assert line.detail["bytes"] > 490_000
    assert proxy.accepted == 1, "the link was given up and made again"
    record(f"10 KB/s: {line.detail['bytes']} bytes in {time.monotonic() - began:.0f} s, one connection")
