"""`fedbac-agent join` as a process, over Mosquitto, with a real cloud and gateway."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from broker import topics, wire
from device_agent import identity
from device_agent.cli import main
from fedbac_edge.protocol.messages import DeviceStatus, GatewayStatus
from fedbac_edge.settings.federation import Federation


def test_trains_and_is_counted(
    site: Any, federation: Federation, data: Path, start_agent: Any, is_gone: Any
) -> None:
    """Joined, asked, trained, counted; the agent's own process stays without torch, and leaves nothing."""
    topic = topics.device("tiny", "gw1", "dev-1", "status")
    site.bus.subscribe(topic)
    site.run_cloud_and_gateway(federation)
    agent = start_agent(site, data)
    joined = agent.wait_for("joined")
    assert joined["device"] == "dev-1"
    assert joined["samples"] + joined["holdout"] == 300
    agent.wait_for("counted", kind="train", round=2)
    trained = agent.wait_for("trained", round=1)
    assert trained["samples"] == joined["samples"]
    assert trained["holdout"] == joined["holdout"]
    order = [line["event"] for line in agent.lines if line.get("round") == 1]
    assert order == ["task", "training", "trained", "sent", "counted"] or order == [
        "task",
        "training",
        "trained",
        "counted",  # the receipt was faster than the broker's acknowledgement
    ]
    (trainer,) = agent.children()
    assert "libtorch" in Path(f"/proc/{trainer}/maps").read_text()
    assert "torch" not in agent.libraries()

    site.tiers["gw1"].stop()
    agent.wait_for("gateway", gateway_state="offline")

    began = time.monotonic()
    assert agent.end(signal.SIGTERM) == 0
    assert time.monotonic() - began < 5
    assert agent.lines[-1]["event"] == "left"
    assert is_gone(trainer)
    assert agent.errors == []
    time.sleep(0.2)
    assert wire.decode(site.seen[topic][-1], DeviceStatus).state == "offline"


def test_killed_in_training_and_started_again(
    site: Any, federation: Federation, data: Path, start_agent: Any, is_gone: Any
) -> None:
    """kill -9 while training: the trainer goes too; the next start is the same device and does the task."""
    training = msgspec.structs.replace(federation.training, epochs=30)
    site.run_cloud_and_gateway(msgspec.structs.replace(federation, training=training))
    agent = start_agent(site, data, name="")
    name = agent.wait_for("joined")["device"]
    assert name.startswith("dev-")
    agent.wait_for("training", round=1)
    (trainer,) = agent.children()
    assert agent.end(signal.SIGKILL) == -signal.SIGKILL
    assert is_gone(trainer)
    assert not any(line["event"] == "trained" for line in agent.lines)

    again = start_agent(site, data, name="")
    assert again.wait_for("joined")["device"] == name
    again.wait_for("training", round=1)  # from its store: no second task is needed
    assert not any(line["event"] == "task" and line["round"] == 1 for line in again.lines)
    again.wait_for("counted", round=1)
    assert again.end(signal.SIGINT) == 0


def test_waits_for_everybody(
    federation: Federation, data: Path, start_agent: Any, site_without_broker: Any
) -> None:
    """No broker, then no federation, then no gateway: the agent says whom it waits for, and joins."""
    site = site_without_broker
    agent = start_agent(site, data)
    assert "no broker listens" in agent.wait_for("waiting")["text"]
    site.start_broker()
    site.describe(federation)
    agent.wait_for("joined")
    assert "gw1, which has not been seen yet" in agent.wait_for("waiting", gateway="gw1")["text"]
    status = GatewayStatus(state="online", session=1)
    site.publish(topics.edge("tiny", "gw1", "status"), wire.encode(status))
    agent.wait_for("gateway", gateway_state="online")
    away = msgspec.structs.replace(status, state="offline")
    site.publish(topics.edge("tiny", "gw1", "status"), wire.encode(away))
    assert "offline" in agent.wait_for("gateway", gateway_state="offline")["text"]
    assert agent.end() == 0


def test_follows_the_federation(site: Any, federation: Federation, data: Path, start_agent: Any) -> None:
    """A federation that starts anew is joined anew; one for other images cannot be, and the agent says so."""
    site.describe(federation, "11111111")
    agent = start_agent(site, data)
    agent.wait_for("joined")
    site.describe(federation, "22222222")
    agent.wait_for("federation")
    end = time.monotonic() + 20
    while sum(line["event"] == "joined" for line in agent.lines) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    model = msgspec.structs.replace(federation.model, input=(1, 32, 32))
    site.describe(msgspec.structs.replace(federation, model=model), "33333333")
    assert agent.exit_code() == 2
    assert sum(line["event"] == "joined" for line in agent.lines) == 2
    assert "32x32" in "".join(agent.errors)
    assert "Traceback" not in "".join(agent.errors)


def test_one_of_two_namesakes_stops(site: Any, federation: Federation, data: Path, start_agent: Any) -> None:
    """Two devices with one name take the session from each other until one of them stops with a sentence."""
    site.describe(federation)
    first = start_agent(site, data, state="first")
    first.wait_for("joined")
    second = start_agent(site, data, state="second")
    end = time.monotonic() + 60
    while first.process.poll() is None and second.process.poll() is None and time.monotonic() < end:
        time.sleep(0.1)
    stopped, other = (first, second) if first.process.poll() is not None else (second, first)
    assert stopped.exit_code() == 1
    assert "name of its own" in "".join(stopped.errors)
    assert "Traceback" not in "".join(stopped.errors)
    assert other.process.poll() is None
    assert other.end() == 0


