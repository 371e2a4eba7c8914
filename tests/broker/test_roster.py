"""What each user of a roster may say and read, tried with all of them on every topic of a real Mosquitto."""

from __future__ import annotations

import base64
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from broker import access, access_files
from broker.bus import BusEvent, Connected, Delivery, Disconnected, Published, Subscribed, Will
from broker.mosquitto import MosquittoBroker
from broker.mqtt import MqttBus
from broker.topics import BadName
from broker.url import BrokerUrl

ROSTER = {"gw1": ("gw2", "cam"), "gw2": ("cam", "gw2"), "gw3": ("gw1", "cloud")}
"""Devices named like another's gateway, like their own one, like each other, and like the cloud."""
DEVICES = [(gateway, device) for gateway, devices in ROSTER.items() for device in devices]
USERS = ["cloud", "observer", *ROSTER, *(f"{gateway}/{device}" for gateway, device in DEVICES)]
BLOB = f"blob/{'a' * 64}/0"

SHARED = ["spec", "cloud/status", "model/global", BLOB]
ABOVE = ["status", "task", "reply", "update", "receipt", "release"]
BELOW = ["status", "task", "reply", "update", "receipt", "serving", "infer"]
TOPICS = [
    *SHARED,
    "cloud/order",
    *(f"edge/{gateway}/{leaf}" for gateway in ROSTER for leaf in ABOVE),
    *(f"edge/{gateway}/device/{device}/{leaf}" for gateway, device in DEVICES for leaf in BELOW),
    *(f"answer/{user}/q" for user in USERS),
]


def may_write(user: str) -> set[str]:
    """Written down a second time, topic by topic, so that a slip in the rules is seen."""
    gateway, _, device = user.partition("/")
    if user == "cloud":
        return set(TOPICS)
    if user == "observer":
        return set()
    edge = f"edge/{gateway}"
    if not device:
        below = [
            f"{edge}/device/{name}/{leaf}"
            for name in ROSTER[gateway]
            for leaf in ("task", "receipt", "infer")
        ]
        return {f"{edge}/status", f"{edge}/reply", f"{edge}/update", *below}
    return {
        *(f"{edge}/device/{device}/{leaf}" for leaf in ("status", "reply", "update", "serving", "infer")),
        *(f"answer/{gateway}/{name}/q" for name in ROSTER[gateway]),
        f"answer/{gateway}/q",
        "answer/cloud/q",
    }


def may_read(user: str) -> set[str]:
    gateway, _, device = user.partition("/")
    if user in ("cloud", "observer"):
        return set(TOPICS)
    edge = f"edge/{gateway}"
    if not device:
        return {
            *SHARED,
            *(f"{edge}/{leaf}" for leaf in ("task", "receipt", "release")),
            *(
                f"{edge}/device/{name}/{leaf}"
                for name in ROSTER[gateway]
                for leaf in ("status", "reply", "update", "serving")
            ),
            f"answer/{gateway}/q",
            *(f"answer/{gateway}/{name}/q" for name in ROSTER[gateway]),
        }
    return {
        *SHARED,
        f"{edge}/status",
        f"{edge}/release",
        *(f"{edge}/device/{device}/{leaf}" for leaf in ("task", "receipt", "infer")),
        f"answer/{gateway}/{device}/q",
    }


class Member:
    """A client that acknowledges what comes, and remembers it."""

    def __init__(self, url: BrokerUrl, name: str, **options: Any) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.refused: dict[int, str] = {}
        self.connected, self.ended, self.subscribed = (threading.Event() for _ in range(3))
        self._changed = threading.Condition()
        self.bus = MqttBus(url, name, self, back_off=0.05, back_off_cap=0.3, receive_maximum=100, **options)

    def put(self, event: BusEvent, /) -> None:
        match event:
            case Connected():
                self.connected.set()
            case Disconnected():
                self.ended.set()
            case Subscribed():
                self.subscribed.set()
            case Delivery(topic, payload):
                self.bus.acknowledge(event.ticket)
                with self._changed:
                    self.heard.append((topic, payload))
                    self._changed.notify_all()
            case Published(token, refused):
                with self._changed:
                    self.refused[token] = refused
                    self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, seconds), (len(self.heard), len(self.refused))

    def say(self, topic: str, payload: bytes, **options: Any) -> str:
        """Publish and wait for the broker's answer: why it was refused, or nothing."""
        token = 1_000_000 + len(self.refused)
        self.bus.publish(topic, payload, token=token, **options)
        self.wait(lambda: token in self.refused)
        return self.refused[token]


