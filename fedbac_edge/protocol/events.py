"""Events that a state machine is told, actions that it answers with, and what every machine offers.

A machine is a function of its state: `handle(event, now)` changes the state and returns actions; its
driver (`node`) stores state and actions in one transaction before anything leaves the process. `now` is
in seconds, monotonic, and goes on after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from fedbac_edge.protocol.messages import Message
from fedbac_edge.signing.manifest import Manifest, Vector
from fedbac_edge.vocabulary.terms import PartRef, Score
from fedbac_edge.vocabulary.training import LocalTraining

Leaf = Literal["spec", "order", "status", "task", "reply", "update", "receipt", "release", "serving"]


@dataclass(frozen=True)
class Channel:
    """One leaf of the topic tree: the cloud's ("spec", "status", "order"), a gateway's, or a device's."""

    leaf: Leaf
    gateway: str = ""
    device: str = ""


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Started:
    """The process came up: first start, or after a crash with the state read back."""


@dataclass(frozen=True)
class Hello:
    """Publish the status: the link is up (again), or it is time; a will may have said otherwise."""

    repeated: bool = False
    """It is time: the link has been up for a while."""


@dataclass(frozen=True)
class Leaving:
    """The process ends in good order: tell its peers. It may come back, with the state as it is."""


@dataclass(frozen=True)
class Received:
    """A message arrived on `channel`; `size` is its payload in bytes."""

    channel: Channel
    message: Message
    size: int = 0


@dataclass(frozen=True)
class Overwritten:
    """What is retained on `channel` was cleared (`why` is ""), or replaced by something unreadable."""

    channel: Channel
    why: str


@dataclass(frozen=True)
class Fetched:
    """The wanted part with this hash is in the store; `size` bytes came over the link for it."""

    hash: str
    size: int


@dataclass(frozen=True)
class Spoiled:
    """What came under the hash of a wanted part is not it; nothing of it was kept."""

    hash: str
    reason: str


@dataclass(frozen=True)
class Stalled:
    """Wanted parts make no progress, and the broker has nothing of them: their maker should send again."""

    hashes: tuple[str, ...]
    times: int
    """How often this was said since the last progress."""


@dataclass(frozen=True)
class TimerFired:
    """The named timer of the machine's state is due."""

    name: str


@dataclass(frozen=True)
class Trained:
    """The training job `job` ended: role -> canonical bytes of the trained part.

    Of the `samples` trained on, `unlabelled` have no label.
    """

    job: str
    parts: Mapping[str, bytes]
    samples: int
    data: int
    loss: float
    holdout: Score
    previous: Score | None
    unlabelled: int = 0


@dataclass(frozen=True)
class Evaluated:
    """The evaluation job `job` ended: candidate -> score."""

    job: str
    scores: Mapping[int, Score]


@dataclass(frozen=True)
class BuiltModel:
    """One cluster's ONNX file and what a device must get out of it."""

    onnx: bytes
    vectors: tuple[Vector, ...]


@dataclass(frozen=True)
class Built:
    """The release job `job` ended: cluster -> its model."""

    job: str
    models: Mapping[int, BuiltModel]


@dataclass(frozen=True)
class Tried:
    """The trial `job` ended well: the model opens, passes its self-test and is ready to answer."""

    job: str


@dataclass(frozen=True)
class ModelFailed:
    """The model with this hash, which has been answering, does so no longer; `reason` is a sentence."""

    hash: str
    reason: str


@dataclass(frozen=True)
class DataRead:
    """A device's data were read (again): samples to train on, labels among them, samples held out."""

    samples: int
    labelled: int
    holdout: int


@dataclass(frozen=True)
class JobFailed:
    """The job `job` could not be done; `reason` is a sentence. `final`: nor can any other on this machine."""

    job: str
    reason: str
    final: bool = False


Event = (
    Started
    | Hello
    | Leaving
    | Received
    | Overwritten
    | Fetched
    | Spoiled
    | Stalled
    | TimerFired
    | Trained
    | Evaluated
    | Built
    | Tried
    | ModelFailed
    | DataRead
    | JobFailed
)

# --- jobs: what a worker does ---------------------------------------------------------------------


