"""The gate: what an update must be before it counts, at gateways and at the cloud alike.

Refused by name: another round, a device not asked, another base, other roles than its samples train, wrong
shapes, numbers that are not finite, another encoding, no samples. A step far longer than the others' is
judged when its round closes (`norm_gate`). An encoded update is decoded on top of the base that is here;
what comes out is checked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import isfinite

from fedbac_edge.methods import method
from fedbac_edge.methods.method import weight_of
from fedbac_edge.models.catalog import architecture
from fedbac_edge.parts.encodings import decode
from fedbac_edge.parts.part import PartError, Schema, distance, unpack
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.gateway.roster import member
from fedbac_edge.protocol.gateway.state import GatewayState, Member
from fedbac_edge.protocol.messages import (
    DeviceScores,
    DeviceUpdate,
    GatewayEvaluation,
    GatewayScores,
    GatewayTask,
    GatewayUpdate,
)
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import Parts, Score

SAMPLES_LIMIT = 10**12
LOSS_LIMIT = 1e300
"""Far above what can be, and small enough that sums over a federation stay finite and can be sent on."""
REASON_LENGTH = 400


class Refused(ValueError):
    """The update does not count; the message is the reason that its sender is told, cut to a line."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason[:REASON_LENGTH])


def admit_device_update(
    state: GatewayState, device: str, update: DeviceUpdate, blobs: Mapping[str, bytes]
) -> dict[str, float]:
    """A device's update at its gateway; returns the step's norm by group of roles. Raises Refused."""
    task, federation = state.task, state.federation
    if not isinstance(task, GatewayTask) or task.round != update.round or state.phase != "training":
        raise Refused(f"round {update.round} is not open here")
    assert federation is not None
    check_instance(update.instance, task.instance)
    if update.device != device:
        raise Refused("the update names another device than the topic")
    if device not in state.collecting.asked:
        raise Refused("this device was not asked in this round")
    if not 0 < update.samples <= update.data:
        raise Refused(f"{update.samples} samples of {update.data}")
    if not isfinite(update.loss):
        raise Refused(f"training came to a loss of {update.loss}")
    check_score(update.holdout)
    check_score(update.previous)
    check_kinds(update.samples, update.unlabelled)
    if method(federation).takes_unlabelled:
        check_announced(member(state, device), update.samples - update.unlabelled, update.unlabelled)
    trained = method(federation).trained(task.round, update.samples, update.unlabelled)
    starts = {role: task.parts[role] for role in trained if role in task.parts}
    check_roles(update.parts, starts)
    check_base(update.base, starts)
    base = {role: blobs[ref.hash] for role, ref in starts.items()}
    return check_parts(update.parts, update.encoding, base, federation)


def admit_device_scores(state: GatewayState, device: str, scores: DeviceScores) -> None:
    """A device's scores at its gateway. Raises Refused."""
    task = state.task
    if not isinstance(task, GatewayEvaluation) or task.round != scores.round or state.phase != "evaluating":
        raise Refused(f"the evaluation of round {scores.round} is not open here")
    check_instance(scores.instance, task.instance)
    if scores.device != device or device not in state.collecting.asked:
        raise Refused("this device was not asked in this evaluation")
    if set(scores.scores) != set(task.candidates):
        raise Refused("the scores are not those of the clusters asked for")
    for score in scores.scores.values():
        check_score(score)


def admit_site_update(
    federation: Federation,
    state: CloudState,
    gateway: str,
    update: GatewayUpdate,
    base: Parts,
    blobs: Mapping[str, bytes],
) -> dict[str, float]:
    """A gateway's round at the cloud; returns the step's norm by group of roles. Raises Refused.

    A role that learns from one kind of samples may be missing where no device held enough of that kind.
    """
    if state.phase != "training" or update.round != state.round or gateway not in state.collecting.asked:
        raise Refused(f"round {update.round} is not open for this gateway")
    check_instance(update.instance, state.instance)
    check_score(update.holdout)
    if update.void:
        return {}
    if not 0 < update.samples <= update.data:
        raise Refused(f"{update.samples} samples of {update.data}")
    check_kinds(update.samples, update.unlabelled)
    check_kinds(update.data, update.unlabelled_data)
    described = method(federation)
    trained = described.trained(update.round, update.samples, update.unlabelled)
    roles = {role.name: role for role in described.roles}
    for role in trained:
        if not weight_of(roles[role], update.data, update.unlabelled_data):
            raise Refused(f"{role} was trained on {roles[role].weight} samples, of which the site has none")
    if not update.parts or not set(update.parts) <= set(trained):
        check_roles(update.parts, trained)
    optional = {role for role in trained if roles[role].weight != "samples" and role not in update.parts}
    held = {role: blobs[base[role].hash] for role in trained if role not in optional}
    return check_parts(update.parts, update.encoding, held, federation)


