"""Field report 8: software of three releases in one fleet, each with the wire versions that it knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from broker import wire
from fedbac_edge.lab.fleet.world import World
from fedbac_edge.lab.trials import trials
from fedbac_edge.node.node import Node
from fedbac_edge.node.store import Store

Rewrite = Callable[[dict[str, Any]], dict[str, Any]]


def renamed(old: str, new: str) -> Rewrite:
    """A version that calls a field of every message otherwise."""
    return lambda fields: {new if name == old else name: value for name, value in fields.items()}


@dataclass(frozen=True)
class Software:
    """A release: the newest version that it knows, and how the one before is read and written."""

    version: int
    upgrades: dict[int, Rewrite]
    downgrades: dict[int, Rewrite]


FIRST = Software(1, {}, {})
SECOND = Software(2, {1: renamed("instance", "instance")}, {1: renamed("instance", "instance")})
# In version 2 the instance is called "federation_instance"; the third release knows 2 and 3.
THIRD = Software(
    3, {2: renamed("federation_instance", "instance")}, {2: renamed("instance", "federation_instance")}
)


class Running:
    """A node under a software of its own: the wire's tables are set before each of its calls."""

    def __init__(self, node: Node, software: Software) -> None:
        self._node, self._software = node, software

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._node, name)
        if not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            wire.WIRE_VERSION = self._software.version
            wire.UPGRADES, wire.DOWNGRADES = self._software.upgrades, self._software.downgrades
            return found(*arguments)

        return call


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WIRE_VERSION", "UPGRADES", "DOWNGRADES"):
        monkeypatch.setattr(wire, name, getattr(wire, name))


def fleet(others: Software, of: dict[str, Software]) -> trials.Trial:
    """An open fleet of one site with three devices, whose software is `others` unless named."""
    federation = trials.federation_of((1, 3, 3, "float32"))
    deadlines = msgspec.structs.replace(
        federation.deadlines, gather_s=50.0, deadline_min_s=100.0, deadline_max_s=100.0
    )
    selection = msgspec.structs.replace(federation.selection, participation=1.0)
    federation = msgspec.structs.replace(
        federation, eligibility="online", deadlines=deadlines, selection=selection, gateways={"gw1": ()}
    )
    trial = trials.Trial(federation, World())
    everybody = msgspec.structs.replace(federation, gateways={"gw1": ("d11", "d12", "d13")})
    trial.federation = everybody
    trial.add_all(lambda name: Store(None))
    for name, process in trial.world.processes.items():
        process.make = under(process.make, of.get(name, others))
    return trial


def under(make: Callable[[Store], Node], software: Software) -> Callable[[Store], Any]:
    return lambda store: Running(make(store), software)


def accepted(trial: trials.Trial) -> set[str]:
    return {line.subject for line in trial.world.processes["gw1"].store.ledger("accepted")}


@pytest.mark.parametrize("one", ["d12", "gw1", "cloud"])
@pytest.mark.parametrize(("others", "behind"), [(SECOND, FIRST), (FIRST, SECOND)])
def test_one_version_apart_everybody_takes_part(one: str, others: Software, behind: Software) -> None:
    trial = fleet(others, {one: behind})
    assert trial.finish(5_000)
    assert accepted(trial) == {"d11", "d12", "d13"}
    for process in trial.world.processes.values():
        assert process.store.ledger("unreadable") == []


def test_two_versions_apart_one_is_refused_by_name_and_the_others_go_on() -> None:
    trial = fleet(THIRD, {"d12": FIRST})
    assert trial.finish(5_000)
    assert accepted(trial) == {"d11", "d13"}
    refusals = {
        line.detail["why"]
        for line in trial.world.processes["gw1"].store.ledger("unreadable")
        if "/d12/" in line.subject
    }
    assert refusals == {
        "wire version 1 is not understood here: this software speaks 2, 3; update the older side"
    }
    told = {line.detail["why"] for line in trial.world.processes["d12"].store.ledger("unreadable")}
    assert "wire version 2 is not understood here: this software speaks 1; update the older side" in told
