"""Machines driven by hand: one event in, actions out, blobs in a dictionary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pytest

from fedbac_edge.federation_file import reading
from fedbac_edge.models.catalog import architecture
from fedbac_edge.parts.part import Part, digest, pack
from fedbac_edge.protocol.events import Action, Channel, Event, Keep, Log, Machine, Received, Send, TimerFired
from fedbac_edge.protocol.messages import Message
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import PartRef

A = TypeVar("A")
INSTANCE = "0badcafe"


def small_federation(**tables: str) -> Federation:
    """Two sites of two devices; `tables` adds lines to a table of federation.toml, `top` to its head."""
    wanted = {"model": "", "method": "", "selection": "", "assignment": "", "deadlines": "", "training": ""}
    unknown = set(tables) - set(wanted) - {"top"}
    assert not unknown
    lines = [
        'name = "t"',
        "rounds = 4",
        'eligibility = "roster"' if "eligibility" not in tables.get("top", "") else "",
        tables.get("top", ""),
        "[model]",
        'classes = ["a", "b"]',
        "input = [1, 16, 16]",
        tables.get("model", ""),
    ]
    for table in ("method", "selection", "assignment", "deadlines", "training"):
        lines += [f"[{table}]", tables.get(table, "")]
    lines += ["[gateways]", 'gw1 = ["d1", "d2"]', 'gw2 = ["d3", "d4"]']
    return reading.parse("\n".join(lines))


@dataclass
class Bench:
    """A machine with its blobs. What it keeps is there for its next event."""

    machine: Machine
    blobs: dict[str, bytes] = field(default_factory=dict)
    now: float = 0.0
    actions: list[Action] = field(default_factory=list)
    """Of the latest event."""

    def do(self, event: Event) -> list[Action]:
        self.actions = self.machine.handle(event, self.now)
        for action in self.actions:
            if isinstance(action, Keep):
                self.blobs[action.hash] = action.data
        return self.actions

    def receive(
        self, message: Message, leaf: Any, gateway: str = "", device: str = "", size: int = 100
    ) -> list[Action]:
        return self.do(Received(Channel(leaf, gateway, device), message, size))

    def run_timers(self) -> list[Action]:
        """Fire what is due now, as a node would after an event."""
        fired: list[Action] = []
        for name, when in sorted(self.machine.timers().items()):
            if when <= self.now:
                fired += self.do(TimerFired(name))
        return fired

    def of(self, kind: type[A], actions: list[Action] | None = None) -> list[A]:
        return [
            action for action in (self.actions if actions is None else actions) if isinstance(action, kind)
        ]

    def said(self, kind: type[A], actions: list[Action] | None = None) -> list[A]:
        """Messages of one type that the latest event (or `actions`) sends."""
        return [send.message for send in self.of(Send, actions) if isinstance(send.message, kind)]

    def logged(self, kind: str, actions: list[Action] | None = None) -> list[Log]:
        return [line for line in self.of(Log, actions) if line.kind == kind]


def some_part(federation: Federation, value: float) -> Part:
    """A part whose every weight is `value`: what an average must be can be read off."""
    model = federation.model
    schema = architecture(model.architecture, model.input, len(model.classes)).schema()
    return {name: np.full(shape, value, np.float32) for name, shape in schema.items()}


def stored(blobs: dict[str, bytes], name: str, part: Part) -> PartRef:
    data = pack(part)
    blobs[digest(data)] = data
    return PartRef(name, digest(data), len(data))


@pytest.fixture(scope="session")
def federation_of() -> Callable[..., Federation]:
    return small_federation


@pytest.fixture(scope="session")
def bench() -> type[Bench]:
    return Bench


@pytest.fixture(scope="session")
def part_of() -> Callable[[Federation, float], Part]:
    return some_part


@pytest.fixture(scope="session")
def store_part() -> Callable[[dict[str, bytes], str, Part], PartRef]:
    return stored
