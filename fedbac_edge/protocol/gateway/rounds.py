"""A gateway's round of training: ask the chosen devices, count their updates, average, report to the cloud.

An update that passes the gate counts at once, but for a step far longer than the others': that one is held
and judged when the round closes (`norm_gate`).
"""

from __future__ import annotations

from typing import Any

from fedbac_edge.methods import method
from fedbac_edge.parts.encodings import Encoding
from fedbac_edge.parts.part import PartError, digest
from fedbac_edge.protocol import answers, averaging, collecting
from fedbac_edge.protocol.collecting import share, task_key
from fedbac_edge.protocol.events import Action, Channel, Keep, Log, Send, Settle
from fedbac_edge.protocol.gateway import feedback, gate, norm_gate, roster, selection
from fedbac_edge.protocol.gateway.state import REPORT, Answer, Edge, GatewayState
from fedbac_edge.protocol.messages import DeviceUpdate, GatewayTask, GatewayUpdate, Traffic, TrainTask
from fedbac_edge.vocabulary.terms import NO_SCORE, Score


def ask(edge: Edge, task: GatewayTask, now: float) -> list[Action]:
    """The parts are here: choose devices, and give each its task."""
    state = edge.state
    state.phase = "training"
    choice = selection.select(edge.name, state, task.round)
    deadline = state.collecting.deadline
    state.collecting = collecting.ask(state.collecting, choice.chosen)
    detail = selection.explained(choice, state, task.round)
    remaining = 0.0 if deadline is None else max(0.0, deadline - now)
    sends = [
        Send(
            Channel("task", edge.name, device),
            TrainTask(
                instance=task.instance,
                round=task.round,
                parts=task.parts,
                previous=task.previous,
                training=task.training,
                deadline_s=share(remaining),
                counted=state.last_update.get(device, 0),
            ),
            task_key(device),
        )
        for device in choice.chosen
    ]
    return [Log("selected", edge.name, task.round, detail), *sends]


# --- updates --------------------------------------------------------------------------------------


def take_update(edge: Edge, device: str, update: DeviceUpdate, size: int, now: float) -> list[Action]:
    """A device's update of `size` bytes: count it once, hold it, or refuse it."""
    state, to = edge.state, Channel("receipt", edge.name, device)
    if collecting.has_counted(state.collecting, "train", device, answers.key(update)):
        return [answers.receipt(to, "train", update.round, True)]  # once, and said again
    if _is_held(state, device, update):
        return []
    state.sent += size
    try:
        steps = gate.admit_device_update(state, device, update, edge.blobs)
    except gate.Refused as refusal:
        return answers.refuse(state, device, to, "train", update.round, str(refusal), now)
    suspect = edge.federation.deadlines.norm_gate and norm_gate.is_suspect(state.norms, steps)
    hashes = {role: digest(data) for role, data in sorted(update.parts.items())}
    keeps = [Keep(hash, update.parts[role]) for role, hash in hashes.items()]
    state.answers[device] = Answer(
        parts=hashes,
        samples=update.samples,
        holdout=update.holdout,
        previous=update.previous,
        received=update.received,
        sent=size,
        unlabelled=update.unlabelled,
        steps=steps,
        suspect=suspect,
        told={
            "samples": update.samples,
            "loss": update.loss,
            "norm": norm_gate.length(steps),
            "bytes": size,
            "received": update.received,
            "seconds": update.seconds,
        },
    )
    state.answered = now
    state.received += update.received
    settled: list[Action] = [*keeps, Settle(task_key(device))]
    if suspect:
        answers.collect(state, collecting.hold(state.collecting, device), now)
        return [*settled, Log("held", device, update.round, state.answers[device].told)]
    norm_gate.admit(state, device, steps)
    return [*settled, *_accept(edge, device, update.round, now)]


def _is_held(state: GatewayState, device: str, update: DeviceUpdate) -> bool:
    """True for an update that came before and is judged when the round closes."""
    task = state.task
    if state.phase != "training" or task is None or device not in state.answers:
        return False
    return (update.instance, update.round) == (task.instance, task.round)


def _accept(edge: Edge, device: str, round: int, now: float) -> list[Action]:
    """The update of `device` that is here counts."""
    state, task, answer = edge.state, edge.state.task, edge.state.answers[device]
    assert task is not None, "updates are of an open task"
    key = (task.instance, round)
    answers.collect(state, collecting.count(state.collecting, "train", device, key), now)
    state.last_update = {**state.last_update, device: round}
    told = {**answer.told, **({"shortened": answer.shortened} if answer.shortened else {})}
    receipt = answers.receipt(Channel("receipt", edge.name, device), "train", round, True)
    return [receipt, Log("accepted", device, round, told)]


