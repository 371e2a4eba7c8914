"""`fedbac status` from the stores of a finished campaign."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedbac_edge.cli import cli
from fedbac_edge.store import Store


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


@pytest.mark.timeout(30)
def test_a_broker_without_a_federation(runner: CliRunner, mosquitto: str) -> None:
    result = runner.invoke(cli, ["status", "--broker", mosquitto])
    assert result.exit_code == 1
    assert "has the cloud been started" in result.output
