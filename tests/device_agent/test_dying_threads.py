"""A thread of the agent that dies ends `join` with a sentence, instead of leaving it to wait for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedbac_edge.settings.federation import Federation

PLANT = """
import runpy, sys
from device_agent.narrator import Narrator
from device_agent.worker import TrainingWorker

def die(*_):
    raise RuntimeError("a planted fault")

{kind}.{method} = die
sys.argv = ["fedbac-agent", *sys.argv[1:]]
runpy.run_module("device_agent", run_name="__main__")
"""
MOMENTS = {
    "as the data are described": ("TrainingWorker", "_answer_openings", "training"),
    "as a job ends": ("TrainingWorker", "_finish", "training"),
    "as it reminds people": ("Narrator", "remind", "reminder"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_is_said_and_ends_the_process(
    moment: str,
    site: Any,
    data: Path,
    federation: Federation,
    tmp_path: Path,
) -> None:
    kind, method, thread = MOMENTS[moment]
    site.run_cloud_and_gateway(federation)
    arguments = [
        "--edge",
        "gw1",
        "--broker",
        site.url,
        "--data",
        str(data),
        "--state",
        str(tmp_path / "state"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", PLANT.format(kind=kind, method=method), "join", "--name", "dev-1", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={key: value for key, value in os.environ.items() if not key.startswith("FEDBAC_")},
    )
    assert done.returncode == 1, done
    sentence = done.stderr.strip().splitlines()[-1]
    assert sentence == (
        f"Error: the thread '{thread}' died of a fault in this software (RuntimeError: a planted fault); "
        "please report it"
    )
    assert "left" not in done.stdout.splitlines()