def test_wrong_password(
    tmp_path: Path, federation: Federation, data: Path, start_agent: Any, site_without_broker: Any
) -> None:
    """Refused credentials: a sentence, exit 1, no more attempts."""
    passwords = tmp_path / "passwords"
    passwords.touch(mode=0o600)
    subprocess.run(["mosquitto_passwd", "-b", str(passwords), "dev-1", "right"], check=True)
    site = site_without_broker
    site.options["password_file"] = passwords
    site.start_broker()
    agent = start_agent(site, data, "--broker", f"mqtt://dev-1:wrong@127.0.0.1:{site.port}")
    assert agent.exit_code() == 1
    assert "password" in "".join(agent.errors)
    assert "wrong" not in "".join(agent.errors).replace("are wrong", "")


Refusal = Callable[..., str]


@pytest.fixture
def refusal(site: Any, data: Path, tmp_path: Path) -> Refusal:
    """Joins in this process and expects exit 2; what was said."""

    def join(*arguments: str, path: Path = data) -> str:
        command = ["join", "--edge", "gw1", "--broker", site.url, "--data", str(path), "--name", "dev-1"]
        result = CliRunner().invoke(main, [*command, "--state", str(tmp_path / "state"), *arguments])
        assert result.exit_code == 2, result.output
        assert isinstance(result.exception, SystemExit)
        return result.output

    return join


def test_no_place_for_this_device(site: Any, federation: Federation, refusal: Refusal) -> None:
    """Several federations with a place for it: which one is its owner's to say."""
    site.describe(federation)
    site.describe(msgspec.structs.replace(federation, name="other"))
    assert "other, tiny" in refusal()


@pytest.mark.parametrize("eligibility", ["online", "roster"])
def test_a_device_waits_for_its_place(
    site: Any, federation: Federation, data: Path, start_agent: Any, eligibility: str
) -> None:
    """An unknown gateway, a list without this name, one with it, one without it again: it waits, it joins."""
    elsewhere = msgspec.structs.replace(federation, gateways={"gw2": ("dev-1",)})
    site.describe(elsewhere)
    agent = start_agent(site, data)
    assert "has no gateway 'gw1'; it has: gw2" in agent.wait_for("waiting")["text"]
    others = msgspec.structs.replace(federation, gateways={"gw1": ("a", "b")}, eligibility=eligibility)
    site.describe(others)
    again = start_agent(site, data, state="other")
    assert "is not among them" in again.wait_for("waiting")["text"]
    assert again.end() == 0
    site.describe(msgspec.structs.replace(others, gateways={"gw1": ("a", "dev-1")}))
    agent.wait_for("joined")
    site.describe(others)
    end = time.monotonic() + 20
    while agent.lines[-1]["event"] != "waiting" and time.monotonic() < end:
        time.sleep(0.05)
    assert "'dev-1' is not among them" in agent.lines[-1]["text"]
    assert agent.end() == 0


def test_second_agent_on_one_state(refusal: Refusal, tmp_path: Path) -> None:
    """A state directory has one agent at a time."""
    with identity.held(tmp_path / "state", "dev-1"):
        assert "another agent runs on" in refusal()


def test_data_that_do_not_fit(site: Any, federation: Federation, refusal: Refusal, tmp_path: Path) -> None:
    """Data are held to the federation before joining."""
    site.describe(federation)
    x, y = np.zeros((20, 28, 28), np.uint8), np.zeros(20, np.int64)
    np.savez(tmp_path / "label.npz", x=x, y=y + 10)
    assert "label 10" in refusal(path=tmp_path / "label.npz")
    np.savez(tmp_path / "size.npz", x=np.zeros((20, 32, 32), np.uint8), y=y)
    assert "32x32" in refusal(path=tmp_path / "size.npz")
    np.savez(tmp_path / "empty.npz", x=x[:0], y=y[:0])
    assert "no samples" in refusal(path=tmp_path / "empty.npz")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "size.npz").read_bytes()[:500])
    assert "cut.npz" in refusal(path=tmp_path / "cut.npz")


def test_data_without_labels_for_a_method_that_needs_some(
    site: Any, federation: Federation, refusal: Refusal, data: Path, start_agent: Any, tmp_path: Path
) -> None:
    """None at all: declined before joining, exit 2. Some: the others are left out, and it says so."""
    site.describe(federation)
    with np.load(data, allow_pickle=False) as garments:
        x, y = garments["x"], garments["y"]
    np.savez(tmp_path / "bare.npz", x=x)
    said = refusal(path=tmp_path / "bare.npz")
    assert "300 images, none of them labelled, and fedbac learns from labelled ones only" in said
    np.savez(tmp_path / "some.npz", x=x, y=np.where(np.arange(300) < 120, y, -1))
    agent = start_agent(site, tmp_path / "some.npz")
    joined = agent.wait_for("joined")
    assert joined["samples"] + joined["holdout"] == 120
    assert "300 images, 120 labelled" in joined["text"]
    assert "left out" in joined["text"]
    assert agent.end() == 0