def admit_site_scores(state: CloudState, gateway: str, scores: GatewayScores, clusters: int) -> None:
    """A gateway's evaluation at the cloud. Raises Refused."""
    if state.phase != "evaluating" or scores.round != state.round or gateway not in state.collecting.asked:
        raise Refused(f"the evaluation of round {scores.round} is not open for this gateway")
    check_instance(scores.instance, state.instance)
    if not set(scores.scores) <= set(range(clusters)):
        raise Refused("scores of clusters that do not exist")
    for score in scores.scores.values():
        check_score(score)


def schemas(federation: Federation) -> dict[str, Schema]:
    """Role -> what a part that plays it looks like."""
    model = federation.model
    networks = method(federation).architectures(
        architecture(model.architecture, model.input, len(model.classes))
    )
    return {role: network.schema() for role, network in networks.items()}


def check_instance(found: str, expected: str) -> None:
    """An answer kept since an earlier federation of this name must not count in this one."""
    if found != expected:
        raise Refused("it belongs to another federation that had this name")


def check_kinds(samples: int, unlabelled: int) -> None:
    """Samples without labels are some of the samples."""
    if unlabelled > samples:
        raise Refused(f"{unlabelled} samples without labels, of {samples}")


def check_announced(said: Member, labelled: int, unlabelled: int) -> None:
    """Where kinds weigh apart, none may weigh more than the device's status says it has of it.

    A device reads its data when it starts, and then says how much of each kind there is.
    """
    if said.seen and (labelled > said.labelled or unlabelled > said.samples - said.labelled):
        raise Refused(
            f"{labelled} samples with labels and {unlabelled} without, and the device said that it has "
            f"{said.labelled} and {said.samples - said.labelled}"
        )


def check_base(base: Mapping[str, str], task: Parts) -> None:
    """The update must start from the parts of the task: role -> hash."""
    wrong = sorted(role for role in {*base, *task} if role not in task or base.get(role) != task[role].hash)
    if wrong:
        raise Refused(f"trained from another base: {', '.join(wrong)}")


def check_roles(parts: Collection[str], expected: Collection[str]) -> None:
    """The update must have the roles that its samples train, and no others."""
    if set(parts) != set(expected):
        raise Refused(
            f"expected the roles {', '.join(sorted(expected)) or 'none'}, "
            f"found {', '.join(sorted(parts)) or 'none'}"
        )


def check_parts(
    parts: Mapping[str, bytes],
    encoding: str,
    base: Mapping[str, bytes],
    federation: Federation,
) -> dict[str, float]:
    """Encoding, roles, schema and finiteness; returns the length of the step by group of roles.

    `parts` is role -> bytes in `encoding`, `base` role -> canonical bytes. Roles that always travel together
    are one step.
    """
    if encoding != federation.wire.encoding:
        raise Refused(
            f"the update is encoded as {encoding:.40}, this federation uses {federation.wire.encoding}"
        )
    check_roles(parts, base)
    described, groups = schemas(federation), method(federation).together()
    squares: dict[str, float] = {}
    for role in sorted(parts):
        start = unpack(base[role], described[role])
        try:
            part = decode(federation.wire.encoding, parts[role], start, described[role])
        except PartError as error:
            raise Refused(f"{role}: {error}") from error
        squares[groups[role]] = squares.get(groups[role], 0.0) + distance(part, start) ** 2
    return {group: float(square**0.5) for group, square in squares.items()}


def check_score(score: Score | None) -> None:
    """A score that can be summed: a loss that is a number, no more right answers than samples."""
    if score is not None and not (
        0 <= score.loss <= LOSS_LIMIT and score.correct <= score.count <= SAMPLES_LIMIT
    ):
        raise Refused(f"a score that cannot be: {score.correct} of {score.count} right, loss {score.loss}")
