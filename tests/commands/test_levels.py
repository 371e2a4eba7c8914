"""A run knows its vector level, and goes on at no other one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedbac_edge.datasets import official
from fedbac_edge.datasets.samples import DataError
from fedbac_edge.host import vector_level

LEVELS = [level for level in vector_level.levels() if level != "x86-64"]
KNOWN = {name for level in LEVELS for name in vector_level.variables(level)}
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
[gateways]
gw1 = ["a", "b"]
gw2 = ["c", "d"]
"""


def fedbac(*arguments: str, cwd: Path, level: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedbac_edge.cli", *arguments, "--workers", "1"]
    environment = {name: value for name, value in os.environ.items() if name not in KNOWN}
    environment[vector_level.VARIABLE] = level
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=200)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 120).astype(np.uint8)
    x = (rng.integers(0, 100, (120, 16, 16, 1)) + 100 * y[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "squares.npz", x=x, y=y)
    (tmp_path / "federation.toml").write_text(FEDERATION)
    return tmp_path


BEGIN = ("simulate", "federation.toml", "--data", "squares.npz", "--allow-tiny", "--out", "run")


@pytest.mark.skipif(len(LEVELS) < 2, reason="this machine has one level")
def test_resume_on_another_level_is_refused_with_the_way_on(place: Path) -> None:
    low, high = LEVELS[-2:]
    first = fedbac(*BEGIN, cwd=place, level=low)
    assert first.returncode == 0, first.stderr
    assert json.loads((place / "run" / "run.json").read_text())["machine"]["level"] == low
    (place / "run" / "result.json").unlink()  # as if it had been killed at the very end

    resume = ("simulate", "--resume", "--out", "run")
    refused = fedbac(*resume, cwd=place, level=high)
    assert refused.returncode == 2, refused.stderr
    assert f"begun with level {low}, here {high}" in refused.stderr
    assert f"FEDBAC_LEVEL={low} fedbac simulate --resume --out run" in " ".join(refused.stderr.split())

    done = fedbac(*resume, cwd=place, level=low)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2] == first.stdout.splitlines()[-2]


@pytest.mark.skipif(len(LEVELS) < 2, reason="this machine has one level")
def test_semi_goes_on_at_its_own_level_only(tmp_path: Path) -> None:
    try:
        official.locate(official.FASHION)
    except DataError as error:
        pytest.skip(str(error))
    low, high = LEVELS[-2:]
    few = ("--clients", "4", "--selected", "2", "--samples", "400", "--test-samples", "100", "--epochs", "1")
    first = fedbac("semi", "fedavg", "--rounds", "1", *few, "--out", "run", cwd=tmp_path, level=low)
    assert first.returncode == 0, first.stderr
    (tmp_path / "run" / "result.json").unlink()
    resume = ("semi", "--resume", "--out", "run")
    refused = fedbac(*resume, cwd=tmp_path, level=high)
    assert refused.returncode == 2, refused.stderr
    assert f"FEDBAC_LEVEL={low} fedbac semi --resume --out run" in " ".join(refused.stderr.split())
    done = fedbac(*resume, cwd=tmp_path, level=low)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2] == first.stdout.splitlines()[-2]


def test_a_level_that_is_not_here_has_no_remedy_here(place: Path) -> None:
    here = LEVELS[-1]
    assert fedbac(*BEGIN, cwd=place, level=here).returncode == 0
    (place / "run" / "result.json").unlink()
    path = place / "run" / "run.json"
    about = json.loads(path.read_text())
    about["machine"]["level"] = "armv9-a"
    path.write_text(json.dumps(about))
    refused = fedbac("simulate", "--resume", "--out", "run", cwd=place, level=here)
    assert refused.returncode == 2
    assert "go on where the processor has armv9-a" in " ".join(refused.stderr.split())

    del about["machine"]["level"]  # a run that was begun before levels were recorded
    path.write_text(json.dumps(about))
    assert fedbac("simulate", "--resume", "--out", "run", cwd=place, level=here).returncode == 0
