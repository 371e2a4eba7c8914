"""The laboratory's jobs: a gateway scores models on evaluation data of its own (`evaluation = "test"`).

In a round it scores the edge-aggregated model before it reports, and the change is the reward of those who
took part. In an evaluation it scores the candidates itself, and no device is asked.
"""

from __future__ import annotations

from fedbac_edge.methods import method
from fedbac_edge.parts.part import digest
from fedbac_edge.protocol.events import Action, Evaluated, EvaluateJob, JobFailed, Keep, Log, Work
from fedbac_edge.protocol.gateway import evaluation, rounds
from fedbac_edge.protocol.gateway.state import Edge, GatewayState
from fedbac_edge.protocol.messages import GatewayEvaluation, GatewayTask


def is_used(state: GatewayState) -> bool:
    """True once it is known that this federation evaluates on the gateways' data."""
    return state.federation is not None and state.federation.evaluation == "test"


def score_candidates(edge: Edge, task: GatewayEvaluation) -> list[Action]:
    """An evaluation: the models of all candidates."""
    candidates = {k: {role: ref.hash for role, ref in parts.items()} for k, parts in task.candidates.items()}
    return [Work(EvaluateJob(id=_job(edge.state), candidates=candidates))]


def score_average(edge: Edge) -> list[Action]:
    """A round: the edge-aggregated model, as it would be served."""
    state, task = edge.state, edge.state.task
    assert isinstance(task, GatewayTask)
    state.averaged = {}
    averages = rounds.averages(edge, task)
    state.averaged = {role: digest(data) for role, data in averages.items()}
    keeps: list[Action] = [Keep(state.averaged[role], data) for role, data in averages.items()]
    newest = {role: ref.hash for role, ref in task.parts.items()} | state.averaged
    served = {
        term.role: task.parts[term.role].hash if term.generation else newest[term.role]
        for term in method(edge.federation).served_view.terms
    }
    return [*keeps, Work(EvaluateJob(id=_job(state), candidates={0: served}))]


def work_again(edge: Edge) -> list[Action]:
    """After a restart: the job that went with the process."""
    state, task = edge.state, edge.state.task
    if state.phase == "scoring":
        return score_average(edge)
    if state.phase == "evaluating" and is_used(state) and isinstance(task, GatewayEvaluation):
        return score_candidates(edge, task)
    return []


def take_scores(edge: Edge, event: Evaluated, now: float) -> list[Action]:
    """The job is done: the round, or the evaluation, is reported."""
    if event.job != _job(edge.state):
        return []
    if edge.state.phase == "scoring":
        return rounds.report(edge, event.scores[0], now)
    if edge.state.phase == "evaluating":
        return evaluation.report(edge, dict(event.scores), 1, now)
    return []


def take_failure(edge: Edge, event: JobFailed, now: float) -> list[Action]:
    """The job came to nothing: the report goes without its scores."""
    state = edge.state
    if event.job != _job(state):
        return []
    failed: list[Action] = [Log("job failed", edge.name, 0, {"why": event.reason})]
    if state.phase == "scoring":
        return [*failed, *rounds.report(edge, None, now)]
    return [*failed, *evaluation.report(edge, {}, 0, now)] if state.phase == "evaluating" else failed


def _job(state: GatewayState) -> str:
    return "" if state.task is None else f"{state.phase}-{state.task.round}"
