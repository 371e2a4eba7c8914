"""What the device is doing, told from outside its state machine.

`Overheard` stands between node and machine and passes everything on unchanged; the narrator turns what it
hears into lines, and says what the device waits for when nothing happens.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Set
from typing import Protocol

from fedbac_edge.node import stalls
from fedbac_edge.node.node import Node
from fedbac_edge.protocol.device.machine import Device
from fedbac_edge.protocol.device.state import DeviceState
from fedbac_edge.protocol.events import Action, Event, Log, Received, Send, Work
from fedbac_edge.protocol.messages import GatewayStatus, TrainTask
from fedbac_edge.vocabulary.terms import PartRef

QUIET_S = 3.0
"""So long the gateway may be unseen before anything is said."""
REMIND_S = 60.0


class Say(Protocol):
    """`voice.Voice.say`."""

    def __call__(self, event: str, text: str, **fields: object) -> None:
        """Say one line."""


class Overheard:
    """A device's machine whose events and actions `hear` is told of."""

    def __init__(self, device: Device, hear: Callable[[Event, list[Action]], None]) -> None:
        self._device, self._hear = device, hear

    @property
    def state(self) -> DeviceState:
        """See Machine."""
        return self._device.state

    def handle(self, event: Event, now: float) -> list[Action]:
        """See Machine."""
        actions = self._device.handle(event, now)
        self._hear(event, actions)
        return actions

    def status(self, state: str) -> Send:
        """See Machine."""
        return self._device.status(state)

    def timers(self) -> Mapping[str, float]:
        """See Machine."""
        return self._device.timers()

    def wanted(self) -> Mapping[str, PartRef]:
        """See Machine."""
        return self._device.wanted()

    def kept(self) -> Set[str]:
        """See Machine."""
        return self._device.kept()


