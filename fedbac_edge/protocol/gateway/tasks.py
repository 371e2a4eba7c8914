"""What a gateway's tasks and its devices' answers are called, ordered and counted by."""

from __future__ import annotations

from fedbac_edge.protocol.messages import DeviceScores, DeviceUpdate, GatewayEvaluation, GatewayTask
from fedbac_edge.vocabulary.terms import PartRef


def kind(task: GatewayTask | GatewayEvaluation) -> str:
    """ "train" or "evaluate"."""
    return "train" if isinstance(task, GatewayTask) else "evaluate"


def order(task: GatewayTask | GatewayEvaluation) -> tuple[int, int]:
    """Tasks in time: the evaluation of a round comes after its training."""
    return (task.round, isinstance(task, GatewayEvaluation))


def parts(task: GatewayTask | GatewayEvaluation) -> list[PartRef]:
    """The parts that a task names."""
    if isinstance(task, GatewayTask):
        return list(task.parts.values())
    return [ref for candidate in task.candidates.values() for ref in candidate.values()]


def counted(answer: DeviceUpdate | DeviceScores) -> tuple[str, int]:
    """What is counted exactly once per device, whatever the link repeats."""
    return (answer.instance, answer.round)
