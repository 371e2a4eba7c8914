"""Which federation a broker holds: found, waited for, chosen, refused. Over Mosquitto."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from broker import topics, wire
from broker.bus import BusEvent, Published
from broker.mosquitto import MosquittoBroker
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.federation_file import reading
from fedbac_edge.node.discovery import DiscoveryError, Interrupted, SeveralFederations, find_spec
from fedbac_edge.protocol.messages import CloudStatus, Spec
from fedbac_edge.settings.federation import Federation


def free_url() -> BrokerUrl:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return BrokerUrl.parse(f"mqtt://127.0.0.1:{probe.getsockname()[1]}")


@dataclass
class Retained:
    """A Mosquitto and what lies on it."""

    url: BrokerUrl
    _bus: MqttBus
    _inbox: queue.SimpleQueue[BusEvent]

    def put(
        self, name: str, payload: bytes | None = None, gateways: dict[str, tuple[str, ...]] | None = None
    ) -> Spec:
        federation = reading.parse(f'name = "{name}"\n[model]\nclasses = ["cat", "dog"]')
        federation = msgspec.structs.replace(federation, gateways=gateways or {})
        spec = Spec(federation=federation, instance="11111111", software="test")
        self._publish(topics.spec(name), payload or wire.encode(spec))
        return spec

    def say(self, name: str, state: str) -> None:
        self._publish(topics.cloud_status(name), wire.encode(CloudStatus(state=state, session=1)))

    def _publish(self, topic: str, payload: bytes) -> None:
        self._bus.publish(topic, payload, retain=True, token=1)
        while not isinstance(self._inbox.get(timeout=10), Published):
            pass


@pytest.fixture
def retained(tmp_path: Path) -> Iterator[Retained]:
    url = free_url()
    with MosquittoBroker(url.host, url.port, tmp_path):
        inbox: queue.SimpleQueue[BusEvent] = queue.SimpleQueue()
        bus = MqttBus(url, "cloud", inbox, back_off=0.05)
        bus.start()
        yield Retained(url, bus, inbox)
        bus.close(0.5)


@dataclass
class Said:
    """What was said, and a call that waits for it."""

    lines: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, line: str) -> None:
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()

    def wait(self, word: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: any(word in line for line in self.lines), 20), self.lines


def test_found_by_name_and_alone(retained: Retained) -> None:
    spec, said = retained.put("fleet"), Said()
    assert find_spec(retained.url, "fleet", "test", said) == spec
    assert find_spec(retained.url, None, "test", said) == spec
    assert said.lines == []


def test_one_whose_cloud_is_there_goes_first(retained: Retained) -> None:
    """Beside a federation that is over (its cloud's will was heard) the living one is meant."""
    retained.put("over")
    living = retained.put("living")
    retained.say("over", "offline")
    retained.say("living", "training")
    assert find_spec(retained.url, None, "test", Said()) == living
    retained.say("over", "gathering")
    with pytest.raises(SeveralFederations, match="living, over"):
        find_spec(retained.url, None, "test", Said())


@pytest.mark.parametrize("name", [None, "fleet"])
def test_a_place_is_waited_for(retained: Retained, name: str | None) -> None:
    """The list on the broker is older than the newcomer: it says so and waits until it is on it."""

    def missing(federation: Federation) -> str:
        return "" if "gw1" in federation.gateways else "there is no gateway gw1 in it"

    retained.put("fleet")
    said = Said()
    found = in_thread(lambda: find_spec(retained.url, name, "test", said, missing=missing))
    said.wait("there is no gateway gw1 in it")
    listed = retained.put("fleet", gateways={"gw1": ()})
    assert found.get(timeout=10) == listed


def test_several(retained: Retained) -> None:
    """Without a name the choice is a person's; with one it is clear."""
    retained.put("fleet")
    other = retained.put("other")
    with pytest.raises(SeveralFederations, match=r"fleet, other.*--federation fleet"):
        find_spec(retained.url, None, "test", Said())
    assert find_spec(retained.url, "other", "test", Said()) == other


def in_thread(search: Callable[[], Spec]) -> queue.SimpleQueue[Spec | Exception]:
    found: queue.SimpleQueue[Spec | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            found.put(search())
        except Exception as error:
            found.put(error)

    threading.Thread(target=run, daemon=True).start()
    return found


def test_waits_and_names_the_others(retained: Retained) -> None:
    """A name that is not there yet, or misspelt: said with what there is, and found once it comes."""
    retained.put("fleet")
    said = Said()
    found = in_thread(lambda: find_spec(retained.url, "fleeet", "test", said))
    said.wait("no federation called 'fleeet'")
    assert said.lines == [f"waiting: no federation called 'fleeet' on {retained.url} yet; there is: fleet"]
    spec = retained.put("fleeet")
    assert found.get(timeout=10) == spec
    with pytest.raises(DiscoveryError, match=r"gave up after 0\.5 s: no federation called 'x'"):
        find_spec(retained.url, "x", "test", said, timeout=0.5)


def test_waits_for_the_broker(tmp_path: Path) -> None:
    url, said, stop = free_url(), Said(), threading.Event()
    found = in_thread(lambda: find_spec(url, None, "test", said, stop.is_set))
    said.wait("no broker listens")
    with MosquittoBroker(url.host, url.port, tmp_path):
        time.sleep(0.2)
        stop.set()
        assert isinstance(found.get(timeout=10), Interrupted)


def test_what_cannot_be_read(retained: Retained) -> None:
    """A newer wire version, junk, a description under another's topic: said, and waited out."""
    spec = retained.put("fleet")
    newer = msgspec.msgpack.decode(wire.encode(spec))
    assert newer["v"] == 1
    retained.put("fleet", payload=msgspec.msgpack.encode({**newer, "v": 9}))
    with pytest.raises(DiscoveryError, match=r"version 9 .* speaks 1"):
        find_spec(retained.url, "fleet", "test", Said(), timeout=0.5)
    said = Said()
    found = in_thread(lambda: find_spec(retained.url, None, "test", said))
    said.wait("version 9")
    assert retained.put("fleet") == found.get(timeout=10), "its cloud has put its own back"
    retained.put("fleet", payload=msgspec.msgpack.encode({**newer, "v": 9}))
    stranger = retained.put("stranger")
    retained.put("stranger", payload=b"\xc1")
    readable = retained.put("readable")
    assert find_spec(retained.url, None, "test", Said()) == readable  # the only one that can be joined
    retained.put("fleet", payload=wire.encode(stranger))
    with pytest.raises(DiscoveryError, match="it describes 'stranger'"):
        find_spec(retained.url, "fleet", "test", Said(), timeout=0.5)


def test_refused_for_good(tmp_path: Path) -> None:
    """A broker that wants a password: no endless waiting."""
    url = free_url()
    passwords = tmp_path / "passwords"
    passwords.touch(mode=0o600)
    with (
        MosquittoBroker(url.host, url.port, tmp_path, password_file=passwords),
        pytest.raises(DiscoveryError, match="user"),
    ):
        find_spec(url, None, "test", Said())


def test_a_denied_topic_is_named(tmp_path: Path) -> None:
    """An access list without the spec."""
    url = free_url()
    rules = tmp_path / "acl"
    rules.write_text("topic read elsewhere\n")
    rules.chmod(0o600)
    with (
        MosquittoBroker(url.host, url.port, tmp_path / "broker", acl_file=rules),
        pytest.raises(DiscoveryError, match=r"no federation|does not let this client read"),
    ):
        find_spec(url, "fleet", "test", Said(), timeout=1.0)