# --- the close ------------------------------------------------------------------------------------


def end(edge: Edge, task: GatewayTask, now: float) -> list[Action]:
    """Nobody is waited for any longer, and the long steps are judged."""
    late = [*collecting.let_go(edge.state.collecting, task.round), *_judge(edge, task, now)]
    edge.state.collecting = collecting.end(edge.state.collecting)
    return late


def _judge(edge: Edge, task: GatewayTask, now: float) -> list[Action]:
    state, federation = edge.state, edge.federation
    needed = max(1, federation.deadlines.min_updates)
    counted, refused = norm_gate.close(state, state.answers, method(federation).together(), needed)
    judged: list[Action] = []
    for device, why in refused.items():
        state.collecting = collecting.refuse(state.collecting, device, why)
        judged += [
            answers.receipt(Channel("receipt", edge.name, device), "train", task.round, False, why),
            Log("refused", device, task.round, {"why": why}),
        ]
    return [*judged, *(action for device in counted for action in _accept(edge, device, task.round, now))]


def void(edge: Edge) -> str:
    """Why the answers of this round make no average of any role; "" when they do."""
    state, federation = edge.state, edge.federation
    needed = max(1, federation.deadlines.min_updates)
    if len(state.answers) < needed:
        return f"{len(state.answers)} updates of {len(state.collecting.asked)} asked, {needed} needed"
    kept = averaging.unprotected(state.answers, federation)
    trained = {role for answer in state.answers.values() for role in answer.parts}
    return min(kept.values()) if len(kept) == len(trained) else ""


def averages(edge: Edge, task: GatewayTask) -> dict[str, bytes]:
    """Role -> canonical bytes of the average, by the federation's rule; a scored one is at hand."""
    state = edge.state
    if state.phase == "scoring" and state.averaged:
        return {role: edge.blobs[hash] for role, hash in state.averaged.items()}
    return averaging.edge_averages(state.answers, task.parts, edge.blobs, edge.federation)


def report(edge: Edge, own: Score | None, now: float) -> list[Action]:
    """The round is over: reward the devices that took part, and tell the cloud.

    `own` is the average's score on the gateway's own evaluation data, None where it was not scored.
    """
    state, task, federation = edge.state, edge.state.task, edge.federation
    assert isinstance(task, GatewayTask)
    why, parts, keeps = void(edge), dict[str, bytes](), list[Keep]()
    encoding, schemas = federation.wire.encoding, gate.schemas(federation)
    if not why:
        try:
            parts, keeps = feedback.encode_update(
                state.feedback, encoding, task.round, task.parts, averages(edge, task), edge.blobs, schemas
            )
        except PartError as error:
            why = str(error)
    rewarded: list[Log] = []
    if own is not None:
        rewarded = selection.reward_own(edge.name, state, task, own)
    elif federation.evaluation == "holdout":
        rewarded = selection.reward_paired(edge.name, state, task)
    if not why:
        state.unrewarded, state.unrewarded_round = tuple(sorted(state.answers)), task.round
    update = _update(edge, task, parts, encoding, why, now)
    state.phase = "reported"
    unprotected = {} if why else averaging.unprotected(state.answers, federation)
    kept = [Log("kept", role, task.round, {"why": reason}) for role, reason in unprotected.items()]
    closed = Log("closed", edge.name, task.round, _figures(state, update))
    return [*rewarded, *keeps, *kept, closed, Send(Channel("update", edge.name), update, REPORT)]


def _update(
    edge: Edge, task: GatewayTask, parts: dict[str, bytes], encoding: Encoding, void: str, now: float
) -> GatewayUpdate:
    """The round that is being closed: its averages, or none and why it is `void`."""
    state = edge.state
    samples = sum(answer.samples for answer in state.answers.values())
    unlabelled = sum(answer.unlabelled for answer in state.answers.values())
    data, unlabelled_data = _data(edge, samples, unlabelled)
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


def _data(edge: Edge, samples: int, unlabelled: int) -> tuple[int, int]:
    """All training samples of the site, and those of them without labels; no fewer than were trained on.

    A device's data may have grown since it said how much it has.
    """
    state = edge.state
    members = [roster.member(state, name) for name in roster.names(edge.name, state)]
    if not method(edge.federation).takes_unlabelled:
        return max(samples, sum(member.samples for member in members)), 0
    without = max(unlabelled, sum(max(0, member.samples - member.labelled) for member in members))
    labelled = max(samples - unlabelled, sum(member.labelled for member in members))
    return labelled + without, without


def _figures(state: GatewayState, update: GatewayUpdate) -> dict[str, Any]:
    """The report in figures, for the ledger."""
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
