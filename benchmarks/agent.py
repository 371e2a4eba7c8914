"""What a device pays for being in a federation: memory, time to join, bytes per round.

Starts a broker, a cloud, a gateway and one agent as processes and looks at them from outside (/proc).

    python benchmarks/agent.py [--samples 1000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

FEDERATION = """
name = "measured"
rounds = {rounds}
eligibility = "roster"
[model]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
mean = [0.286]
std = [0.353]
[selection]
participation = 1.0
[gateways]
gw1 = ["dev1"]
"""


def resident(pid: int) -> float:
    """Resident memory of a process in MB; 0 when it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


def children(pid: int) -> list[int]:
    """Process ids below a process."""
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(child) for task in tasks for child in task.read_text().split()]
    return []


@contextlib.contextmanager
def process(log: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    with log.open("wb") as output:
        running = subprocess.Popen([sys.executable, "-m", *command], stdout=output, stderr=output)
        try:
            yield running
        finally:
            running.terminate()
            running.wait(20)


def wait_for(log: Path, word: str, timeout: float = 60.0) -> float:
    """Seconds until a word stands in a log."""
    began = time.monotonic()
    while word not in log.read_text(errors="replace"):
        if time.monotonic() - began > timeout:
            raise SystemExit(f"{word!r} did not come:\n{log.read_text()}")
        time.sleep(0.01)
    return time.monotonic() - began


def main() -> None:
    """Measure once and print a line per figure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    url = f"mqtt://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rng = np.random.default_rng(0)
        np.savez(
            root / "data.npz",
            x=rng.integers(0, 256, (options.samples, 28, 28, 1), dtype=np.uint8),
            y=rng.integers(0, 10, options.samples),
        )
        (root / "federation.toml").write_text(FEDERATION.format(rounds=options.rounds))
        cli = "fedbac_edge.cli"
        logs = {name: root / f"{name}.log" for name in ("broker", "cloud", "gw1", "dev1")}
        with (
            process(logs["broker"], cli, "broker", "run", "--port", port, "--state", str(root / "broker")),
            process(logs["gw1"], cli, "gateway", "run", "gw1", "--broker", url, "--state", str(root / "gw1")),
        ):
            cloud = ("cloud", "run", "--federation", str(root / "federation.toml"), "--broker", url)
            with process(logs["cloud"], cli, *cloud, "--state", str(root / "cloud"), "--json") as cloud_run:
                time.sleep(3)
                join = ("device_agent", "join", "--edge", "gw1", "--name", "dev1", "--broker", url)
                began = time.monotonic()
                with process(
                    logs["dev1"], *join, "--data", str(root / "data.npz"), "--state", str(root / "dev1")
                ) as agent:
                    wait_for(logs["dev1"], "joined")
                    print(f"start to joined      {time.monotonic() - began:6.1f} s")
                    peak = worker = 0.0
                    while cloud_run.poll() is None:
                        peak = max(peak, resident(agent.pid))
                        worker = max([worker, *map(resident, children(agent.pid))])
                        time.sleep(0.02)
                    time.sleep(1)
                    print(f"agent, at rest       {resident(agent.pid):6.1f} MB resident")
                    print(f"agent, while training{peak:6.1f} MB resident")
                    print(f"its training process {worker:6.1f} MB resident at most")
        rows = [json.loads(line) for line in logs["cloud"].read_text().splitlines() if line.startswith("{")]
        for row in rows:
            if row.get("phase") == "train":
                up, down = row["up_bytes"] / 1e6, row["down_bytes"] / 1e6
                print(f"round {row['round']}: {up:.3f} MB up, {down:.3f} MB down over both links")


if __name__ == "__main__":
    main()
