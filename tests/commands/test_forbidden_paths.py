"""Every path option of every command with a path that this user may not look at; a user without a home."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
import pytest

from device_agent.cli import main as agent
from fedbac_edge.cli import COMMANDS, cli

FEDERATION = """
name = "x"
rounds = 2
[model]
classes = ["a", "b"]
input = [1, 16, 16]
[gateways]
gw1 = []
"""
FEDBAC, AGENT = "fedbac_edge", "device_agent"
PLAIN, TLS = ["--broker", "mqtt://127.0.0.1:1"], ["--broker", "mqtts://127.0.0.1:1"]
CERTIFIED = ["--cert", "client.pem", "--key", "client.key"]
JOIN = [AGENT, "join", "--edge", "gw1"]
SERVE = [AGENT, "serve", "--edge", "gw1"]
INFER = [AGENT, "infer"]
PARTITION = [FEDBAC, "partition", "--data", "data.npz"]
SIMULATE = [FEDBAC, "simulate", "paper/fashion-mnist-0.1"]
BROKER = [FEDBAC, "broker", "run", "--port", "1"]
MADE = [FEDBAC, "broker", "config", "--federation", "x.toml"]
CLOUD = [FEDBAC, "cloud", "run", "--federation", "x.toml"]
RELEASE = ["--federation", "x.toml", "--state", "state"]

LINES: dict[str, list[list[str]]] = {
    "--ca": [
        *([*command, *TLS, "--ca", "@"] for command in (JOIN, SERVE, CLOUD)),
        *([FEDBAC, *name.split(), *TLS, "--ca", "@"] for name in ("status", "doctor", "gateway run gw1")),
        [FEDBAC, "broker", "forget", "x", *TLS, "--ca", "@"],
        [*MADE, "--ca", "@", *CERTIFIED],
        [*BROKER, "--ca", "@", *CERTIFIED],
    ],
    "--cert": [[*command, *TLS, "--cert", "@", "--key", "client.key"] for command in (JOIN, SERVE, CLOUD)],
    "--key": [[*command, *TLS, "--cert", "client.pem", "--key", "@"] for command in (JOIN, SERVE, CLOUD)],
    "--data": [
        [*JOIN, "--data", "@"],
        [*SIMULATE, "--data", "@"],
        [FEDBAC, "init", "--data", "@", "--out", "new.toml"],
        [FEDBAC, "partition", "--data", "@", "--out", "parts"],
    ],
    "--state": [
        *([*command, *PLAIN, "--state", "@"] for command in ([*JOIN, "--data", "data.npz"], SERVE, CLOUD)),
        [*INFER, "--state", "@", "data.npz"],
        [FEDBAC, "gateway", "run", "gw1", "--federation", "x", *PLAIN, "--state", "@"],
        [FEDBAC, "status", "--state", "@"],
        [FEDBAC, "doctor", *PLAIN, "--state", "@"],
        [FEDBAC, "export", "--state", "@", "--out", "models"],
        [*BROKER, "--state", "@"],
        [FEDBAC, "release", "list", "--federation", "x.toml", "--state", "@"],
        [FEDBAC, "backup", "--state", "@", "--to", "copy"],
    ],
    "--config": [[*JOIN, "--config", "@"], [*SERVE, "--config", "@"]],
    "--release-key": [[*SERVE, "--release-key", "@"]],
    "--model": [[*INFER, "--model", "@", "data.npz"]],
    "--watch": [[*INFER, "--watch", "@"]],
    "PATHS": [[*INFER, "@"]],
    "--federation": [
        [FEDBAC, "cloud", "run", "--federation", "@"],
        [FEDBAC, "partition", "--data", "data.npz", "--out", "parts", "--federation", "@"],
        [*BROKER, "--federation", "@"],
        [FEDBAC, "broker", "config", "--federation", "@"],
        [FEDBAC, "keys", "init", "--federation", "@"],
        [FEDBAC, "release", "list", "--federation", "@"],
    ],
    "--out": [
        [FEDBAC, "init", "--out", "@"],
        [*PARTITION, "--federation", "x.toml", "--test", "data.npz", "--allow-tiny", "--out", "@"],
        [*SIMULATE, "--out", "@"],
        [FEDBAC, "simulate", "--resume", "--out", "@"],
        [FEDBAC, "semi", "fedavg", "--out", "@"],
        [FEDBAC, "report", ".", "--out", "@"],
        [FEDBAC, "demo", "--out", "@"],
        [*MADE, "--out", "@"],
    ],
    "--path": [[FEDBAC, "semi", "fedavg", "--path", "@"]],
    "--from": [[FEDBAC, "init", "--from", "@"]],
    "RUNS": [[FEDBAC, "report", "@"]],
    "--to": [
        [FEDBAC, "data", "get", "svhn", "--to", "@"],
        [FEDBAC, "backup", "--state", "FINISHED", "--to", "@"],
    ],
    "--dir": [
        [FEDBAC, "keys", *name, "--dir", "@"] for name in (["init"], ["rotate", "gw1"], ["issue", "gw1"])
    ],
    "--int8": [[FEDBAC, "export", "--state", "FINISHED", "--out", "models", "--int8", "@"]],
    "--keys": [[*BROKER, "--federation", "x.toml", "--keys", "@"]],
    "--acl-file": [[*BROKER, "--acl-file", "@"], [FEDBAC, "broker", "config", "--acl-file", "@"]],
    "--password-file": [[*BROKER, "--password-file", "@"]],
}
"""Option -> command lines in which @ is the path, and FINISHED the state of a federation."""
NOT_LOOKED_AT = {"--persistence"}
"""Written into a configuration for another machine, perhaps."""


def _no_overriding() -> None:
    """Root may look everywhere; the next program that is started may not."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)


