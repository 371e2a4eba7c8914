"""`fedbac simulate` as a person meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

FEDERATION = """
name = "squares"
rounds = 2
eligibility = "roster"
evaluation = "test"
[model]
classes = ["dark", "bright"]
input = [1, 16, 16]
[training]
epochs = 1
batch_size = 16
[assignment]
every = 1
[gateways]
gw1 = ["a", "b"]
gw2 = ["c", "d"]
"""


def fedbac(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedbac_edge.cli", "simulate", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulate")
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 120).astype(np.uint8)
    x = rng.integers(0, 100, (120, 16, 16, 1)).astype(np.uint8) + (100 * y)[:, None, None, None].astype(
        np.uint8
    )
    np.savez(folder / "squares.npz", x=x, y=y)
    (folder / "federation.toml").write_text(FEDERATION)
    return folder


def test_a_fleets_own_description_and_data(place: Path) -> None:
    arguments = ("federation.toml", "--data", "squares.npz", "--allow-tiny", "--workers", "1")
    done = fedbac(*arguments, "--out", "run", cwd=place)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("fedbac on ")
    assert [line.split()[0] for line in lines[2:] if line.strip()[0].isdigit()][-1] == "2"
    assert lines[-2].startswith("models ")
    assert lines[-1].startswith("next: fedbac report run")

    again = fedbac(*arguments, "--out", "run", cwd=place)
    assert again.returncode == 2
    assert "--resume" in again.stderr
    resumed = fedbac("--resume", "--out", "run", "--json", "--workers", "1", cwd=place)
    assert resumed.returncode == 0, resumed.stderr
    last = json.loads(resumed.stdout.splitlines()[-1])
    assert last["event"] == "result"
    assert f"models {last['hash']}" == lines[-2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["paper/nowhere-0.1"], "no preset"),
        (["paper/cifar10-0.1"], "--data"),
        (["paper/fashion-mnist-0.1", "--method", "magic"], "hierfavg"),
        (["paper/fashion-mnist-0.1", "--set", "training.speed=9"], "speed"),
        (["paper/fashion-mnist-0.1", "--faults", "rain=1"], "rain"),
        (["paper/fashion-mnist-0.1", "--set", "cut.labelled=0.2"], "--form annotation"),
        (["paper/hassle-fashion-mnist", "--set", "cut.groups=2"], "planted"),
        (["paper/hassle-fashion-mnist", "--set", "training.confidence=0.9"], "[hassle] confidence"),
        (["federation.toml"], "--data"),
        (["missing.toml", "--data", "squares.npz"], "missing.toml"),
        (["--resume", "--out", "nothing"], "no run"),
        (["paper/fashion-mnist-0.1", "--engine", "slurm"], "'local', 'ray'"),
        (["paper/fashion-mnist-0.1", "--ray-address", "first:6379"], "--engine ray"),
        pytest.param(
            ["federation.toml", "--data", "squares.npz", "--allow-tiny", "--engine", "ray", "--out", "no"],
            "pip install 'fedbac-edge[ray]'",
            marks=pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed"),
        ),
        ([], "preset"),
    ],
)
def test_what_cannot_be_done_is_said_with_exit_code_2(
    arguments: list[str], words: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from fedbac_edge.commands.simulate import simulate

    monkeypatch.chdir(place)
    done = CliRunner().invoke(simulate, arguments)
    assert done.exit_code == 2, done.output
    assert words in done.output


def test_pictures_of_another_size_are_scaled_on_request(place: Path, tmp_path: Path) -> None:
    """Refused with the option's name, and with it trained on; a part of them is for the test alone."""
    from PIL import Image

    rng = np.random.default_rng(2)
    for name, least in (("dark", 0), ("bright", 100)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(60):
            pixels = rng.integers(least, least + 100, (20, 24)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{number}.png")
    arguments = (place / "federation.toml", "--data", tmp_path / "photos", "--allow-tiny", "--workers", "1")
    refused = fedbac(*arguments, "--out", "refused", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--resize" in refused.stderr
    done = fedbac(*arguments, "--resize", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2].startswith("models ")
