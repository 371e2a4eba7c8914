"""Bad federation files: exit code 2, one sentence that names the fault, and no state made."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fedbac_edge.cli import cli
from fedbac_edge.commands.federation_file import render
from fedbac_edge.commands.presets import demo

GOOD = render(demo("demo"))

FAULTS = {
    "unknown key": ("rounds = 15", "rouns = 15", "rouns"),
    "unknown table": ("[selection]", "[selektion]", "selektion"),
    "wrong type": ("rounds = 15", 'rounds = "many"', "rounds"),
    "zero rounds": ("rounds = 15", "rounds = 0", "rounds"),
    "unknown word": ('eligibility = "roster"', 'eligibility = "some"', "eligibility"),
    "name with slash": ('name = "demo"', 'name = "a/b"', "a/b"),
    "name with plus": ('name = "demo"', 'name = "a+b"', "a+b"),
    "name with hash": ('name = "demo"', 'name = "a#b"', "a#b"),
    "empty name": ('name = "demo"', 'name = ""', "''"),
    "long name": ('name = "demo"', f'name = "{"x" * 300}"', "cannot be the name of a federation"),
    "bad gateway": ("\ngw1 = ", '\n"gw 1" = ', "'gw 1'"),
    "bad device": ('"dev-1-1"', '"dev/1"', "'dev/1'"),
    "device twice": ('"dev-1-1"', '"dev-1-2"', "twice"),
    "too many clusters": ("clusters = 0", "clusters = 1001", "clusters"),
    "empty roster": ("[gateways]\ngw1", "[gateways]\ngw0 = []\ngw1", "roster"),
    "no method": ('name = "fedbac"', 'name = "fedmagic"', "fedmagic"),
    "no architecture": ('architecture = "lenet"', 'architecture = "lenet-9"', "lenet-9"),
    "one class twice": ('"trouser"', '"dress"', "different names"),
    "mean per channel": ("mean = [0.286]", "mean = [0.1, 0.2]", "channel"),
    "deadlines crossed": ("deadline_min_s = 60.0", "deadline_min_s = 7200.0", "deadline_min_s"),
    "TOML syntax": ("rounds = 15", "rounds = = 15", "TOML"),
}


pytestmark = [pytest.mark.timeout(30), pytest.mark.usefixtures("in_tmp_path")]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(runner: CliRunner, fault: str) -> None:
    old, new, named = FAULTS[fault]
    assert GOOD.count(old) == 1
    Path("federation.toml").write_text(GOOD.replace(old, new), encoding="utf-8")
    _refused(runner, named)


def test_no_file(runner: CliRunner) -> None:
    _refused(runner, "fedbac init")


def test_a_directory(runner: CliRunner) -> None:
    Path("federation.toml").mkdir()
    _refused(runner, "cannot be read")


def test_not_utf8(runner: CliRunner) -> None:
    Path("federation.toml").write_bytes(b'name = "caf\xe9"\n')
    _refused(runner, "cannot be read")


def _refused(runner: CliRunner, named: str) -> None:
    for arguments in (["cloud", "run"], ["broker", "config"]):
        result = runner.invoke(cli, [*arguments, "--federation", "federation.toml"])
        assert result.exit_code == 2, result.output
        assert isinstance(result.exception, SystemExit)
        assert named in result.output
        assert "federation.toml" in result.output
    assert not Path("runs").exists()
