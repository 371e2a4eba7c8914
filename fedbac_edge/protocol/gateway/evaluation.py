"""A gateway's evaluation: devices score the candidates on their hold-outs, and the sums go to the cloud."""

from __future__ import annotations

from collections.abc import Mapping

from fedbac_edge.protocol import answers, collecting
from fedbac_edge.protocol.collecting import share, task_key
from fedbac_edge.protocol.events import Action, Channel, Log, Send, Settle
from fedbac_edge.protocol.gateway import gate, roster
from fedbac_edge.protocol.gateway.state import REPORT, Edge
from fedbac_edge.protocol.messages import (
    DeviceScores,
    EvaluateTask,
    GatewayEvaluation,
    GatewayScores,
    Traffic,
)
from fedbac_edge.vocabulary.terms import NO_SCORE, Score


def ask(edge: Edge, task: GatewayEvaluation, now: float) -> list[Action]:
    """Every device that has a hold-out and can be reached gets the candidates."""
    state = edge.state
    able = tuple(
        name
        for name in roster.names(edge.name, state)
        if roster.member(state, name).holdout and roster.is_reachable(state, name)
    )
    answers.collect(state, collecting.ask(state.collecting, able), now)
    message = EvaluateTask(
        instance=task.instance,
        round=task.round,
        candidates=task.candidates,
        deadline_s=share(task.deadline_s),
    )
    return [Send(Channel("task", edge.name, device), message, task_key(device)) for device in able]


def take_scores(edge: Edge, device: str, scores: DeviceScores, size: int, now: float) -> list[Action]:
    """A device's scores, a message of `size` bytes: count them once, or refuse them."""
    state, to, key = edge.state, Channel("receipt", edge.name, device), answers.key(scores)
    if collecting.has_counted(state.collecting, "evaluate", device, key):
        return [answers.receipt(to, "evaluate", scores.round, True)]
    state.sent += size
    try:
        gate.admit_device_scores(state, device, scores)
    except gate.Refused as refusal:
        return answers.refuse(state, device, to, "evaluate", scores.round, str(refusal), now)
    state.scores[device] = scores.scores
    state.received += scores.received
    answers.collect(state, collecting.count(state.collecting, "evaluate", device, key), now)
    return [Settle(task_key(device)), answers.receipt(to, "evaluate", scores.round, True)]


def summed(scores: Mapping[str, Mapping[int, Score]]) -> dict[int, Score]:
    """Cluster -> score over all devices, added in name order."""
    total: dict[int, Score] = {}
    for _, by_cluster in sorted(scores.items()):
        for cluster, score in sorted(by_cluster.items()):
            total[cluster] = total.get(cluster, NO_SCORE) + score
    return total


def report(edge: Edge, scores: dict[int, Score], answered: int, now: float) -> list[Action]:
    """The evaluation is over: cluster -> score goes to the cloud, the sum of `answered` answers."""
    state, task = edge.state, edge.state.task
    assert isinstance(task, GatewayEvaluation)
    late = collecting.let_go(state.collecting, task.round)
    message = GatewayScores(
        instance=task.instance,
        round=task.round,
        scores=scores,
        answered=answered,
        traffic=Traffic(up=state.sent, down=state.received),
        seconds=now - state.began,
    )
    state.phase, state.collecting = "reported", collecting.end(state.collecting)
    return [
        *late,
        Log("scored", edge.name, task.round, {"answered": answered}),
        Send(Channel("update", edge.name), message, REPORT),
    ]