@pytest.fixture
def forbidden(tmp_path: Path) -> Iterator[Path]:
    """A path below a folder that is another user's, of mode 0700."""
    locked = tmp_path / "locked"
    (locked / "inner").mkdir(parents=True)
    locked.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(locked, 54321, 54321)
    else:
        locked.chmod(0)
    yield locked / "inner" / "thing"
    locked.chmod(0o700)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """What the command lines name beside the path."""
    (tmp_path / "x.toml").write_text(FEDERATION)
    np.savez(tmp_path / "data.npz", x=np.zeros((40, 16, 16), np.uint8), y=np.arange(40) % 2)
    for name in ("client.pem", "client.key"):
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.parametrize("option", LINES)
def test_is_a_sentence(option: str, place: Path, forbidden: Path, finished: Path) -> None:
    known = {"@": str(forbidden), "FINISHED": str(finished)}
    for line in LINES[option]:
        module, *arguments = (known.get(word, word) for word in line)
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=place,
            env={key: value for key, value in os.environ.items() if not key.startswith("FEDBAC_")},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            preexec_fn=_no_overriding if os.geteuid() == 0 else None,
        )
        assert "Traceback" not in done.stderr, f"{line}\n{done.stderr}"
        assert str(forbidden) in done.stderr, f"{line}: {done}"
        assert done.returncode == 2, f"{line}: {done}"


def test_none_is_forgotten() -> None:
    """Each option of a command that is a path stands in the table."""
    found: set[str] = set()

    def look(command: click.Command) -> None:
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                member = command.get_command(click.Context(command), name)
                assert member is not None
                look(member)
            return
        found.update(
            next(name for name in (*parameter.opts, "") if name.startswith("--"))
            for parameter in command.params
            if isinstance(parameter.type, click.Path) and isinstance(parameter, click.Option)
        )

    assert COMMANDS
    look(cli)
    look(agent)
    assert found - NOT_LOOKED_AT - set(LINES) == set()


Homeless = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def homeless(place: Path) -> Homeless:
    """Runs a command as a user that no passwd knows, without HOME: a container with --user 54321."""
    if os.geteuid() != 0 or (setpriv := shutil.which("setpriv")) is None:
        pytest.skip("only root, with setpriv, can become such a user")
    place.chmod(0o777)
    # It may still read our Python, wherever that lies.
    user = [
        setpriv,
        "--reuid=54321",
        "--clear-groups",
        "--inh-caps=+dac_override",
        "--ambient-caps=+dac_override",
    ]

    def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*user, sys.executable, "-m", module, *arguments],
            cwd=place,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


@pytest.mark.parametrize("command", ["join", "serve"])
def test_without_a_home_a_device_asks_for_its_state(command: str, homeless: Homeless) -> None:
    data = ["--data", "data.npz"] if command == "join" else []
    done = homeless(AGENT, command, "--edge", "gw1", *data)
    assert "no home folder to keep the device's identity in: give a folder with --state" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (2, [AGENT, "infer", "data.npz"]),
        (0, [FEDBAC, "data", "list"]),
        (2, [FEDBAC, "data", "get", "cifar10"]),
        (2, [FEDBAC, "simulate", "paper/cifar10-0.5", "--rounds", "1"]),
        (2, [FEDBAC, "semi", "fedavg", "--data", "svhn"]),
        (0, [FEDBAC, "init", "--data", "data.npz", "--out", "new.toml"]),
        (1, [FEDBAC, "doctor", "--broker", "mqtt://127.0.0.1:1"]),
    ],
)
def test_without_a_home_every_command_ends_in_order(code: int, line: list[str], homeless: Homeless) -> None:
    done = homeless(*line)
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    if "cifar10" in str(line):
        assert "FEDBAC_DATASETS" in done.stderr
