"""What travels between the tiers, one frozen type per message.

Every message is a MessagePack map with its wire version and its type (`broker.wire`); unknown or missing
fields are refused. Durations are seconds. Hashes are sha256 in hex. The topic names a message's sender.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import (
    Bytes,
    Cluster,
    Count,
    Hash,
    Instance,
    Loss,
    Name,
    PartRef,
    Parts,
    Round,
    Score,
    Seconds,
    Text,
    Total,
)
from fedbac_edge.vocabulary.training import LocalTraining


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """Base of everything on the wire."""


# --- what a federation is -------------------------------------------------------------------------


class Spec(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="spec"):
    """Retained on `spec`: the federation's description and the version of the cloud's software."""

    federation: Federation
    instance: Instance
    """Drawn once by the cloud: a federation that starts anew under an old name is another one."""
    software: Text


class Manifest(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="manifest"):
    """Retained on `model/<part>`: the newest generation of a part, once all its chunks are out."""

    part: PartRef
    round: Round


# --- presence -------------------------------------------------------------------------------------


class DeviceStatus(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="device-status"):
    """Retained on the device's status topic; the will says state "offline" with the same session."""

    state: Text
    session: Count
    samples: Count = 0
    labelled: Count = 0
    holdout: Count = 0
    software: Text = ""
    hardware: Text = ""


class Forgotten(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="forgotten"):
    """Not retained, on a device's status topic: it is gone for good. An operator's word, not the device's."""


class GatewayStatus(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="gateway-status"):
    """Retained on the gateway's status topic. `ready`: its members are there, a round can start."""

    state: Text
    session: Count
    ready: bool = False
    devices: Count = 0
    online: Count = 0
    round: Round = 0
    software: Text = ""
    refused: dict[Name, Count] = {}
    """Devices whose updates were refused as too long again and again -> how often in a row."""


class SiteSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One site in one round, for people."""

    cluster: Cluster
    accuracy: float | None = None
    """Hold-out accuracy of the served model that the round started from; None without hold-outs."""
    holdout: Total = 0
    asked: Count = 0
    answered: Count = 0
    refused: Count = 0
    samples: Total = 0
    void: Text = ""


class RoundSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One round (or the final evaluation) as the cloud saw it."""

    round: Round
    phase: Text
    seconds: Seconds
    sites: dict[Name, SiteSummary]
    active_clusters: Count
    up_bytes: Bytes
    down_bytes: Bytes
    reassigned: dict[Name, Cluster] = {}


class CloudStatus(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="cloud-status"):
    """Retained on `cloud/status`: where the campaign stands, and the round that ended last."""

    state: Text
    session: Count
    round: Round = 0
    rounds: Round = 0
    last: RoundSummary | None = None


# --- releases -------------------------------------------------------------------------------------

Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]


class Release(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="release"):
    """Retained on `edge/<gw>/release`: the site's newest model, once all its chunks are out."""

    manifest: Annotated[bytes, Meta(min_length=1, max_length=8 * 2**20)]
    """A `signing.manifest.Manifest`, as it was signed."""
    signature: Signature
    key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """The public key, for devices that pin the first one that they meet. Nobody else believes it."""


class Order(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="order"):
    """An operator's `signing.manifest.RollbackOrder`, signed with the key of the releases."""

    order: Annotated[bytes, Meta(min_length=1, max_length=1000)]
    signature: Signature


class ServingStatus(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="serving-status"):
    """Retained on the device's `serving` topic; the will says state "offline" with the same session."""

    state: Text
    """"serving", "empty" (no model yet), or "offline"."""
    session: Count
    number: Count = 0
    """Of the release that answers now; 0: none."""
    model: Count = 0
    cluster: Cluster = 0
    round: Round = 0
    hash: Annotated[str, Meta(max_length=64)] = ""
    doing: Text = ""
    """"fetching 7", "trying 7" ..."""
    refused: Text = ""
    """Why the last release that was refused was: stays until a newer one is taken."""
    software: Text = ""


# --- cloud and gateway ----------------------------------------------------------------------------


class GatewayTask(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="gateway-task"):
    """Hold round `round`: choose devices, let them train, report the average."""

    instance: Instance
    round: Round
    cluster: Cluster
    parts: Parts
    previous: Parts
    """What the site served one round before, empty when its cluster has changed since."""
    training: LocalTraining
    deadline_s: Seconds
    counted: Round = 0
    """Round of the gateway's last update that counted; 0 when none has. Settles its error feedback."""


