"""A name that there is not ends a command with exit code 2 and a sentence that says which names there are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker import wire
from broker.topics import spec as spec_topic
from fedbac_edge.cli import cli
from fedbac_edge.commands import broker_checks, checks
from fedbac_edge.commands.options import labelled
from fedbac_edge.federation_file import reading
from fedbac_edge.lab.fleet.world import Process, World
from fedbac_edge.node import assemble
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.settings.federation import Federation

PAPER = ["simulate", "paper/fashion-mnist-0.1", "--out", "nothing"]
SHARDS = ["partition", "--data", "fashion-mnist", "--samples", "1000", "--out", "nothing"]

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("in_tmp_path")]


@pytest.mark.parametrize(
    ("arguments", "there_are"),
    [
        (["init", "--preset", "nope"], "'fleet', 'demo', 'hassle'"),
        (["data", "get", "nope"], "fashion-mnist, mnist, cifar10"),
        (["demo", "--method", "nope"], "'fedbac', 'hassle'"),
        (["demo", "--broker-kind", "nope"], "'mosquitto', 'embedded'"),
        ([*SHARDS, "--form", "nope"], "'per-server', 'per-class', 'planted'"),
        ([*SHARDS, "--annotation", "nope"], "default, PL, LPL, UPL, LU, ALL"),
        (["simulate", "nope"], "for example paper/fashion-mnist-0.1"),
        ([*PAPER, "--method", "nope"], "fedbac, fedbac+, fixed, single, random, hierfavg"),
        ([*PAPER, "--form", "nope"], "'planted', 'annotation'"),
        ([*PAPER, "--faults", "nope=1"], "drop, duplicate, delay, crash"),
        ([*PAPER, "--set", "nope.x=1"], "cut, model, method, training, selection"),
        ([*PAPER, "--set", "cut.form=nope"], 'form is one of "per-server", "per-class"'),
        ([*PAPER, "--set", "method.name=nope"], "fed-cam, fedbac, hassle, hierfavg"),
        ([*PAPER, "--set", "method.initial=nope"], '[method] initial is one of "round-robin"'),
        ([*PAPER, "--set", "model.architecture=nope"], "lenet, lenet-wide, resnet8"),
        ([*PAPER, "--set", "training.backend=nope"], '"auto", "compiled", "fused", "reference"'),
        ([*PAPER, "--set", "training.epocs=1"], "did you mean epochs?"),
        ([*PAPER, "--set", "wire.encoding=floot16"], 'did you mean "float16"?'),
        (["semi", "nope"], "fedavg, fedprox, mixmatch"),
        (["semi", "hassle", "--data", "nope"], "fashion-mnist, mnist, cifar10"),
        (["semi", "hassle", "--architecture", "nope"], "lenet, lenet-wide, resnet8"),
        (["semi", "hassle", "--setting", "nope"], "default, PL, LPL, UPL, LU, ALL"),
        (["semi", "hassle", "--set", "nope=1"], "gamma, lam, tau_s"),
        (["keys", "issue", "gw1/a/b"], "cloud, observer, <gateway> or <gateway>/<device>"),
        (["broker", "run", "--kind", "nope"], "'mosquitto', 'embedded'"),
        (["broker", "run", "--federation", "nope.toml"], "fedbac init --out nope.toml"),
        (["cloud", "run", "--federation", "nope.toml"], "fedbac init --out nope.toml"),
        (["release", "list", "--state", "nope"], "--state of `fedbac cloud run`"),
        (["export", "--state", "nope", "--out", "models"], "--state of `fedbac cloud run`"),
        (["status", "--state", "nope"], "nope"),
        (["report", "nope"], "nope"),
        ([*SHARDS, "--gateways", "1000000"], "1<=x<=999"),
        (["semi", "hassle", "--clients", "1000000"], "1<=x<=9999"),
        ([*PAPER, "--faults", "drop"], "drop: give a number, for example drop=0.1"),
        (["demo", "--alpha-server", "0", "--out", "nothing"], "alpha_server must be positive"),
        (["demo", "--learning-rate", "-1", "--out", "nothing"], "x>0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_there_is_is_said(runner: CliRunner, arguments: list[str], there_are: str) -> None:
    result = runner.invoke(cli, arguments)
    assert result.exit_code == 2, result.output
    assert there_are in _words(result.output)
    assert not Path("nothing").exists()


@pytest.mark.parametrize("command", ["demo --method hassle", "partition --data x --out y", "semi hassle"])
def test_labels_are_a_share_or_percent_with_its_sign(runner: CliRunner, command: str) -> None:
    """The same everywhere: 0.1 is a tenth, so is 10%, and a bare 10 is told how to be said."""
    for wrong, sentence in {
        "10": "for 10 percent say 0.1 or 10%",
        "1.5": "for 1.5 percent say 0.015 or 1.5%",
        "0": "not a share above 0",
        "-0.1": "not a share above 0",
        "101%": "not a share above 0 and up to 1 (or 100%)",
        "nan": "not a share above 0",
        "half": "say 0.1 or 10%",
    }.items():
        result = runner.invoke(cli, [*command.split(), "--labels", wrong])
        assert result.exit_code == 2
        assert sentence in _words(result.output)
    assert labelled("10%") == labelled("0.1") == 0.1


@pytest.mark.parametrize(
    "command",
    [
        "broker run --state taken",
        "cloud run --state taken",
        "keys init --dir taken",
        "partition --data fashion-mnist --samples 1000 --out taken/shards",
        "demo --out taken/run",
        "semi fedavg --out taken",
        "simulate paper/fashion-mnist-0.1 --workers 1 --out taken/run",
    ],
)
def test_a_file_where_a_folder_is_needed(runner: CliRunner, command: str) -> None:
    Path("taken").write_text("x")
    runner.invoke(cli, ["init"])
    result = runner.invoke(cli, command.split())
    assert result.exit_code in (1, 2)
    assert "taken" in result.output
    assert "Errno" not in result.output
    assert "folder" in result.output or "choose another" in result.output
    assert Path("taken").read_text() == "x"


def test_views_of_a_finished_federation(runner: CliRunner, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "models"
    result = runner.invoke(cli, ["export", "--state", str(finished), "--out", str(out), "--view", "SM"])
    assert result.exit_code == 2
    assert "fedbac has no view 'SM'; it has one model: leave --view out" in _words(result.output)
    assert not out.exists()


def test_views_of_hassle(runner: CliRunner, tmp_path: Path) -> None:
    federation = reading.parse(
        'name = "few"\n[model]\nclasses = ["a", "b"]\n[method]\nname = "hassle"\n[gateways]\ngw1 = ["d1"]'
    )
    world = World()
    state = tmp_path / "cloud.sqlite"
    world.add(
        Process(
            "cloud",
            lambda store: assemble.cloud(federation, "0badcafe", store, lambda: world.now),
            Store(state),
        )
    )
    assert world.run(lambda: world.processes["cloud"].node is not None, 10.0)
    world.processes["cloud"].store.close()
    command = ["export", "--state", str(state), "--out", str(tmp_path / "models")]
    for view, code, sentence in (
        ("NM", 2, "hassle has no view 'NM'; --view is one of: EM, SM, UM"),
        ("SM", 1, "nothing to export yet"),
    ):
        result = runner.invoke(cli, [*command, "--view", view])
        assert result.exit_code == code
        assert sentence in _words(result.output)


def test_gateways_and_devices_that_a_running_federation_lacks(
    runner: CliRunner, mosquitto: str, tiny: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_checks, "SPEC_S", 0.3)
    monkeypatch.setattr(checks, "LIBRARIES", (("msgspec", "msgspec", ""),))
    _describe(mosquitto, Spec(federation=tiny, instance="0badcafe", software="0"))
    serving = ("serve", "--edge", "gw9", "--broker", mosquitto, "--state", str(tmp_path / "serving"))
    with subprocess.Popen(
        [sys.executable, "-m", "device_agent", *serving], stdout=subprocess.PIPE, text=True
    ) as waiting:
        assert waiting.stdout is not None
        line = (
            waiting.stdout.readline()
        )  # it may be listed later, as a gateway and a device that joins may be
        waiting.terminate()
    assert "federation tiny has no gateway 'gw9'; it has: gw1, gw2" in line
    assert waiting.returncode == 0
    for user, sentence in (
        ("gw9", "tiny has no gateway 'gw9'; one of: gw1, gw2"),
        ("gw9/d1", "tiny has no gateway 'gw9'; one of: gw1, gw2"),
        ("gw1/d9", "gateway gw1 of tiny has no device 'd9'; one of: d1, d2"),
    ):
        result = runner.invoke(cli, ["doctor", "--broker", mosquitto, "--as", user, "--federation", "tiny"])
        assert result.exit_code == 1, "a doctor who finds a fault says 1"
        assert sentence in _words(result.output)


def _describe(broker: str, spec: Spec) -> None:
    """Leave a federation's description on the broker, as its cloud does."""
    from paho.mqtt import publish

    host, port = broker.removeprefix("mqtt://").split(":")
    publish.single(
        spec_topic(spec.federation.name),
        wire.encode(spec),
        qos=1,
        retain=True,
        hostname=host,
        port=int(port),
    )


def _words(output: str) -> str:
    """Without the line breaks and the frames that click may have put in."""
    return re.sub(r"[\s│]+", " ", output)
