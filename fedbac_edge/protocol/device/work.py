"""A device at work on its task: what it needs for that, the job, and the answer that comes of it."""

from __future__ import annotations

from fedbac_edge.parts.part import PartError
from fedbac_edge.protocol.device.state import ANSWER, Client, DeviceState, kind
from fedbac_edge.protocol.events import (
    Action,
    Evaluated,
    EvaluateJob,
    Log,
    Send,
    StopWork,
    Trained,
    TrainJob,
    Work,
)
from fedbac_edge.protocol.gateway import feedback, gate
from fedbac_edge.protocol.messages import DeviceScores, DeviceUpdate, EvaluateTask, TaskReply, TrainTask
from fedbac_edge.vocabulary.terms import PartRef


def refusal(client: Client, task: TrainTask | EvaluateTask) -> str:
    """Why this device cannot do the task; "" when it can."""
    if client.state.unable:
        return client.state.unable
    if isinstance(task, EvaluateTask):
        return "" if client.profile.holdout else "no hold-out"
    return "" if client.method.trained(task.round, *_counts(client)) else "no data"


def needs(client: Client, task: TrainTask | EvaluateTask) -> list[PartRef]:
    """The parts without which the task cannot be done: no others travel to this device."""
    if isinstance(task, TrainTask):
        return [task.parts[role] for role in _roles(client, task)]
    return [ref for parts in task.candidates.values() for ref in parts.values()]


def _counts(client: Client) -> tuple[int, int]:
    """Samples to train on, and those of them without labels."""
    return client.profile.samples, client.profile.samples - client.profile.labelled


def _roles(client: Client, task: TrainTask) -> tuple[str, ...]:
    needed = client.method.needed(task.round, *_counts(client))
    return tuple(role for role in needed if role in task.parts)


def begin(client: Client) -> list[Action]:
    """All parts are here: the job. After a restart it is the same again."""
    task = client.state.task
    assert task is not None
    if isinstance(task, EvaluateTask):
        candidates = {
            k: {role: ref.hash for role, ref in parts.items()} for k, parts in task.candidates.items()
        }
        return [Work(EvaluateJob(id=_job(client.state), candidates=candidates))]
    judged = {term.role for term in client.method.judged_view.terms}
    previous = {role: ref.hash for role, ref in task.previous.items() if role in judged}
    here = previous if all(hash in client.blobs for hash in previous.values()) else {}
    job = TrainJob(
        id=_job(client.state),
        parts={role: task.parts[role].hash for role in _roles(client, task)},
        previous=here,
        training=task.training,
        seed=(client.federation.seed, "device", client.name, task.round, "train"),
        round=task.round,
    )
    return [Work(job)]


def is_current(state: DeviceState, job: str) -> bool:
    """True for the job that this device is at."""
    return state.phase == "working" and job == _job(state)


def _job(state: DeviceState) -> str:
    return "" if state.task is None else f"{kind(state.task)}-{state.task.round}"


# --- answers --------------------------------------------------------------------------------------


def reply(client: Client, accepted: bool, reason: str = "") -> Send:
    """Whether the task is taken, or why it will not be done."""
    task = client.state.task
    assert task is not None
    message = TaskReply(kind=kind(task), round=task.round, accepted=accepted, reason=reason[:400])
    return Send(client.channel("reply"), message)


def give_up(client: Client, reason: str) -> list[Action]:
    """The task will not be done, and the gateway need not wait."""
    state, task = client.state, client.state.task
    assert task is not None
    state.phase, state.timers, state.why = "declined", {}, reason[:400]
    return [
        StopWork(),
        Log("gave up", kind(task), task.round, {"why": reason}),
        reply(client, False, reason),
    ]


def answer_update(client: Client, event: Trained, now: float) -> list[Action]:
    """The training is done: the update, encoded."""
    state = client.state
    task = state.task
    assert isinstance(task, TrainTask)
    encoding, schemas = client.federation.wire.encoding, gate.schemas(client.federation)
    try:
        parts, keeps = feedback.encode_update(
            state.feedback, encoding, task.round, task.parts, event.parts, client.blobs, schemas
        )
    except PartError as error:
        return give_up(client, str(error))
    update = DeviceUpdate(
        instance=state.instance,
        device=client.name,
        round=task.round,
        base={role: task.parts[role].hash for role in event.parts},
        parts=parts,
        encoding=encoding,
        samples=event.samples,
        unlabelled=event.unlabelled,
        data=event.data,
        loss=event.loss,
        holdout=event.holdout,
        previous=event.previous,
        received=state.received,
        seconds=now - state.began,
    )
    detail = {
        "samples": event.samples,
        "loss": round(event.loss, 6),
        "holdout": event.holdout.count,
        "correct": event.holdout.correct,
        "seconds": round(now - state.began, 3),
    }
    state.phase, state.timers = "answered", {}
    return [
        *keeps,
        Log("trained", "", task.round, detail),
        Send(client.channel("update"), update, ANSWER),
    ]


def answer_scores(client: Client, event: Evaluated, now: float) -> list[Action]:
    """The candidates are scored."""
    state = client.state
    task = state.task
    assert isinstance(task, EvaluateTask)
    scores = DeviceScores(
        instance=state.instance,
        device=client.name,
        round=task.round,
        scores=dict(event.scores),
        received=state.received,
        seconds=now - state.began,
    )
    state.phase, state.timers = "answered", {}
    return [
        Log("evaluated", "", task.round),
        Send(client.channel("update"), scores, ANSWER),
    ]
