"""`fedbac doctor` on brokers that are well, wrong, closed and absent, and on machines with troubles."""

from __future__ import annotations

import json
import queue
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from broker import access, access_files, certificates
from broker.bus import BusEvent, Delivery, Published
from broker.mosquitto import MosquittoBroker
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.cli import cli
from fedbac_edge.commands import broker_checks, checks

ROSTER = {"gw1": ("cam",)}
Examine = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def examine(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> Examine:
    """Runs the doctor, who waits less and loads one small library; name of a check -> what he says."""
    monkeypatch.setattr(broker_checks, "ANSWER_S", 0.5)
    monkeypatch.setattr(broker_checks, "SPEC_S", 0.3)
    monkeypatch.setattr(broker_checks, "CONNECT_S", 2.0)
    monkeypatch.setattr(checks, "LIBRARIES", (("msgspec", "msgspec", ""),))

    def examine(*arguments: object, code: int = 0) -> dict[str, dict[str, Any]]:
        result = runner.invoke(cli, ["doctor", "--json", *map(str, arguments)])
        assert result.exit_code == code, result.output
        return {check["name"]: check for check in json.loads(result.output)}

    return examine


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    certificates.create_authority(folder, ["localhost", "127.0.0.1"])
    for user in ("gw1", "gw1/cam"):
        certificates.issue(folder, user)
    return folder


@pytest.fixture
def guarded(keys: Path, tmp_path: Path, free_port: int) -> Iterator[list[str]]:
    """The options with which the device gw1/cam asks a broker that wants certificates."""
    folder = tmp_path / "broker"
    options = {
        **access_files.write_access_list(folder, "orchard", access.users(ROSTER)),
        **access_files.copy_certificates(folder, keys / "ca.pem", keys / "server.pem", keys / "server.key"),
    }
    pair = certificates.client_pair(keys, "gw1/cam")
    with MosquittoBroker("127.0.0.1", free_port, folder, **options):
        yield [
            *("--broker", f"mqtts://localhost:{free_port}", "--federation", "orchard"),
            *("--ca", str(keys / "ca.pem"), "--cert", str(pair.certificate), "--key", str(pair.key)),
        ]


def test_all_is_well(examine: Examine, guarded: list[str]) -> None:
    found = examine(*guarded, "--as", "gw1/cam")
    assert {check["result"] for check in found.values()} <= {"ok", "unknown"}
    assert "131,072" in found["packet limit"]["found"]
    assert "3 topics" in found["access"]["found"]
    assert found["access"]["result"] == "unknown", "nobody is there to answer"
    assert found["access"]["remedy"] == "start gw1"
    for name in ("broker's certificate", "our certificate", "authority", "clock", "disk", "open files"):
        assert found[name]["result"] == "ok", name
    assert found["msgspec"]["found"][0].isdigit()


def test_a_reader_that_has_enough(free_port: int) -> None:
    """As in `fedbac doctor | head -1`."""
    command = [sys.executable, "-m", "fedbac_edge.cli", "doctor", "--broker", f"mqtt://127.0.0.1:{free_port}"]
    doctor = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert doctor.stdout is not None
    assert doctor.stderr is not None
    doctor.stdout.close()
    said = doctor.stderr.read()
    doctor.stderr.close()
    assert doctor.wait(20) == 1
    assert said == ""


def test_a_denied_topic_is_named(runner: CliRunner, guarded: list[str], examine: Examine) -> None:
    assert examine(*guarded, "--as", "gw1/other", code=1)["access"]["result"] == "wrong"
    lines = runner.invoke(cli, ["doctor", *guarded, "--as", "gw1/other"]).output.splitlines()
    denied = [line for line in lines if line.startswith("wrong")]
    assert len(denied) == 3
    for leaf in ("status", "reply", "update"):
        (line,) = [line for line in denied if f"gw1/device/other/{leaf}" in line]
        assert "let in as 'gw1/other'" in line


def test_what_can_be_wrong_with_a_broker(examine: Examine, mosquitto: str) -> None:
    found = examine("--broker", mosquitto, "--as", "gw1/cam")
    assert found["broker"]["result"] == "ok"
    assert found["access"]["result"] == "unknown"
    assert "--federation" in found["access"]["remedy"]
    found = examine("--broker", "mqtt://localhost:1", code=1)
    assert "no broker listens" in found["broker"]["found"]
    assert "fedbac broker run --port 1" in found["broker"]["remedy"]
    assert found["clock"]["result"] == "ok", "the other checks are made all the same"


def test_passwords(examine: Examine, tmp_path: Path, free_port: int) -> None:
    options = access_files.write_passwords(tmp_path, ["gw1/cam"])
    with MosquittoBroker("127.0.0.1", free_port, tmp_path, **options):
        password = access_files.password_path(tmp_path, "gw1/cam").read_text().strip()
        assert (
            examine("--broker", f"mqtt://gw1%2Fcam:{password}@localhost:{free_port}")["broker"]["result"]
            == "ok"
        )
        found = examine("--broker", f"mqtt://gw1%2Fcam:wrong@localhost:{free_port}", code=1)
        assert "%2F" in found["broker"]["remedy"]


def test_a_packet_limit_that_is_too_small(examine: Examine, tmp_path: Path, free_port: int) -> None:
    with MosquittoBroker("127.0.0.1", free_port, tmp_path, max_packet=1500):
        found = examine("--broker", f"mqtt://localhost:{free_port}", code=1)
    assert found["packet limit"]["result"] == "wrong"
    assert "1,500" in found["packet limit"]["found"]


def test_certificates_that_end(keys: Path) -> None:
    path = certificates.client_pair(keys, "gw1/cam").certificate
    assert checks.certificate("ours", path).result == "ok"
    certificates.issue(keys, "gw1/cam", 10, replace=True)
    soon = checks.certificate("ours", path)
    assert (soon.result, "rotate" in soon.remedy) == ("warning", True)
    certificates.issue(keys, "gw1/cam", 0, replace=True)
    assert checks.certificate("ours", path).result == "wrong"
    assert checks.certificate("ours", path.with_suffix(".key")).result == "wrong"


def test_clocks() -> None:
    now = datetime.now(timezone.utc)
    assert checks.clock().result == "ok"
    assert checks.clock(datetime(1970, 1, 1, tzinfo=timezone.utc)).result == "wrong"
    assert checks.clock(datetime(2100, 1, 1, tzinfo=timezone.utc)).result == "wrong"
    assert checks.clock(now + timedelta(days=2)).result == "ok"


def test_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.disk(tmp_path / "not" / "there").result == "ok"
    (tmp_path / "file").write_text("")
    assert checks.disk(tmp_path / "file" / "state").result == "wrong"
    monkeypatch.setattr(checks, "DISK_WARNING", 10**18)
    assert checks.disk(tmp_path).result == "warning"
    monkeypatch.setattr(checks, "DISK_WRONG", 10**18)
    assert checks.disk(tmp_path).result == "wrong"


def test_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        assert checks.open_files().result == "ok"
        assert checks.open_files(clients=150).result == "warning"
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
        assert checks.open_files().result == "wrong"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is missing, one that cannot be imported, one that kills whoever imports it."""
    for name, text in (("broken", "import nothing_of_this_name"), ("deadly", "import os; os.abort()")):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert checks.library("absent_one", "absent-one", "").result == "wrong"
    assert checks.library("absent_one", "absent-one", "for nothing").result == "ok"
    broken = checks.library("broken", "msgspec", "")
    assert (broken.result, "nothing_of_this_name" in broken.found) == ("wrong", True)
    assert "SIGABRT" in checks.library("deadly", "msgspec", "").found
    assert "deadly" not in sys.modules


@pytest.mark.parametrize(
    ("number", "found", "remedy"),
    [
        ("SIGILL", "a build for another processor?", "pip install --force-reinstall msgspec"),
        ("SIGKILL", "most likely for lack of memory", "raise the limit: MemoryMax="),
        ("SIGSEGV", "is its build damaged?", "pip install --force-reinstall msgspec"),
    ],
)
def test_what_killed_an_import_decides_the_advice(
    number: str, found: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dying.py").write_text(f"import os, signal; os.kill(os.getpid(), signal.{number})")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check = checks.library("dying", "msgspec", "")
    assert check.result == "wrong"
    assert number in check.found
    assert found in check.found
    assert remedy in check.remedy
    assert ("processor" in check.found) == (number == "SIGILL")


def test_the_memory_of_a_broker(free_port: int, tmp_path: Path, examine: Examine) -> None:
    """A limit that is not announced is found, what is retained comes back, and nothing stays behind."""
    broker = MosquittoBroker("127.0.0.1", free_port, tmp_path)
    lines = broker.configuration.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("max_packet_size")]
    broker.configuration.write_text("\n".join([*kept, "message_size_limit 65536", ""]))
    with broker:
        url = f"mqtt://127.0.0.1:{free_port}"
        found = examine("--broker", url)
        assert "60,000" in found["size"]["found"]
        assert found["retained"]["result"] == "ok"
        inbox: queue.SimpleQueue[BusEvent] = queue.SimpleQueue()
        eyes = MqttBus(BrokerUrl.parse(url), "eyes", inbox)
        eyes.subscribe("fedbac/#")
        eyes.start()
        eyes.publish("end", b"", token=1)
        seen = []
        while not isinstance(event := inbox.get(timeout=20.0), Published):
            seen.append(event)
        eyes.close(1.0)
        assert not any(isinstance(event, Delivery) for event in seen)


def test_a_listener_that_never_answers_is_named(free_port: int, examine: Examine) -> None:
    """The doctor's patience is longer than the bus's, so it hears what the bus found."""
    with socket.create_server(("127.0.0.1", free_port)):
        found = examine("--broker", f"mqtt://127.0.0.1:{free_port}", code=1)
    assert "does not answer like a broker" in found["broker"]["found"]
