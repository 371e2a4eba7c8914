"""What a device remembers between events, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from fedbac_edge.methods.method import Method
from fedbac_edge.protocol.events import Channel, Leaf
from fedbac_edge.protocol.gateway.feedback import Feedback
from fedbac_edge.protocol.messages import EvaluateTask, TrainTask
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import Parts

ANSWER = "answer"
"""Under which the answer stands in the outbox until its receipt."""
Phase = Literal["idle", "fetching", "working", "answered", "done", "declined"]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What a device tells about itself: counts of samples it trains on, of labels, of its hold-out."""

    samples: int
    labelled: int
    holdout: int
    hardware: str = ""


def most(one: Profile, other: Profile) -> Profile:
    """The larger count of each kind."""
    labelled = max(one.labelled, other.labelled)
    unlabelled = max(one.samples - one.labelled, other.samples - other.labelled)
    return msgspec.structs.replace(
        other, samples=labelled + unlabelled, labelled=labelled, holdout=max(one.holdout, other.holdout)
    )


class DeviceState(msgspec.Struct, kw_only=True):
    """All that a device remembers between events."""

    instance: str
    session: int = 0
    phase: Phase = "idle"
    task: TrainTask | EvaluateTask | None = None
    served: Parts = {}
    """The parts of the last training task: what this device served, and scores again a round later."""
    unable: str = ""
    """Why this device cannot train at all, found out since it started; it has left the selection."""
    why: str = ""
    """Why the task was declined."""
    received: int = 0
    """Bytes fetched for the current task."""
    feedback: Feedback = msgspec.field(default_factory=Feedback)
    began: float = 0.0
    timers: dict[str, float] = {}

    @property
    def opened(self) -> tuple[str, int] | None:
        """(kind, round) of the task."""
        return None if self.task is None else (kind(self.task), self.task.round)


def kind(task: TrainTask | EvaluateTask) -> str:
    """ "train" or "evaluate"."""
    return "train" if isinstance(task, TrainTask) else "evaluate"


@dataclass(frozen=True)
class Client:
    """A device as its rooms see it; `blobs` are the store's by content hash."""

    gateway: str
    name: str
    federation: Federation
    method: Method
    profile: Profile
    state: DeviceState
    blobs: Mapping[str, bytes]

    def channel(self, leaf: Leaf) -> Channel:
        """One of this device's own."""
        return Channel(leaf, self.gateway, self.name)
