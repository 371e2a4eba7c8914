"""What a gateway tells the cloud at the end of a round or an evaluation, made from its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedbac_edge.methods import method
from fedbac_edge.parts.encodings import Encoding
from fedbac_edge.protocol.events import EvaluateJob
from fedbac_edge.protocol.gateway import roster
from fedbac_edge.protocol.gateway.state import GatewayState
from fedbac_edge.protocol.messages import (
    GatewayEvaluation,
    GatewayScores,
    GatewayTask,
    GatewayUpdate,
    Traffic,
)
from fedbac_edge.vocabulary.terms import NO_SCORE, Score


def update(
    gateway: str, state: GatewayState, parts: dict[str, bytes], encoding: Encoding, void: str, now: float
) -> GatewayUpdate:
    """The round that is being closed: its averages, or none and why it is `void`."""
    task = state.task
    assert isinstance(task, GatewayTask)
    samples = sum(answer.samples for answer in state.answers.values())
    unlabelled = sum(answer.unlabelled for answer in state.answers.values())
    data, unlabelled_data = _data(gateway, state, samples, unlabelled)
    return GatewayUpdate(
        instance=task.instance,
        round=task.round,
        parts=parts,
        encoding=encoding,
        samples=0 if void else samples,
        data=data,
        unlabelled=0 if void else unlabelled,
        unlabelled_data=unlabelled_data,
        holdout=sum((answer.holdout for answer in state.answers.values()), NO_SCORE),
        asked=len(state.collecting.asked),
        answered=len(state.answers),
        refused=len(state.collecting.refused),
        traffic=Traffic(up=state.sent, down=state.received),
        seconds=now - state.began,
        waited=0.0 if void else now - state.answered,
        void=void,
    )


def _data(gateway: str, state: GatewayState, samples: int, unlabelled: int) -> tuple[int, int]:
    """All training samples of the site, and those of them without labels; no fewer than were trained on.

    A device's data may have grown since it said how much it has.
    """
    members = [roster.member(state, name) for name in roster.names(gateway, state)]
    federation = state.federation
    if federation is None or not method(federation).takes_unlabelled:
        return max(samples, sum(member.samples for member in members)), 0
    without = max(unlabelled, sum(max(0, member.samples - member.labelled) for member in members))
    labelled = max(samples - unlabelled, sum(member.labelled for member in members))
    return labelled + without, without


def counts(state: GatewayState, update: GatewayUpdate) -> dict[str, Any]:
    """The same in figures, for the ledger."""
    return {
        "asked": update.asked,
        "answered": update.answered,
        "refused": dict(sorted(state.collecting.refused.items())),
        "samples": update.samples,
        "accuracy": update.holdout.accuracy if update.holdout.count else None,
        "up": update.traffic.up,
        "down": update.traffic.down,
        "seconds": round(update.seconds, 3),
        "void": update.void,
    }


def summed(scores: Mapping[str, Mapping[int, Score]]) -> dict[int, Score]:
    """Cluster -> score over all devices, added in name order."""
    total: dict[int, Score] = {}
    for _, by_cluster in sorted(scores.items()):
        for cluster, score in sorted(by_cluster.items()):
            total[cluster] = total.get(cluster, NO_SCORE) + score
    return total


def scores(state: GatewayState, total: dict[int, Score], answered: int, now: float) -> GatewayScores:
    """The evaluation that is being closed."""
    task = state.task
    assert isinstance(task, GatewayEvaluation)
    return GatewayScores(
        instance=task.instance,
        round=task.round,
        scores=total,
        answered=answered,
        traffic=Traffic(up=state.sent, down=state.received),
        seconds=now - state.began,
    )


def own_evaluation(job: str, task: GatewayEvaluation) -> EvaluateJob:
    """The laboratory's job: the task's candidates on the gateway's own evaluation data."""
    candidates = {k: {role: ref.hash for role, ref in parts.items()} for k, parts in task.candidates.items()}
    return EvaluateJob(id=job, candidates=candidates)