class GatewayEvaluation(
    Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="gateway-evaluation"
):
    """Score every cluster's served model on the site's evaluation data."""

    instance: Instance
    round: Round
    candidates: dict[Cluster, Parts]
    deadline_s: Seconds


class Taken(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="taken"):
    """A gateway has the task of this kind ("train" or "evaluate") and round."""

    kind: Text
    round: Round
    instance: Instance | None = None
    """Given in answer to an older task: the gateway has this newer one of the same instance."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Payload bytes of a round: `up` from devices, `down` to devices and gateway (models received)."""

    up: Total = 0
    down: Total = 0


class GatewayUpdate(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="gateway-update"):
    """A gateway's round: averaged parts, or none with the reason in `void`.

    A role that learns from a kind of samples that no participant holds is not among the parts.
    """

    instance: Instance
    round: Round
    parts: dict[Name, bytes]
    samples: Total
    """Samples that the participants really trained on."""
    data: Total
    """All training samples of the site, participants or not."""
    holdout: Score
    """The round's starting model on the participants' hold-outs."""
    asked: Count
    answered: Count
    refused: Count
    traffic: Traffic
    seconds: Seconds
    waited: Seconds
    """Of these, spent after the last update that counted, waiting for the others in vain."""
    void: Text = ""
    encoding: Text = "float32"
    """How the bytes of `parts` are to be read (`encodings`), on top of the parts of the task."""
    unlabelled: Total = 0
    """Of `samples`, those without a label: what roles that learn from one kind weigh by."""
    unlabelled_data: Total = 0
    """Of `data`, those without a label."""


class GatewayScores(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="gateway-scores"):
    """A gateway's evaluation phase: cluster -> summed score over its devices."""

    instance: Instance
    round: Round
    scores: dict[Cluster, Score]
    answered: Count
    traffic: Traffic
    seconds: Seconds


# --- gateway and device ---------------------------------------------------------------------------


class TrainTask(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="train-task"):
    """Train those of this round's parts that the device's data train, and send the update."""

    instance: Instance
    round: Round
    parts: Parts
    previous: Parts
    training: LocalTraining
    deadline_s: Seconds
    counted: Round = 0
    """Round of the device's last update that counted; 0 when none has. Settles its error feedback."""


class EvaluateTask(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="evaluate-task"):
    """Score every candidate on the device's hold-out."""

    instance: Instance
    round: Round
    candidates: dict[Cluster, Parts]
    deadline_s: Seconds


class TaskReply(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="task-reply"):
    """A device takes the task, or declines with a reason (busy, no data, battery ...)."""

    kind: Text
    round: Round
    accepted: bool
    reason: Text = ""


class DeviceUpdate(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="device-update"):
    """What a device learned in a round."""

    instance: Instance
    device: Name
    round: Round
    base: dict[Name, Hash]
    """Role -> hash of the part that training started from, of the roles that were trained."""
    parts: dict[Name, bytes]
    """The roles that the device's data train."""
    encoding: Text = "float32"
    """How the bytes of `parts` are to be read (`encodings`), on top of the base."""
    samples: Count
    data: Count
    loss: Loss
    holdout: Score
    previous: Score | None
    """The served model of the round before on the same hold-out, when the device still has it."""
    received: Count
    """Bytes of models that the device fetched for this round."""
    seconds: Seconds
    unlabelled: Count = 0
    """Of `samples`, those without a label."""


class DeviceScores(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="device-scores"):
    """Cluster -> score on the device's hold-out."""

    instance: Instance
    device: Name
    round: Round
    scores: dict[Cluster, Score]
    received: Count
    seconds: Seconds


class Missing(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="missing"):
    """Please publish again: what is retained does not reach us. On `reply`; a gateway passes it on."""

    hashes: Annotated[tuple[Hash, ...], Meta(max_length=64)] = ()
    """Parts that make no progress."""
    release: bool = False
    """The release of the site."""


# --- both links -----------------------------------------------------------------------------------


class Receipt(Message, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="receipt"):
    """The answer to an update or to scores (`kind` "train" or "evaluate"): counted, or why not."""

    kind: Text
    round: Round
    accepted: bool
    reason: Text = ""
