"""What a gateway remembers between events; stored as it is, one MessagePack value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from fedbac_edge.bandits import thompson
from fedbac_edge.protocol.collecting import Collecting
from fedbac_edge.protocol.gateway.feedback import Feedback
from fedbac_edge.protocol.messages import GatewayEvaluation, GatewayTask, Spec
from fedbac_edge.settings.federation import Federation
from fedbac_edge.settings.round_rules import RoundRules, by_rules
from fedbac_edge.vocabulary.terms import Score

Phase = Literal["idle", "fetching", "training", "scoring", "evaluating", "reported"]
REPORT = "report"
"""Under which the report to the cloud stands in the outbox until its receipt."""


class Member(msgspec.Struct, kw_only=True):
    """What a device last said about itself."""

    online: bool = False
    session: int = 0
    samples: int = 0
    labelled: int = 0
    holdout: int = 0
    seen: bool = False


class Answer(msgspec.Struct, kw_only=True):
    """An accepted update: where its parts are, and what it counts."""

    parts: dict[str, str]
    samples: int
    holdout: Score
    previous: Score | None
    received: int
    sent: int
    unlabelled: int = 0
    """Of `samples`, those without a label."""
    steps: dict[str, float] = {}
    """Group of roles that always travel together -> length of the step."""
    suspect: bool = False
    """Its step is far longer than the last ones: whether it counts is decided when the round closes."""
    shortened: dict[str, float] = {}
    """Role -> the factor that its step is multiplied by; 1 where it has none."""
    told: dict[str, Any] = {}
    """What the ledger says of it."""


class GatewayState(msgspec.Struct, kw_only=True):
    """All that a gateway remembers between events."""

    session: int = 0
    spec: Spec | None = None
    members: dict[str, Member] = {}
    posteriors: dict[str, thompson.Posterior] = {}
    phase: Phase = "idle"
    task: GatewayTask | GatewayEvaluation | None = None
    began: float = 0.0
    collecting: Collecting = Collecting()
    answers: dict[str, Answer] = {}
    scores: dict[str, dict[int, Score]] = {}
    last_update: dict[str, int] = {}
    """Device -> round of its last update that counted, which its next task tells it."""
    feedback: Feedback = msgspec.field(default_factory=Feedback)
    answered: float = 0.0
    """When the last update that counted came."""
    received: int = 0
    """Bytes of models: fetched by this gateway and, as they report, by its devices."""
    sent: int = 0
    """Bytes of updates from devices, refused ones included."""
    norms: dict[str, list[float]] = {}
    """Lengths of the last steps, by group of roles that always travel together (`norm_gate`)."""
    refusals: dict[str, int] = {}
    """Device -> how often in a row its step was refused as too long."""
    unrewarded: tuple[str, ...] = ()
    """Who took part in the last round and has no reward yet."""
    unrewarded_round: int = 0
    averaged: dict[str, str] = {}
    """Laboratory: role -> hash of the edge-aggregated part that is being scored."""
    reference: float | None = None
    """Laboratory: accuracy of the last edge-aggregated model that was scored."""
    reference_round: int = 0
    """The round of that model: a reward is the change from one round to the next, and never spans more."""
    announced: bool = False
    """The readiness that the cloud was told last."""
    rules: RoundRules | None = None
    """What the latest task began with, whatever has changed since."""

    @property
    def federation(self) -> Federation | None:
        """What the federation is, once the specification has come; its rules are those of the latest task."""
        return None if self.spec is None else by_rules(self.spec.federation, self.rules)

    @property
    def opened(self) -> tuple[str, int] | None:
        """(kind, round) of the task."""
        return None if self.task is None else (kind(self.task), self.task.round)


def kind(task: GatewayTask | GatewayEvaluation) -> str:
    """ "train" or "evaluate"."""
    return "train" if isinstance(task, GatewayTask) else "evaluate"


@dataclass(frozen=True)
class Edge:
    """A gateway as its rooms see it: its name, its state, and the store's view by content hash."""

    name: str
    state: GatewayState
    blobs: Mapping[str, bytes]

    @property
    def federation(self) -> Federation:
        """What the federation is; no task is taken before the specification has come."""
        federation = self.state.federation
        assert federation is not None
        return federation
