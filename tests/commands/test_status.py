"""`fedbac status` from the stores of a finished campaign."""

from __future__ import annotations

import json
import queue
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker import topics, wire
from broker.bus import Published
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.cli import cli
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.messages import CloudStatus, DeviceStatus, GatewayStatus, Message, RoundSummary


def test_every_tier_is_described(runner: CliRunner, finished: Path) -> None:
    result = runner.invoke(cli, ["status", "--state", str(finished), "--json"])
    assert result.exit_code == 0, result.output
    found = {Path(item["store"]).name: item for item in json.loads(result.output)}
    assert set(found) == {"cloud.sqlite", "gateway-gw1.sqlite", "gateway-gw2.sqlite", "device.sqlite"}
    cloud = found["cloud.sqlite"]
    assert (cloud["tier"], cloud["phase"], cloud["round"], cloud["rounds"]) == ("cloud", "finished", 4, 4)
    assert cloud["federation"] == "tiny"
    assert cloud["instance"] == "0badcafe"
    assert set(cloud["assignment"]) == {"gw1", "gw2"}
    assert [(item["round"], item["phase"]) for item in cloud["summaries"]] == [
        (1, "train"),
        (2, "train"),
        (2, "evaluate"),
        (3, "train"),
        (4, "train"),
        (4, "evaluate"),
    ]
    store = Store(finished / "cloud.sqlite", read_only=True)
    assert cloud["parts"] == store.ledger(kind="finished")[0].detail["parts"]
    store.close()
    gateway = found["gateway-gw2.sqlite"]
    assert (gateway["tier"], gateway["federation"], gateway["round"]) == ("gateway", "tiny", 4)
    assert set(gateway["posteriors"]) == {"d3", "d4"}
    assert found["device.sqlite"]["tier"] == "device"


def test_it_is_readable_and_changes_nothing(runner: CliRunner, finished: Path) -> None:
    before = (finished / "cloud.sqlite").read_bytes()
    result = runner.invoke(cli, ["status", "--state", str(finished), "--ledger", "2"])
    assert result.exit_code == 0, result.output
    assert "cloud of tiny" in result.output
    assert "finished, round 4 of 4" in result.output
    assert "gateway of tiny" in result.output
    assert "Beta(" in result.output
    assert (finished / "cloud.sqlite").read_bytes() == before


def test_one_store_by_its_file(runner: CliRunner, finished: Path) -> None:
    store = finished / "gateway-gw1.sqlite"
    result = runner.invoke(cli, ["status", "--state", str(store), "--json", "--ledger", "3"])
    (found,) = json.loads(result.output)
    assert found["tier"] == "gateway"
    assert found["waiting"] == []
    assert len(found["ledger"]) == 3


def test_a_file_that_is_no_store(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"nothing of the kind" * 100)
    result = runner.invoke(cli, ["status", "--state", str(tmp_path)])
    assert result.exit_code == 2
    assert "x.sqlite" in result.output


def test_an_empty_directory(runner: CliRunner, tmp_path: Path) -> None:
    assert runner.invoke(cli, ["status", "--state", str(tmp_path)]).exit_code == 2


@pytest.mark.timeout(30)
def test_a_broker_that_is_not_there(runner: CliRunner, free_port: int) -> None:
    broker = f"mqtt://127.0.0.1:{free_port}"
    result = runner.invoke(cli, ["status", "--broker", broker, "--timeout", "1"])
    assert result.exit_code == 1
    assert broker in result.output
    assert "fedbac broker run" in result.output


@pytest.mark.timeout(30)
def test_a_broker_without_a_federation(runner: CliRunner, mosquitto: str) -> None:
    result = runner.invoke(cli, ["status", "--broker", mosquitto])
    assert result.exit_code == 1
    assert "has the cloud been started" in result.output


def _retain(url: str, messages: dict[str, Message]) -> None:
    """Publish them as their owners would, and wait until the broker has them."""
    inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
    bus = MqttBus(BrokerUrl.parse(url), "owner", inbox)
    bus.start()
    for token, (topic, message) in enumerate(messages.items(), start=1):
        bus.publish(topic, wire.encode(message), retain=True, token=token)
    left = len(messages)
    while left:
        left -= isinstance(inbox.get(timeout=10), Published)
    bus.close()


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("round", "phase", "shown"),
    [(4, "evaluate", "finished"), (4, "train", "offline"), (2, "evaluate", "offline")],
)
def test_a_cloud_that_is_away_has_finished_or_was_stopped(
    runner: CliRunner, mosquitto: str, round: int, phase: str, shown: str
) -> None:
    last = RoundSummary(
        round=round, phase=phase, seconds=1.0, sites={}, active_clusters=1, up_bytes=1, down_bytes=1
    )
    _retain(
        mosquitto,
        {
            topics.cloud_status("tiny"): CloudStatus(
                state="offline", session=1, round=round, rounds=4, last=last
            ),
            # The gateway was cut off and could not say that its devices have left.
            topics.edge("tiny", "gw1", "status"): GatewayStatus(
                state="offline", session=1, ready=True, devices=2, online=2, round=1
            ),
            topics.device("tiny", "gw1", "d1", "status"): DeviceStatus(state="offline", session=1),
            topics.device("tiny", "gw1", "d2", "status"): DeviceStatus(state="idle", session=1),
        },
    )
    result = runner.invoke(cli, ["status", "--broker", mosquitto])
    assert result.exit_code == 0, result.output
    assert f"cloud: {shown}, round {round} of 4" in result.output
    assert "gateway gw1: offline, 1 of 2 devices online\n" in result.output


@pytest.mark.timeout(30)
def test_a_device_that_is_refused_again_and_again_is_named(runner: CliRunner, mosquitto: str) -> None:
    status = GatewayStatus(state="online", session=1, devices=3, online=3, round=9, refused={"d3": 5})
    _retain(
        mosquitto,
        {
            topics.cloud_status("tiny"): CloudStatus(
                state="training", session=1, round=9, rounds=12, last=None
            ),
            topics.edge("tiny", "gw1", "status"): status,
        },
    )
    result = runner.invoke(cli, ["status", "--broker", mosquitto])
    assert result.exit_code == 0, result.output
    said = "    d3: refused 5 times in a row: its steps are far longer than those of the others\n"
    assert said in result.output
