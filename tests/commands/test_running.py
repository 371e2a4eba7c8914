"""Broker, cloud and gateway as processes of their own, over Mosquitto."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from broker import topics, wire
from broker.bus import BusEvent
from broker.mosquitto import find_mosquitto
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.cli import cli
from fedbac_edge.federation_file.template import render
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.messages import DeviceStatus
from fedbac_edge.settings.federation import Federation

TINY = """
name = "tiny"
rounds = 3
[model]
classes = ["a", "b"]
input = [1, 16, 16]
[gateways]
gw1 = []
gw2 = []
"""


class Command:
    """A running `fedbac ...` whose output can be waited for."""

    def __init__(self, log: Path, arguments: tuple[str, ...]) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedbac_edge.cli", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def wait_for(self, text: str, timeout: float = 20.0) -> None:
        """Until its output holds `text`; fails with the output when it does not."""
        end = time.monotonic() + timeout
        while text not in self.log.read_text():
            if time.monotonic() > end or self.process.poll() is not None:
                pytest.fail(f"{text!r} did not come:\n{self.log.read_text()}")
            time.sleep(0.02)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(20)


Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts commands; ends those that still run."""
    started: list[Command] = []

    def begin(*arguments: str) -> Command:
        started.append(Command(tmp_path / f"{len(started)}.log", arguments))
        return started[-1]

    yield begin
    for command in started:
        with contextlib.suppress(ProcessLookupError):
            command.process.kill()
        command.process.wait()


@pytest.fixture
def federation(tmp_path: Path) -> str:
    """A federation.toml."""
    path = tmp_path / "federation.toml"
    path.write_text(TINY)
    return str(path)


@pytest.mark.parametrize("kind", ["mosquitto", "embedded"])
def test_a_broker_in_the_foreground(start: Start, tmp_path: Path, free_port: int, kind: str) -> None:
    broker = start(
        *("broker", "run", "--kind", kind, "--port", str(free_port)), "--state", str(tmp_path / "b")
    )
    broker.wait_for(f"listening on mqtt://127.0.0.1:{free_port} ({kind})")
    second = start("broker", "run", "--port", str(free_port), "--state", str(tmp_path / "c"))
    assert second.process.wait(20) == 1
    assert "something listens" in second.log.read_text()
    assert broker.end() == 0


def test_an_open_broker_needs_to_be_wanted(runner: CliRunner, tmp_path: Path) -> None:
    command = ["broker", "run", "--host", "0.0.0.0", "--state", str(tmp_path)]
    result = runner.invoke(cli, command)
    assert result.exit_code == 1
    assert "--insecure" in result.output


def test_the_printed_configuration_is_one_that_mosquitto_takes(
    runner: CliRunner, tmp_path: Path, federation: str, free_port: int
) -> None:
    command = ["broker", "config", "--federation", federation, "--port", str(free_port)]
    result = runner.invoke(cli, command)
    assert result.exit_code == 0
    (tmp_path / "mosquitto.conf").write_text(result.output)
    program = find_mosquitto()
    assert program is not None
    process = subprocess.Popen([program, "-c", str(tmp_path / "mosquitto.conf")])
    try:
        command = ["status", "--broker", f"mqtt://127.0.0.1:{free_port}"]
        assert "has the cloud been started" in runner.invoke(cli, command).output
    finally:
        process.kill()
        process.wait()


def test_cloud_and_gateway_find_each_other(
    start: Start, runner: CliRunner, tmp_path: Path, mosquitto: str, federation: str
) -> None:
    state = str(tmp_path / "state")
    gateway = start("gateway", "run", "gw1", "--broker", mosquitto, "--state", state)
    run = ("cloud", "run", "--federation", federation, "--broker", mosquitto, "--state", state)
    cloud = start(*run)
    cloud.wait_for("waiting for gw1 (not there), gw2 (not there)")
    gateway.wait_for("gateway gw1 of tiny")  # found on the broker, though started first
    cloud.wait_for("waiting for gw1 (its devices), gw2 (not there)")
    gateway.wait_for("not ready: 0 of 0 devices online")

    status = runner.invoke(cli, ["status", "--broker", mosquitto, "--json"])
    assert status.exit_code == 0, status.output
    (found,) = json.loads(status.output)
    assert found["federation"] == "tiny"
    assert found["cloud"]["state"] == "gathering"
    assert found["spec"]["federation"]["rounds"] == 3
    assert found["gateways"]["gw1"]["status"]["state"] == "online"
    plain = runner.invoke(cli, ["status", "--broker", mosquitto, "--federation", "tiny"])
    assert "gateway gw1: online, not ready" in plain.output
    other = runner.invoke(cli, ["status", "--broker", mosquitto, "--federation", "other"])
    assert other.exit_code == 1

    kept = runner.invoke(cli, ["broker", "forget", "tiny", "--broker", mosquitto])
    assert kept.exit_code == 1
    assert "the cloud of tiny is online" in kept.output

    second = start(*run)
    assert second.process.wait(20) == 2
    assert "another process uses" in second.log.read_text()
    assert gateway.end() == 0
    cloud.wait_for("gw1 (not there), gw2 (not there)")
    assert cloud.end() == 0
    assert "stopped before the first round; the same command goes on from there" in cloud.log.read_text()
    assert "Error" not in cloud.log.read_text()

    Path(federation).write_text("seed = 5\n" + TINY)
    changed = start(*run)
    assert changed.process.wait(20) == 2
    assert "other settings" in changed.log.read_text()
    assert "seed: 1 -> 5" in changed.log.read_text()

    Path(federation).write_text(TINY.replace("rounds = 3", "rounds = 4"))
    longer = start(*run)
    longer.wait_for("from round 1 on: rounds: 3 -> 4")
    assert longer.end() == 0


