"""Flag over FEDBAC_* variable over file over default; what is wrong is said before any connection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from device_agent import agent, settings
from device_agent.cli import main
from device_agent.settings import Settings, default_state

Run = Callable[..., Result]


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Settings]:
    """What `join` would have been done with: only the joining itself is left out."""
    calls: list[Settings] = []
    monkeypatch.setattr(agent, "join", lambda wanted, voice: calls.append(wanted))
    monkeypatch.setattr(settings, "DEFAULT_FILE", tmp_path / "etc" / "agent.toml")
    return calls


def run(*arguments: str, **variables: str | None) -> Result:
    return CliRunner().invoke(main, ["join", *arguments], env=variables)


def test_precedence(joined: list[Settings], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    file = tmp_path / "agent.toml"
    file.write_text('edge = "file"\nname = "file"\nbroker = "mqtt://file"\ndata = "photos"\nresize = true\n')
    common: dict[str, Any] = {
        "FEDBAC_CONFIG": str(file),
        "FEDBAC_EDGE": "variable",
        "FEDBAC_NAME": "variable",
    }
    result = run("--edge", "flag", **common)
    assert result.exit_code == 0, result.output
    (found,) = joined
    assert (found.edge, found.name, found.broker.host) == ("flag", "variable", "file")
    assert (found.device, found.broker.port, found.federation) == ("auto", 1883, None)
    assert found.resize
    assert found.data == tmp_path / "photos"  # relative to the file, not to where the agent was started


def test_defaults(joined: list[Settings], tmp_path: Path) -> None:
    result = run("--edge", "gw1", "--data", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert str(joined[0].broker) == "mqtt://localhost:1883"
    assert joined[0].state == default_state(None)
    assert run("--edge", "gw1", "--data", str(tmp_path), "--name", "kitchen").exit_code == 0
    assert joined[1].state == default_state("kitchen") != default_state(None)


def test_the_system_file_is_read_when_it_is_there(joined: list[Settings], tmp_path: Path) -> None:
    settings.DEFAULT_FILE.parent.mkdir()
    settings.DEFAULT_FILE.write_text(f'edge = "gw7"\ndata = "{tmp_path}"\n')
    assert run().exit_code == 0
    assert joined[0].edge == "gw7"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('edge = "gw1"\ngatway = "gw1"\n', "gatway"),
        ("edge = 7\n", "edge"),
        ('device = "tpu"\n', "device"),
        ('resize = "yes"\n', "resize"),
        ("edge = \n", "not valid TOML"),
        ("\x00", "TOML"),
    ],
)
def test_a_wrong_file(joined: list[Settings], tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    result = run("--config", str(file), "--edge", "gw1", "--data", str(tmp_path))
    assert result.exit_code == 2
    assert "wrong.toml" in result.output
    assert said in result.output
    assert joined == []


@pytest.mark.parametrize("flag", ["--name", "--edge", "--federation"])
@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "x" * 300])
def test_impossible_names(joined: list[Settings], tmp_path: Path, flag: str, name: str) -> None:
    result = run("--edge", "gw1", "--data", str(tmp_path), flag, name)
    assert result.exit_code == 2
    assert "a name is 1 to 64" in result.output
    assert len(result.output) < 500
    assert joined == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no gateway was given"),
        (["--edge", "gw1"], "fedbac-agent join --edge gw1 --data photos/"),
        (["--edge", "gw1", "--data", ""], "no data was given"),
        (["--edge", "gw1", "--data", "/no/such/place"], "no such file or folder"),
        (["--edge", "gw1", "--data", ".", "--broker", "http://x"], "mqtt://"),
        (["--edge", "gw1", "--data", ".", "--broker", "mqtt://u:secret@h/x"], "nothing may follow"),
        (["--edge", "gw1", "--data", ".", "--ca", "/no/ca.pem"], "mqtts://"),
        (["--edge", "gw1", "--data", ".", "--broker", "mqtts://h", "--ca", "/no/ca.pem"], "is not there"),
        (["--edge", "gw1", "--data", ".", "--broker", "mqtts://h", "--cert", __file__], "go together"),
        (["--edge", "gw1", "--data", ".", "--broker", "mqtts://h", "--ca", __file__], "no certificates"),
        (["--edge", "gw1", "--data", ".", "--device", "tpu"], "cuda"),
        (["--edge", "gw1", "--data", ".", "--config", "/no/agent.toml"], "does not exist"),
        (["--colour"], "--colour"),
        (["gw1"], "gw1"),
    ],
)
def test_wrong_usage(joined: list[Settings], arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert "secret" not in result.output
    assert joined == []


def test_help_has_examples() -> None:
    for arguments in ([], ["join"], ["serve"], ["infer"]):
        result = CliRunner().invoke(main, [*arguments, "--help"])
        assert result.exit_code == 0
        _, heading, examples = result.output.partition("Example:\n")
        assert heading
        assert " ".join(["fedbac-agent", *arguments]) in examples
    assert "--edge gw1" in CliRunner().invoke(main, ["join", "--help"]).output


def test_default_state_follows_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_state(None) == Path("/var/lib/fedbac/device")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/me/.state")
    assert default_state("kitchen") == Path("/home/me/.state/fedbac/devices/kitchen")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_state(None) == Path("/home/me/.local/state/fedbac/device")
