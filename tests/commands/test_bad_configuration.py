"""Bad federation files: exit code 2, one sentence that names the fault, and no state made."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from fedbac_edge.cli import cli
from fedbac_edge.federation_file.starters import demo
from fedbac_edge.federation_file.template import render

GOOD = render(demo("demo"))

FAULTS = {
    "unknown key": ("rounds = 15", "rouns = 15", "there is no setting rouns: did you mean rounds?"),
    "unknown key in a table": (
        "epochs = 1",
        "epocs = 1",
        "no setting [training] epocs: did you mean epochs?",
    ),
    "unknown table": ("[selection]", "[selektion]", "did you mean [selection]?"),
    "key of a table": ("rounds = 15", "epochs = 15", "no setting epochs: it stands under [training]"),
    "key of no table": ("[wire]", "[wire]\nseed = 3", "seed: it stands above the first [table]"),
    "key like no other": ("[wire]", "[wire]\nfoo = 3", "no setting [wire] foo; there are: encoding"),
    "missing key": ("classes = ", "# ", "[model] classes is missing"),
    "wrong type": ("rounds = 15", 'rounds = "many"', 'rounds: a whole number is expected, not "many"'),
    "zero rounds": ("rounds = 15", "rounds = 0", "rounds: a whole number >= 1 is expected, not 0"),
    "large share": ("participation = 0.75", "participation = 80", "a number <= 1.0 is expected, not 80"),
    "two sizes": ("input = [1, 28, 28]", "input = [28, 28]", "a list of length 3 is expected, not [28, 28]"),
    "size 0": ("input = [1, 28, 28]", "input = [1, 28, 0]", "[model] input (value 3): a whole number >= 1"),
    "no list of devices": (
        "\ngw1 = ",
        "\ngw3 = 1\ngw1 = ",
        "[gateways]: a list is expected, not a whole number",
    ),
    "unknown word": (
        'eligibility = "roster"',
        'eligibility = "rooster"',
        'one of "roster", "online", not "rooster": did you mean "roster"?',
    ),
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