def test_a_finished_campaign_ends_the_cloud_at_once(
    start: Start, tmp_path: Path, finished: Path, mosquitto: str
) -> None:
    store = Store(finished / "cloud.sqlite", read_only=True)
    written = store.read("federation")
    store.close()
    assert written is not None
    state = tmp_path / "state"
    state.mkdir()
    (state / "cloud.sqlite").write_bytes((finished / "cloud.sqlite").read_bytes())
    file = tmp_path / "tiny.toml"
    file.write_text(render(msgspec.msgpack.decode(written, type=Federation)))
    cloud = start("cloud", "run", "--federation", str(file), "--broker", mosquitto, "--state", str(state))
    assert cloud.process.wait(20) == 0
    assert "finished: 4 rounds" in cloud.log.read_text()


def test_a_broker_that_is_not_there_is_named_and_waited_for(
    start: Start, tmp_path: Path, federation: str, free_port: int
) -> None:
    broker = f"mqtt://127.0.0.1:{free_port}"
    state = str(tmp_path / "state")
    cloud = start("cloud", "run", "--federation", federation, "--broker", broker, "--state", state)
    cloud.wait_for(f"tiny at {broker}")
    cloud.wait_for("broker: ")
    cloud.wait_for("waiting for gw1 (not there)")
    assert cloud.end(signal.SIGINT) == 0


@pytest.mark.parametrize("named", [(), ("--federation", "tiny")], ids=["found", "named"])
def test_a_gateway_that_is_not_listed_waits_for_its_place(
    start: Start, tmp_path: Path, mosquitto: str, federation: str, named: tuple[str, ...]
) -> None:
    """It says so and leaves no trace that the cloud would wait for; once it is listed it takes its place."""
    stranger = start("gateway", "run", "gw9", "--broker", mosquitto, "--state", str(tmp_path / "g"), *named)
    stranger.wait_for("waiting: no federation")
    run = ("cloud", "run", "--federation", federation, "--broker", mosquitto, "--state", str(tmp_path / "c"))
    cloud = start(*run)
    cloud.wait_for("waiting for gw1 (not there), gw2 (not there)")
    stranger.wait_for("federation tiny has no gateway 'gw9'; it has: gw1, gw2; add it under [gateways]")
    assert "gw9" not in cloud.log.read_text()
    assert cloud.end() == 0
    Path(federation).write_text(TINY + 'gw9 = ["d9"]\n')
    cloud = start(*run)
    cloud.wait_for('from round 1 on: gateways.gw9: not listed -> ["d9"]')
    stranger.wait_for("not ready: 0 of 1 devices online")
    cloud.wait_for("gw9 (its devices)")
    assert cloud.end() == 0
    Path(federation).write_text(TINY)
    cloud = start(*run)
    end = time.monotonic() + 20
    while stranger.log.read_text().count("has no gateway 'gw9'") < 2 and time.monotonic() < end:
        time.sleep(0.1)
    assert stranger.log.read_text().count("has no gateway 'gw9'") == 2, "left out again: it waits again"
    assert stranger.end() == 0


@pytest.mark.parametrize("junk", [b"junk", b""], ids=["junk", "nothing"])
def test_what_a_stranger_writes_over_the_description_is_put_right(
    start: Start, tmp_path: Path, mosquitto: str, federation: str, junk: bytes
) -> None:
    """The cloud hears it and puts its own back; who comes meanwhile waits and then joins."""
    run = ("cloud", "run", "--federation", federation, "--broker", mosquitto, "--state", str(tmp_path / "c"))
    cloud = start(*run)
    cloud.wait_for("waiting for gw1 (not there), gw2 (not there)")
    inbox: queue.SimpleQueue[BusEvent] = queue.SimpleQueue()
    stranger = MqttBus(BrokerUrl.parse(mosquitto), "stranger", inbox, back_off=0.05)
    stranger.start()
    for _ in range(2):  # the second one comes a moment after the cloud has answered the first
        stranger.publish(topics.spec("tiny"), junk, retain=True)
    gateway = start("gateway", "run", "gw1", "--broker", mosquitto, "--state", str(tmp_path / "g"))
    gateway.wait_for("gateway gw1 of tiny")
    stranger.close(0.5)
    cloud.wait_for("waiting for gw1 (its devices), gw2 (not there)")
    assert gateway.end() == 0