class Narrator:
    """Lines about one device at one gateway. `hear` and `observe` are called by the runtime's thread."""

    def __init__(self, say: Say, device: Device, joined: str, fields: Mapping[str, object]) -> None:
        """`joined` is the line for the first connection, with its `fields`."""
        self._say, self._device = say, device
        self._joined, self._fields = joined, fields
        self._lines: list[tuple[str, str, dict[str, object]]] = []
        self._lock = threading.Lock()  # `remind` comes from another thread
        self._link: str | None = None
        self._gateway: GatewayStatus | None = None
        self._remind_at: float | None = None
        self._sent: tuple[str, int] | None = None

    def overhear(self, node: Node) -> None:
        """Listen to the node's machine from now on."""
        node.machine = Overheard(self._device, self.hear)

    def hear(self, event: Event, actions: list[Action]) -> None:
        """Note one event of the machine and what it answered; said by the next `observe`."""
        with self._lock:
            if isinstance(event, Received) and isinstance(event.message, GatewayStatus):
                self._gateway_said(event.channel.gateway, event.message)
            for action in actions:
                match action:
                    case Log():
                        self._logged(action)
                    case Work():
                        self._working()

    def observe(self, node: Node, link: str) -> None:
        """Say what has come together, once it is stored."""
        with self._lock:
            if link != self._link:
                self._linked(link)
            self._look_at_answer(node)
            lines, self._lines = self._lines, []
        for event, text, fields in lines:
            self._say(event, text, **fields)

    def remind(self) -> None:
        """Say what the device waits for, if the time has come; called every few seconds."""
        with self._lock:
            now = time.monotonic()
            if self._remind_at is None or now < self._remind_at:
                return
            self._remind_at = now + REMIND_S
            name = self._device.gateway
            state = "absent" if self._gateway is None else self._gateway.state
        been = "has not been seen yet" if state == "absent" else f"is {state}"
        self._say("waiting", f"waiting for gateway {name}, which {been}", gateway=name, gateway_state=state)

    # --- under the lock ---

    def _note(self, event: str, text: str, **fields: object) -> None:
        self._lines.append((event, text, fields))

    def _linked(self, link: str) -> None:
        before, self._link = self._link, link
        if link == "connected":
            if before is None or self._joined:
                self._note("joined", self._joined, **self._fields)
                self._joined = ""
            else:
                self._note("link", "connected again")
            if self._gateway is None or self._gateway.state == "offline":
                self._remind_at = time.monotonic() + QUIET_S
        elif link != "connecting":
            self._remind_at = None
            self._note("link", f"{link}; trying again")

    def _gateway_said(self, name: str, status: GatewayStatus) -> None:
        before, self._gateway = self._gateway, status
        if before is not None and before.state == status.state:
            return
        if status.state == "offline":
            self._remind_at = time.monotonic() + REMIND_S
            self._note("gateway", f"gateway {name} is offline; waiting for it", gateway_state="offline")
        else:
            self._remind_at = None
            self._note("gateway", f"gateway {name} is {status.state}", gateway_state=status.state)

    def _logged(self, line: Log) -> None:
        round, kind, why = line.round, line.subject, str(line.detail.get("why", ""))
        head = f"round {round}"
        match line.kind:
            case "task":
                wanted = self._device.wanted().values()
                size = sum(ref.size for ref in wanted)
                purpose = "train" if kind == "train" else "evaluate"
                doing = f", fetching {_parts(len(wanted))} ({_bytes(size)})" if wanted else ""
                self._note("task", f"{head}: asked to {purpose}{doing}", round=round, kind=kind, bytes=size)
            case "trained":
                detail = dict(line.detail)
                held, right = int(detail["holdout"]), int(detail["correct"])
                score = f", hold-out {100 * right / held:.1f} % before" if held else ""
                self._note(
                    "trained",
                    f"{head}: trained on {detail['samples']:,} samples in {detail['seconds']:.1f} s, "
                    f"loss {detail['loss']:.3f}{score}",
                    round=round,
                    **detail,
                )
            case "evaluated":
                self._note("evaluated", f"{head}: evaluated", round=round)
            case "receipt":
                what = "update" if kind == "train" else "scores"
                accepted = bool(line.detail["accepted"])
                self._note(
                    "counted" if accepted else "refused",
                    f"{head}: {what} counted" if accepted else f"{head}: {what} refused: {why}",
                    round=round,
                    kind=kind,
                    why=why,
                )
            case "declined":
                self._note("declined", f"{head}: declined to {kind}: {why}", round=round, kind=kind, why=why)
            case "gave up":
                self._note("gave up", f"{head}: gave up: {why}", round=round, kind=kind, why=why)
            case "unable":
                text = f"leaving the selection until this agent is started again: {why}"
                self._note("unable", f"{text}; `fedbac-agent serve` is not touched by it", why=why)
            case "restored":
                text = "the cloud was restored from an older backup; following it from there"
                self._note("federation", text, instance=line.subject)
            case "stalled":
                times = int(line.detail["times"])
                self._note("stalled", f"{head}: {stalls.sentence(times)}", round=round, times=times)
            case "new federation":
                self._note("federation", "the federation has started anew", instance=line.subject)

    def _working(self) -> None:
        task = self._device.state.task
        if isinstance(task, TrainTask):
            epochs = task.training.epochs
            text = f"training, {epochs} epoch{'s' if epochs > 1 else ''}"
            self._note("training", f"round {task.round}: {text}", round=task.round, epochs=epochs)
        elif task is not None:
            models = f"{len(task.candidates)} model{'s' if len(task.candidates) > 1 else ''}"
            self._note(
                "evaluating",
                f"round {task.round}: evaluating {models}",
                round=task.round,
                models=len(task.candidates),
            )

    def _look_at_answer(self, node: Node) -> None:
        """An answer that the broker has, and the gateway has not yet receipted."""
        state = self._device.state
        if state.phase != "answered" or state.task is None or node.unsent():
            return
        kind = "train" if isinstance(state.task, TrainTask) else "evaluate"
        if self._sent != (kind, state.task.round):
            self._sent = (kind, state.task.round)
            what = "update" if kind == "train" else "scores"
            self._note("sent", f"round {state.task.round}: {what} sent", round=state.task.round, kind=kind)


def _parts(count: int) -> str:
    return f"{count} part{'s' if count != 1 else ''}"


def _bytes(count: int) -> str:
    return f"{count / 1000:,.0f} KB" if count < 1_000_000 else f"{count / 1e6:,.1f} MB"
