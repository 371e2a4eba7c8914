"""The processes of a demonstration, started in an order in which each finds what it needs."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from broker.run import choose
from fedbac_edge.demo.children import Child, Children
from fedbac_edge.node.store import Store, StoreError
from fedbac_edge.protocol.messages import RoundSummary

if TYPE_CHECKING:
    from fedbac_edge.demo.settings import Settings
    from fedbac_edge.settings.federation import Federation
    from fedbac_edge.terminal.views import View

HOST = "127.0.0.1"
POLL_S = 0.1
FEDBAC = "fedbac_edge.cli"
AGENT = "device_agent"


def environment() -> dict[str, str]:
    """Ours without settings that are meant for other runs; output unbuffered, so that logs are current."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FEDBAC_")}
    return {**kept, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    """A port of this machine that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def start_broker(children: Children, settings: Settings) -> tuple[str, str]:
    """Start the broker and wait until it listens: its address, and which one it is."""
    kind, port = choose(settings.broker), free_port()
    arguments = ["broker", "run", "--kind", kind, "--host", HOST, "--port", str(port)]
    child = children.start("broker", [FEDBAC, *arguments, "--state", str(settings.state / "broker")])
    while b"listening on" not in _read(child.log):
        children.check()
        time.sleep(0.02)
    return f"mqtt://{HOST}:{port}", kind


def start_tiers(children: Children, settings: Settings, federation: Federation, broker: str) -> Child:
    """Start cloud, gateways and agents; returns the cloud, which ends when the campaign is finished."""
    common = ["--broker", broker]
    cloud = children.start(
        "cloud",
        [
            *(FEDBAC, "cloud", "run", "--federation", str(settings.federation)),
            *common,
            *("--state", str(settings.state)),
        ],
    )
    for gateway, devices in federation.gateways.items():
        children.start(
            gateway,
            [
                *(FEDBAC, "gateway", "run", gateway, "--federation", federation.name),
                *common,
                *("--state", str(settings.state)),
            ],
        )
        for device in devices:
            children.start(
                device,
                [
                    *(AGENT, "join", "--edge", gateway, "--name", device, "--device", "cpu"),
                    *("--federation", federation.name),
                    *common,
                    *("--data", str(settings.data / gateway / f"{device}.npz")),
                    *("--state", str(settings.state / device)),
                ],
            )
    return cloud


def follow(children: Children, cloud: Child, settings: Settings, view: View) -> None:
    """Show every round as the cloud's ledger tells it, until the cloud has ended in order."""
    seen = 0
    while True:
        ended = cloud.process.poll()
        if ended == 0:
            children.expect_end(cloud)
        children.check()
        for number, wall, summary in _summaries(settings.state / "cloud.sqlite", seen):
            seen = number
            view.summary(summary, wall)
            view.doing(f"round {summary.round + 1}")
        if ended == 0:
            return
        time.sleep(POLL_S)


def _summaries(path: Path, after: int) -> list[tuple[int, float, RoundSummary]]:
    if not path.exists():
        return []
    try:
        store = Store(path, read_only=True)
    except StoreError:  # the cloud is just making it
        return []
    try:
        return [
            (line.id, line.wall, msgspec.convert(line.detail, RoundSummary))
            for line in store.ledger(kind="summary", after=after)
        ]
    finally:
        store.close()


def _read(log: Path) -> bytes:
    return log.read_bytes() if log.exists() else b""