@dataclass(frozen=True)
class TrainJob:
    """Score `parts` and `previous` on the hold-out, then train (role -> hash of a kept blob).

    `parts` are the roles that training and scoring read; the device's data say which of them are trained.
    """

    id: str
    parts: Mapping[str, str]
    previous: Mapping[str, str]
    training: LocalTraining
    seed: tuple[int | str, ...]
    round: int = 0


@dataclass(frozen=True)
class EvaluateJob:
    """Score every candidate (number -> role -> hash of a kept blob) as the served view, or as in `views`."""

    id: str
    candidates: Mapping[int, Mapping[str, str]]
    views: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterRelease:
    """What a cluster's model is made of: role -> hash of a kept blob, and the sites that it is for."""

    sites: tuple[str, ...]
    parts: dict[str, str]
    accuracy: float | None = None
    accuracy_round: int | None = None


@dataclass(frozen=True)
class ReleaseJob:
    """Build the model of every cluster, with its self-test."""

    id: str
    instance: str
    round: int
    clusters: dict[int, ClusterRelease]


@dataclass(frozen=True)
class TrialJob:
    """Open the kept blob `manifest.hash` and hold it to the manifest."""

    id: str
    manifest: Manifest


Job = TrainJob | EvaluateJob
"""What a device's training process does."""
AnyJob = Job | ReleaseJob | TrialJob

# --- actions --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Publish `message`. With a `key` it is sent again until `Settle(key)`; a new Send replaces the old."""

    channel: Channel
    message: Message
    key: str = ""
    retain: bool = False


@dataclass(frozen=True)
class Settle:
    """The message sent under `key` was answered (or is pointless now): stop sending it."""

    key: str


@dataclass(frozen=True)
class Resend:
    """Send the message under `key` again now: its receiver has just come up."""

    key: str


@dataclass(frozen=True)
class Keep:
    """Store a blob under its content hash; it stays while the machine's `kept()` names it."""

    hash: str
    data: bytes


@dataclass(frozen=True)
class Announce:
    """Publish a kept part once, in retained chunks, then its manifest under the part's name."""

    part: PartRef
    round: int


@dataclass(frozen=True)
class Offer:
    """Publish a kept blob once, in retained chunks, then `sends`, retained, when the broker has them all."""

    hash: str
    sends: tuple[Send, ...]


@dataclass(frozen=True)
class Refresh:
    """Have what is retained on this channel delivered again: it should have come, and was lost or missed."""

    channel: Channel


@dataclass(frozen=True)
class Repeat:
    """Publish again what this process keeps retained: a part by its hash, or what stands on a channel."""

    what: str | Channel


@dataclass(frozen=True)
class Withdraw:
    """Clear the retained chunks of a part that is needed no more."""

    hash: str


@dataclass(frozen=True)
class Work:
    """Start a job off the network thread; a job that still runs is cancelled first."""

    job: AnyJob


@dataclass(frozen=True)
class StopWork:
    """Cancel the running job, if any."""


@dataclass(frozen=True)
class Log:
    """A line for the ledger: `kind` in a word, `subject` a device, gateway or part."""

    kind: str
    subject: str = ""
    round: int = 0
    detail: Mapping[str, Any] = field(default_factory=dict)


Action = (
    Send | Settle | Resend | Keep | Announce | Offer | Refresh | Repeat | Withdraw | Work | StopWork | Log
)


class Machine(Protocol):
    """What `node` needs of a tier's state machine."""

    @property
    def state(self) -> Any:
        """The whole state, a msgspec Struct; `type(state)` decodes what was stored."""
        ...

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event. Pure but for `state`; reads blobs only by content hash."""
        ...

    def status(self, state: str) -> Send:
        """The birth message; with "offline" the will."""
        ...

    def timers(self) -> Mapping[str, float]:
        """Timer name -> time at which `TimerFired` is due. The machine removes a timer when it fires."""
        ...

    def wanted(self) -> Mapping[str, PartRef]:
        """Hash -> parts to fetch from the bus now."""
        ...

    def kept(self) -> Set[str]:
        """Hashes of the blobs that the state still needs; every other blob is collected."""
        ...