class House:
    """A Mosquitto with the roster's files, and whoever has been let in."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.members: list[Member] = []
        self.broker = MosquittoBroker("127.0.0.1", port, folder, **self.write(USERS))

    def write(self, users: list[str]) -> dict[str, Any]:
        return {
            **access_files.write_access_list(self.folder, "orchard", users),
            **access_files.write_passwords(self.folder, users),
        }

    def url(self, user: str, password: str | None = None, port: int | None = None) -> BrokerUrl:
        if password is None:
            password = access_files.password_path(self.folder, user).read_text().strip()
        return BrokerUrl.parse(f"mqtt://{quote(user, safe='')}:{password}@127.0.0.1:{port or self.port}")

    def enter(self, user: str, name: str = "", *, port: int | None = None, **options: Any) -> Member:
        self.members.append(Member(self.url(user, port=port), name or f"as {user}", **options))
        self.members[-1].bus.start()
        assert self.members[-1].connected.wait(10), user
        return self.members[-1]


@pytest.fixture
def house(tmp_path: Path, free_port: int) -> Iterator[House]:
    home = House(tmp_path / "mosquitto", free_port)
    with home.broker:
        yield home
        for member in home.members:
            member.bus.close(0.5)


def full(topic: str) -> str:
    return f"fedbac/v1/orchard/{topic}"


def test_everybody_tries_every_topic(house: House) -> None:
    members = {user: house.enter(user) for user in USERS}
    foreign = ["fedbac/v1/other/spec", f"fedbac/v1/other/{BLOB}", "fedbac/v1/orchards/spec", "elsewhere"]
    topics = [*map(full, TOPICS), *foreign]
    for member in members.values():
        for filter in ("#", "fedbac/v1/+/spec", *topics):
            member.bus.subscribe(filter)
        assert member.subscribed.wait(10)
    for user, member in members.items():
        for token, topic in enumerate(topics, start=1):
            member.bus.publish(topic, user.encode(), token=token)
    for user, member in members.items():
        member.wait(lambda member=member: len(member.refused) == len(topics))  # type: ignore[misc]
        allowed = {topic for token, topic in enumerate(topics, start=1) if not member.refused[token]}
        assert allowed == set(map(full, may_write(user))), user
        assert set(member.refused.values()) <= {"", "Not authorized"}
    assert members["cloud"].say(full("spec"), b"the end") == ""
    for user, member in members.items():
        member.wait(lambda member=member: (full("spec"), b"the end") in member.heard)  # type: ignore[misc]
        expected = {
            (full(topic), writer.encode()) for writer in USERS for topic in may_write(writer) & may_read(user)
        }
        assert set(member.heard) == expected | {(full("spec"), b"the end")}, user


def test_wills_are_inside_the_access_list(house: House, proxy: Any) -> None:
    observer = house.enter("observer")
    observer.bus.subscribe(full("#"))
    assert observer.subscribed.wait(10)
    own = {
        "cloud": "cloud/status",
        "gw1": "edge/gw1/status",
        "gw1/gw2": "edge/gw1/device/gw2/status",
        "gw2/gw2": "edge/gw2/device/gw2/serving",
    }
    foreign = {"gw1/cam": "edge/gw1/status", "gw3": "edge/gw2/status", "observer": "cloud/status"}
    for wills in (foreign, own):
        link = proxy(SimpleNamespace(port=house.port))
        for user, topic in wills.items():
            house.enter(
                user, f"mortal {user}", port=link.port, will=Will(full(topic), f"{user} vanished".encode())
            )
        link.stop()
    expected = {(full(topic), f"{user} vanished".encode()) for user, topic in own.items()}
    observer.wait(lambda: len(observer.heard) >= len(expected))
    assert house.enter("cloud").say(full("spec"), b"the end") == ""
    observer.wait(lambda: observer.heard[-1] == (full("spec"), b"the end"))
    assert set(observer.heard[:-1]) == expected


def test_who_is_not_let_in(house: House, client: Any) -> None:
    cam = access_files.password_path(house.folder, "gw1/cam").read_text().strip()
    for name, url in (
        ("wrong password", house.url("gw1/cam", "x" * 32)),
        ("another's password", house.url("gw2/cam", cam)),
        ("no such user", house.url("gw9", cam)),
        ("nobody", BrokerUrl.parse(f"mqtt://127.0.0.1:{house.port}")),
    ):
        refused = client(url, name, wait=False)
        (why,) = refused.inbox.wait(Disconnected, final=True)
        assert "password" in why.reason
        assert refused.inbox.of(Connected) == []


def test_another_clients_name_opens_nothing(house: House) -> None:
    """The queue of a gateway that is away is not for a device that takes its client name."""
    gateway = house.enter("gw1", "the gateway")
    gateway.bus.subscribe(full("edge/gw1/#"))
    gateway.bus.subscribe(full("spec"))
    assert gateway.subscribed.wait(10)
    gateway.bus.close()
    cloud = house.enter("cloud")
    assert cloud.say(full("edge/gw1/task"), b"for the gateway alone") == ""
    thief = house.enter("gw1/cam", "the gateway")
    assert cloud.say(full("edge/gw1/task"), b"this one too") == ""
    assert cloud.say(full("spec"), b"the end") == ""
    thief.bus.subscribe(full("spec"))
    thief.wait(lambda: (full("spec"), b"the end") in thief.heard)
    assert {topic for topic, _ in thief.heard} == {full("spec")}


def test_whoever_leaves_the_roster_is_out_and_the_others_notice_nothing(house: House) -> None:
    leaver, stayer = house.enter("gw1/cam"), house.enter("gw1/gw2")
    password = access_files.password_path(house.folder, "gw1/gw2").read_text()
    house.write([user for user in USERS if user != "gw1/cam"])
    assert house.broker.process.pid is not None
    os.kill(house.broker.process.pid, signal.SIGHUP)
    assert leaver.ended.wait(10)
    assert stayer.say(full("edge/gw1/device/gw2/update"), b"still here") == ""
    assert not stayer.ended.is_set()
    assert access_files.password_path(house.folder, "gw1/gw2").read_text() == password
    assert not access_files.password_path(house.folder, "gw1/cam").exists()


def test_secrets_are_for_their_owner(house: House) -> None:
    files = [path for path in house.folder.rglob("*") if path.is_file() and "mosquitto." not in path.name]
    assert {path.name for path in files} >= {"acl", "passwords", "cloud", "observer", "gw1", "cam"}
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for folder in (house.folder / "users").rglob("*"):
        if folder.is_dir():
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    passwords = {path.read_text() for path in (house.folder / "users").rglob("*") if path.is_file()}
    assert len(passwords) == len(USERS)
    hashes = (house.folder / "passwords").read_text()
    assert not any(password.strip() in hashes for password in passwords)


def test_a_hash_that_mosquitto_passwd_made() -> None:
    salt = "eT07YkJnQW3hwj3O"
    made = (
        f"gw1/dev1:$7$101${salt}$YqbONmrb5ggEKzlVYodRrgby3YqXLfJCuqnbLIC1TAx2e+NKbM8oodp0cUQC/61CMk3buE92tyoI"
        "twL34PSaTw=="
    )
    assert access.password_line("gw1/dev1", "hello", base64.b64decode(salt)) == made
    assert access.password_line("gw1/dev1", "hello") != made


@pytest.mark.parametrize("gateway", ["cloud", "observer"])
def test_a_gateway_cannot_have_the_name_of_another_user(gateway: str) -> None:
    with pytest.raises(access.AccessError, match=f"{gateway}-1"):
        access.users({"gw1": (), gateway: ("dev",)})
    with pytest.raises(access.AccessError, match=f"{gateway}-1"):
        access.users({}, [f"{gateway}/dev"])


@pytest.mark.parametrize(
    "user", ["", "gw 1", "gw1/", "/dev", "gw1/dev/x", "gw1/#", "+", "gw1\ntopic #", "a:b"]
)
def test_what_is_no_user(user: str) -> None:
    with pytest.raises(BadName):
        access.users({}, [user])
