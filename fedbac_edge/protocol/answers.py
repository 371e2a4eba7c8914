"""What becomes of an answer: it counts, or is refused with a reason, and its sender gets a receipt.

A gateway treats its devices in this way, the cloud its gateways. `collecting` has the rules; here they meet a
tier's state, its messages and its ledger.
"""

from __future__ import annotations

from typing import Protocol

from fedbac_edge.protocol import collecting
from fedbac_edge.protocol.collecting import Collecting, Key, task_key
from fedbac_edge.protocol.events import Action, Channel, Log, Send, Settle
from fedbac_edge.protocol.messages import DeviceScores, DeviceUpdate, GatewayScores, GatewayUpdate, Receipt

REASON_LENGTH = 400


class Asks(Protocol):
    """The state of a tier that asks others and waits for them."""

    collecting: Collecting

    @property
    def opened(self) -> tuple[str, int] | None:
        """(kind, round) of what is open: "train" or "evaluate"."""
        ...


def key(answer: DeviceUpdate | DeviceScores | GatewayUpdate | GatewayScores) -> Key:
    """What is counted exactly once per sender and kind, whatever the link repeats."""
    return (answer.instance, answer.round)


def awaits(state: Asks, name: str, kind: str, round: int) -> bool:
    """True while an answer of this kind is waited for from `name`."""
    return (kind, round) == state.opened and name in state.collecting.waiting


def collect(state: Asks, collected: Collecting, now: float) -> None:
    """Take the next value; when no answer is awaited any longer the deadline is now."""
    state.collecting = collecting.close_when_done(collected, now)


def receipt(to: Channel, kind: str, round: int, accepted: bool, reason: str = "") -> Send:
    """What the sender of an answer is told."""
    return Send(to, Receipt(kind=kind, round=round, accepted=accepted, reason=reason[:REASON_LENGTH]))


def refuse(
    state: Asks, name: str, to: Channel, kind: str, round: int, reason: str, now: float
) -> list[Action]:
    """The answer of `name` does not count; where one was waited for, none is waited for any longer."""
    told: list[Action] = [
        receipt(to, kind, round, False, reason),
        Log("refused", name, round, {"why": reason}),
    ]
    if not awaits(state, name, kind, round):
        return told
    collect(state, collecting.refuse(state.collecting, name, reason), now)
    return [*told, Settle(task_key(name))]


def give_up(state: Asks, name: str, round: int, now: float) -> list[Action]:
    """One that vanished has not come back: its answer still counts if it comes before the close."""
    collect(state, collecting.decline(state.collecting, name), now)
    return [Settle(task_key(name)), Log("gone", name, round)]
