"""deploy/: what systemd itself says of the units, and that everything they name exists."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from device_agent.cli import main as agent
from fedbac_edge.cli import cli as fedbac

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
NAMES = [unit.name for unit in UNITS]
EXPOSURE = 3.0
"""At most, on systemd's scale of 10."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
each = pytest.mark.parametrize("unit", UNITS, ids=NAMES)


def settings(unit: Path) -> dict[str, list[str]]:
    """Setting -> its values in order; comments are left out, each instance is gw1."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(name, []).append(value.replace("%i", "gw1"))
    return found


def test_the_units_are_those_of_all_roles() -> None:
    assert NAMES == [
        "fedbac-agent.service",
        "fedbac-broker.service",
        "fedbac-cloud.service",
        "fedbac-gateway@.service",
        "fedbac-serve.service",
    ]


@needs_systemd
@each
def test_what_a_unit_may_touch_is_little(unit: Path) -> None:
    ran = subprocess.run(
        ["systemd-analyze", "security", "--no-pager", "--offline=yes", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unrecognized option" in ran.stderr:
        pytest.skip("a systemd that reads no units offline")
    level = re.search(r"exposure level for \S+ ([0-9.]+)", ran.stdout)
    assert level is not None, ran.stdout + ran.stderr
    assert float(level[1]) <= EXPOSURE, ran.stdout


@needs_systemd
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        program = Path(sys.executable).with_name("fedbac")
        text = unit.read_text().replace("/opt/fedbac/bin/fedbac-agent", str(program))
        text = re.sub(r"(?m)^User=.*\n", "", text.replace("/opt/fedbac/bin/fedbac", str(program)))
        (tmp_path / unit.name.replace("@", "@gw1")).write_text(text)
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.glob("*.service"))],
        capture_output=True,
        text=True,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
        check=False,
    )
    assert [line for line in ran.stderr.splitlines() if "fedbac" in line] == []


def users() -> set[str]:
    lines = (DEPLOY / "fedbac.sysusers").read_text(encoding="utf-8").splitlines()
    return {line.split()[1] for line in lines if line.startswith("u ")}


@each
def test_its_user_is_made_and_its_state_is_where_its_command_looks(unit: Path) -> None:
    found = settings(unit)
    assert found["User"][0] in users()
    (state,) = found["StateDirectory"]
    environment = dict(value.split("=", 1) for value in found.get("Environment", []))
    words = shlex.split(found["ExecStart"][0])
    named = words[words.index("--state") + 1] if "--state" in words else environment["FEDBAC_STATE"]
    assert named == f"/var/lib/{state}"
    assert found["StateDirectoryMode"] == ["0700"]


@each
def test_its_command_parses(unit: Path) -> None:
    program, *words = shlex.split(settings(unit)["ExecStart"][0].replace("$FEDBAC_BROKER_OPTIONS", ""))
    command: click.Command = {"/opt/fedbac/bin/fedbac": fedbac, "/opt/fedbac/bin/fedbac-agent": agent}[
        program
    ]
    context = click.Context(command)
    while isinstance(command, click.Group):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, name
        command, context = found, click.Context(found, parent=context, info_name=name)
    command.make_context(command.name, list(words))  # raises on an unknown option


@each
def test_one_watchdog_and_one_way_to_end(unit: Path) -> None:
    found = settings(unit)
    broker = unit.name == "fedbac-broker.service"  # Mosquitto's, which says nothing to systemd
    assert found["Type"] == ["exec" if broker else "notify"]
    assert found.get("WatchdogSec") == (None if broker else ["60"])
    assert found["RestartPreventExitStatus"] == ["2"]
    assert found["TimeoutStopSec"] == ["10"]


@each
def test_limits_are_set(unit: Path) -> None:
    assert {"LimitNOFILE", "TasksMax", "LimitCORE"} <= settings(unit).keys()


@each
def test_files_of_settings_have_an_owner(unit: Path) -> None:
    """Each NAME.env of a unit stands in the file for systemd-tmpfiles with the unit's own group."""
    found = settings(unit)
    owners = {
        fields[1]: fields[4]
        for line in (DEPLOY / "fedbac.tmpfiles").read_text(encoding="utf-8").splitlines()
        if (fields := line.split()) and not line.startswith("#")
    }
    assert set(owners.values()) <= users() | {"root"}
    files = [value.removeprefix("-") for value in found.get("EnvironmentFile", ["/etc/fedbac/agent.toml"])]
    assert [owners[file] for file in files] == found["User"]


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="no systemd here")
def test_systemd_makes_the_users_and_the_folders(tmp_path: Path) -> None:
    """In a root of its own, as an image is built."""
    for kind in ("sysusers", "tmpfiles"):
        (tmp_path / f"etc/{kind}.d").mkdir(parents=True)
        shutil.copy(DEPLOY / f"fedbac.{kind}", tmp_path / f"etc/{kind}.d/fedbac.conf")
    if os.geteuid() != 0:
        pytest.skip("users are made by root alone")
    (tmp_path / "etc/fedbac/cloud").mkdir(parents=True)
    key = tmp_path / "etc/fedbac/cloud/cloud.key"
    key.touch(0o644)
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}"], check=True)
    ids = {
        line.split(":")[0]: int(line.split(":")[2])
        for line in (tmp_path / "etc/group").read_text().splitlines()
    }
    assert users() <= ids.keys()
    subprocess.run(["systemd-tmpfiles", "--create", f"--root={tmp_path}"], check=True)
    assert (key.stat().st_mode & 0o777, key.stat().st_gid) == (0o640, ids["fedbac-cloud"])
    assert (tmp_path / "etc/fedbac/cloud").stat().st_mode & 0o777 == 0o750


def test_onnxruntime_answers_without_memory_that_is_written_and_executed(tmp_path: Path) -> None:
    """MemoryDenyWriteExecute= of the unit that serves, by the kernel's own call (Linux 6.3): PR_SET_MDWE."""
    assert settings(DEPLOY / "fedbac-serve.service")["MemoryDenyWriteExecute"] == ["true"]
    assert "MemoryDenyWriteExecute" not in settings(DEPLOY / "fedbac-agent.service")  # torch writes code
    script = (
        "import ctypes, sys\n"
        "if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0): sys.exit(77)\n"
        "import numpy, onnx, onnxruntime\n"
        "from onnx import TensorProto, helper\n"
        "x = helper.make_tensor_value_info('x', TensorProto.FLOAT, [8, 1, 28, 28])\n"
        "w = helper.make_tensor_value_info('w', TensorProto.FLOAT, [16, 1, 5, 5])\n"
        "y = helper.make_tensor_value_info('y', TensorProto.FLOAT, None)\n"
        "graph = helper.make_graph([helper.make_node('Conv', ['x', 'w'], ['y'])], 'g', [x, w], [y])\n"
        "model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)\n"
        "session = onnxruntime.InferenceSession(model.SerializeToString())\n"
        "rng = numpy.random.default_rng(0)\n"
        "feed = {k: rng.random(s, numpy.float32) for k, s in (('x', (8, 1, 28, 28)), ('w', (16, 1, 5, 5)))}\n"
        "assert session.run(None, feed)[0].shape == (8, 16, 24, 24)\n"
    )
    code = subprocess.run([sys.executable, "-c", script], check=False).returncode
    if code == 77:
        pytest.skip("this kernel has no PR_SET_MDWE")
    assert code == 0
