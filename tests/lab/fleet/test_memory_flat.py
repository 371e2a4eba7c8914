"""A hundred virtual rounds: what a process and its broker hold does not grow with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedbac_edge.protocol.gateway.norm_gate import HISTORY

Build = Callable[..., Any]
FIRST, LAST = 30, 110


def held(fleet: Any) -> dict[str, int]:
    """Sizes of everything that could grow, but for the ledger, which is meant to."""
    sizes = {"retained": len(fleet.world.broker.retained)}
    for name, process in fleet.world.processes.items():
        store = process.store
        sizes[f"{name} blobs"] = len(store.blobs)
        sizes[f"{name} outbox"] = len(store.outbox())
        sizes[f"{name} owned"] = len(store.owned())
        sizes[f"{name} state"] = len(store.read("machine") or b"")
        sizes[f"{name} filters"] = len(fleet.filters[name])
    return sizes


def test_a_hundred_and_ten_rounds(build: Build, settings: Build) -> None:
    fleet = build(
        settings(
            rounds=LAST + 1,
            gateways={"gw1": ("d1", "d2")},
            more="[selection]\nparticipation = 0.5\n[method]\nclusters = 2\n[assignment]\nevery = 20",
        )
    )
    assert fleet.run_to_round(FIRST)
    early = held(fleet)
    assert fleet.run_to_round(LAST)
    late = held(fleet)
    for what, size in late.items():
        slack = 9 * HISTORY + 300 if what.endswith("state") else 4
        assert size <= early[what] + slack, (what, early[what], size)
    # Generations of three parts at the cloud, of two where they are served: a fixed number of model copies.
    assert late["cloud blobs"] <= 8
    assert late["gw1 blobs"] <= 4
    assert late["d1 blobs"] <= 6
    assert sum("/blob/" in topic for topic in fleet.world.broker.retained) <= 6


def test_a_part_in_many_chunks_is_withdrawn_whole(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=6, gateways={"gw1": ("d1",)}, more="[method]\nclusters = 1"))
    fleet.world.maximum_packet = 6_000
    assert fleet.run_to_round(3)
    fleet.world.crash("cloud", restart_s=1.0)  # the packet size is not known yet when it starts again
    assert fleet.run()
    parts = {topic.split("/")[-2] for topic in fleet.world.broker.retained if "/blob/" in topic}
    refs = [*fleet.cloud.parts.values(), *fleet.cloud.previous.values()]
    assert parts == {ref.hash for ref in refs}
