"""Long commands with processes of their own: a signal ends all of them, and what is said goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FASHION = Path("/usr/share/datasets/fashion-mnist")

pytestmark = pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not there")

FEW = ["--servers", "2", "--clients", "2", "--set", "cut.samples=400", "--set", "cut.test_samples=100"]
LONG = {
    "simulate": ["simulate", "paper/fashion-mnist-0.1", "--rounds", "900", "--allow-tiny", *FEW],
    "semi": ["semi", "fedavg", "--rounds", "900", "--samples", "400", "--test-samples", "100"],
}


def _others(group: int) -> bool:
    """Anybody of that process group is alive."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", sorted(LONG))
def test_a_signal_ends_a_run_and_its_workers(command: str, number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedbac_edge.cli", *LONG[command], "--workers", "1", "--json", "--out", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        assert '"round"' in process.stdout.readline() + process.stdout.readline()
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        deadline = time.monotonic() + 20
        while _others(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not _others(process.pid), "a process of the run outlived it"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 1, said
    assert f"stopped; `fedbac {command} --resume --out {out}` goes on" in said
    assert "Traceback" not in said
    assert "leaked" not in said