def test_a_gateway_moves_from_a_dead_federation_to_a_living_one(
    start: Start, tmp_path: Path, mosquitto: str, federation: str
) -> None:
    """It had joined what was there; then the cloud that is meant comes up on the same broker."""
    run = ("cloud", "run", "--federation", federation, "--broker", mosquitto, "--state", str(tmp_path / "c"))
    old = start(*run)
    old.wait_for("waiting for gw1")
    gateway = start("gateway", "run", "gw1", "--broker", mosquitto, "--state", str(tmp_path / "g"))
    gateway.wait_for("federation", 20)
    old.wait_for("gw1 (its devices)")
    assert old.end() == 0
    other = tmp_path / "other.toml"
    other.write_text(TINY.replace('"tiny"', '"other"'))
    run = ("cloud", "run", "--federation", str(other), "--broker", mosquitto, "--state", str(tmp_path / "d"))
    new = start(*run)
    gateway.wait_for("the cloud of tiny is gone, and other has a place for gw1: moving there", 120)
    new.wait_for("gw1 (its devices)")
    assert gateway.process.poll() is None
    assert gateway.end() == 0


def test_a_gateway_that_leaves_before_it_found_anything(start: Start, tmp_path: Path, mosquitto: str) -> None:
    gateway = start("gateway", "run", "gw1", "--broker", mosquitto, "--state", str(tmp_path / "g"))
    gateway.wait_for("waiting: no federation")
    assert gateway.end(signal.SIGINT) == 0
    assert "stopped before a federation was found" in gateway.log.read_text()


def test_a_device_that_is_gone_for_good_is_forgotten(
    start: Start, runner: CliRunner, tmp_path: Path, mosquitto: str, federation: str
) -> None:
    """The broker keeps nothing of it, and its gateway drops what it had learned."""
    Path(federation).write_text(TINY.replace("gw1 = []", 'gw1 = ["d1"]'))
    run = ("cloud", "run", "--federation", federation, "--broker", mosquitto, "--state", str(tmp_path / "c"))
    start(*run)
    gateway = start("gateway", "run", "gw1", "--broker", mosquitto, "--state", str(tmp_path / "g"))
    gateway.wait_for("0 of 1 devices online")
    forget = ["device", "forget", "d1", "--broker", mosquitto]
    nothing = runner.invoke(cli, forget)
    assert nothing.exit_code == 1
    assert "holds nothing of a device 'd1'" in nothing.output
    inbox: queue.SimpleQueue[BusEvent] = queue.SimpleQueue()
    device = MqttBus(BrokerUrl.parse(mosquitto), "d1", inbox, back_off=0.05)
    device.start()
    topic = topics.device("tiny", "gw1", "d1", "status")
    device.publish(topic, wire.encode(DeviceStatus(state="online", session=1, samples=9)), retain=True)
    gateway.wait_for("1 of 1 devices online")
    refused = runner.invoke(cli, forget)
    assert refused.exit_code == 1
    assert "d1 is online" in refused.output
    device.publish(topic, wire.encode(DeviceStatus(state="offline", session=1)), retain=True)
    device.close(5)
    done = runner.invoke(cli, forget)
    assert done.exit_code == 0, done.output
    assert "cleared 1 retained topics of d1 at gw1 in tiny" in done.output
    gateway.wait_for("d1 was forgotten")
    assert runner.invoke(cli, forget).exit_code == 1
    assert gateway.end() == 0
    with contextlib.closing(Store(tmp_path / "g" / "gateway-gw1.sqlite")) as store:
        state = msgspec.msgpack.decode(store.read("machine") or b"")
    assert "d1" not in state["members"]


def test_a_federation_that_is_over_is_forgotten(
    start: Start, runner: CliRunner, tmp_path: Path, mosquitto: str, federation: str
) -> None:
    run = ("cloud", "run", "--federation", federation, "--broker", mosquitto, "--state", str(tmp_path / "c"))
    cloud = start(*run)
    cloud.wait_for("waiting for gw1")
    forget = ["broker", "forget", "tiny", "--broker", mosquitto]
    status = ["status", "--broker", mosquitto]
    deadline = time.monotonic() + 20
    while runner.invoke(cli, status).exit_code and time.monotonic() < deadline:
        pass
    cloud.process.kill()
    cloud.process.wait()
    while "cloud: offline" not in runner.invoke(cli, status).output and time.monotonic() < deadline:
        pass  # the broker publishes the will
    done = runner.invoke(cli, forget)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("cleared ")
    assert int(done.output.split()[1]) >= 2, "its description and its status at least"
    assert "does not know any federation" in runner.invoke(cli, status).output
    again = runner.invoke(cli, forget)
    assert again.exit_code == 1
    assert "holds nothing of a federation 'tiny'" in again.output
