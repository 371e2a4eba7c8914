r"""A device's state machine: take a task, fetch its parts, work, answer until the receipt comes.

    idle --task--> fetching --parts here--> working --done--> answered --receipt--> done
                                     \--no data, deadline, failure--> declined

A newer task replaces whatever goes on; an older or known one is answered again from what is stored. The
answer is sent again until its receipt, so it counts once whatever the link does.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Literal

import msgspec

from fedbac_edge import __version__
from fedbac_edge.methods import method
from fedbac_edge.parts.part import PartError
from fedbac_edge.protocol.cloud import restoration
from fedbac_edge.protocol.events import (
    Action,
    Channel,
    DataRead,
    Evaluated,
    EvaluateJob,
    Event,
    Fetched,
    Hello,
    Job,
    JobFailed,
    Leaf,
    Leaving,
    Log,
    Received,
    Refresh,
    Send,
    Settle,
    Stalled,
    Started,
    StopWork,
    TimerFired,
    Trained,
    TrainJob,
    Work,
)
from fedbac_edge.protocol.gateway import feedback, gate
from fedbac_edge.protocol.gateway.feedback import Feedback
from fedbac_edge.protocol.messages import (
    DeviceScores,
    DeviceStatus,
    DeviceUpdate,
    EvaluateTask,
    Missing,
    Receipt,
    Spec,
    TaskReply,
    TrainTask,
)
from fedbac_edge.settings import live
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import PartRef, Parts

ANSWER = "answer"
Phase = Literal["idle", "fetching", "working", "answered", "done", "declined"]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What a device tells about itself: counts of samples it trains on, of labels, of its hold-out."""

    samples: int
    labelled: int
    holdout: int
    hardware: str = ""


class DeviceState(msgspec.Struct, kw_only=True):
    """All that a device remembers between events."""

    instance: str
    session: int = 0
    phase: Phase = "idle"
    task: TrainTask | EvaluateTask | None = None
    served: Parts = {}
    """The parts of the last training task: what this device served, and scores again a round later."""
    unable: str = ""
    """Why this device cannot train at all, found out since it started; it has left the selection."""
    why: str = ""
    """Why the task was declined."""
    received: int = 0
    """Bytes fetched for the current task."""
    feedback: Feedback = msgspec.field(default_factory=Feedback)
    began: float = 0.0
    timers: dict[str, float] = {}


def kind_of(task: TrainTask | EvaluateTask) -> str:
    """ "train" or "evaluate"."""
    return "train" if isinstance(task, TrainTask) else "evaluate"


class Device:
    """The machine; `blobs` are the store's by content hash."""

    def __init__(
        self,
        gateway: str,
        name: str,
        federation: Federation,
        profile: Profile,
        blobs: Mapping[str, bytes],
        state: DeviceState,
    ) -> None:
        self.gateway, self.name, self.federation = gateway, name, federation
        self.profile, self.blobs, self.state = profile, blobs, state
        self.method = method(federation)
        self._bound, self._said = profile, profile

    # --- what the runner asks ---

    def timers(self) -> Mapping[str, float]:
        """The deadline of the current task."""
        return self.state.timers

    def wanted(self) -> Mapping[str, PartRef]:
        """Parts of the task that are not here yet."""
        if self.state.phase != "fetching" or self.state.task is None:
            return {}
        return {ref.hash: ref for ref in self._needs(self.state.task) if ref.hash not in self.blobs}

    def kept(self) -> Set[str]:
        """The task's parts, what was served before, and what an encoding could not express."""
        hashes = {ref.hash for ref in self.state.served.values()} | feedback.kept(self.state.feedback)
        if self.state.task is not None:
            hashes |= {ref.hash for ref in self._needs(self.state.task)}
            if isinstance(self.state.task, TrainTask):
                hashes |= {ref.hash for ref in self.state.task.previous.values()}
        return hashes

    def status(self, state: str) -> Send:
        """The birth message, and with "offline" the will."""
        said = self._announced()
        if state == "online":
            self._said = said
        message = DeviceStatus(
            state=state,
            session=self.state.session,
            samples=said.samples,
            labelled=said.labelled,
            holdout=said.holdout,
            software=__version__,
            hardware=said.hardware,
        )
        return Send(self._channel("status"), message, retain=True)

    # --- events ---

    def handle(self, event: Event, now: float) -> list[Action]:
        """One event in, actions out; see the picture on top."""
        if isinstance(event, TimerFired):
            self.state.timers = {k: when for k, when in self.state.timers.items() if k != event.name}
        actions = self._read(event) if isinstance(event, DataRead) else self._handle(event, now)
        return actions if self._announced() == self._said else [self.status("online"), *actions]

    def _handle(self, event: Event, now: float) -> list[Action]:
        match event:
            case Started():
                self.state.session, self.state.unable = self.state.session + 1, ""
                return [*self._work()] if self.state.phase == "working" else []
            case Hello():
                return [self.status("online")]
            case Leaving() if not self.between_rounds and self.federation.eligibility == "online":
                # With a roster the task stays open: whoever comes back in time gives the same bits.
                return [self._reply(False, "the device has left")]
            case Received(message=TrainTask() | EvaluateTask() as task):
                return self._take(task, now)
            case Received(message=Spec(instance=instance)) if instance != self.state.instance:
                kind = "restored" if restoration.is_kin(instance, self.state.instance) else "new federation"
                self.state = DeviceState(
                    instance=instance, session=self.state.session, unable=self.state.unable
                )
                return [StopWork(), Settle(ANSWER), Log(kind, instance)]
            case Received(message=Spec() as spec) if spec.federation != self.federation:
                return self._follow(spec.federation)
            case Received(message=Receipt() as receipt):
                return self._receipt(receipt)
            case Fetched():
                self.state.received += event.size
                return self._start_when_complete()
            case Stalled(hashes=hashes, times=times) if self.state.task is not None:
                line = Log("stalled", kind_of(self.state.task), self.state.task.round, {"times": times})
                return [line, Send(self._channel("reply"), Missing(hashes=hashes[:64]))]
            case Trained() if self._is_current(event.job):
                return self._answer_update(event, now)
            case Evaluated() if self._is_current(event.job):
                return self._answer_scores(event, now)
            case JobFailed(reason=reason, final=final) if self._is_current(event.job):
                return [*self._give_up(reason), *(self._leave_selection(reason) if final else [])]
            case TimerFired(name="deadline") if self.state.phase in ("fetching", "working"):
                return self._give_up("the deadline passed")
        return []

    def _read(self, found: DataRead) -> list[Action]:
        """The data are others now; a task that is under way may have been answered from those before."""
        before = self.profile
        self.profile = msgspec.structs.replace(
            before, samples=found.samples, labelled=found.labelled, holdout=found.holdout
        )
        if self.profile == before:
            return []
        self._bound = _most(self._bound, self.profile) if self._answering() else self.profile
        counts = {"samples": found.samples, "labelled": found.labelled, "holdout": found.holdout}
        return [Log("data", self.name, 0, counts)]

    def _answering(self) -> bool:
        return self.state.phase in ("working", "answered")

    def _announced(self) -> Profile:
        """What the status says; a device that cannot train has nothing to train on.

        An update must never hold more of a kind than that, so until one that is on its way has its receipt,
        data that were taken away still count.
        """
        if self.state.unable:
            return msgspec.structs.replace(self.profile, samples=0, labelled=0, holdout=0)
        if not self._answering():
            self._bound = self.profile
        return _most(self._bound, self.profile)

    def _follow(self, federation: Federation) -> list[Action]:
        """The same federation by other settings; what its cloud would not change is not believed."""
        if refused := live.refused(self.federation, federation):
            return [Log("unusable spec", federation.name, 0, {"why": "; ".join(map(str, refused))[:400]})]
        self.federation, self.method = federation, method(federation)
        return []

    @property
    def between_rounds(self) -> bool:
        """True while no task is being fetched or worked on."""
        return self.state.phase not in ("fetching", "working")

    def _take(self, task: TrainTask | EvaluateTask, now: float) -> list[Action]:
        state, kind = self.state, kind_of(task)
        if task.instance != state.instance:
            foreign = Log("foreign task", kind, task.round, {"instance": task.instance})
            return [foreign, Refresh(Channel("spec"))]
        if state.task is not None:
            if _order(task) < _order(state.task):
                return [Log("stale task", kind, task.round)]
            if task == state.task:  # known: it goes on, its answer is under way, or it was declined
                return [self._reply(state.phase != "declined", state.why)]
        refusal = ""
        if state.unable:
            refusal = state.unable
        elif isinstance(task, TrainTask) and not self.method.trained(task.round, *self._counts()):
            refusal = "no data"
        elif kind == "evaluate" and not self.profile.holdout:
            refusal = "no hold-out"
        abandoned: list[Action] = [StopWork(), Settle(ANSWER)]
        if isinstance(state.task, TrainTask):
            state.served = state.task.parts
        if isinstance(task, TrainTask):
            feedback.begin(state.feedback, task.parts, task.counted)
        state.task, state.received, state.began, state.why = task, 0, now, refusal
        state.phase, state.timers = "declined", {}
        if refusal:
            return [
                *abandoned,
                Log("declined", kind, task.round, {"why": refusal}),
                self._reply(False, refusal),
            ]
        state.phase, state.timers = "fetching", {"deadline": now + task.deadline_s}
        return [*abandoned, Log("task", kind, task.round), self._reply(True), *self._start_when_complete()]

    def _start_when_complete(self) -> list[Action]:
        if self.state.phase != "fetching" or self.wanted():
            return []
        self.state.phase = "working"
        return self._work()

    def _work(self) -> list[Action]:
        task = self.state.task
        assert task is not None
        job: Job
        if isinstance(task, TrainTask):
            judged = {term.role for term in self.method.judged_view.terms}
            previous = {role: ref.hash for role, ref in task.previous.items() if role in judged}
            here = previous if all(hash in self.blobs for hash in previous.values()) else {}
            job = TrainJob(
                id=self._job_id(),
                parts={role: task.parts[role].hash for role in self._roles(task)},
                previous=here,
                training=task.training,
                seed=(self.federation.seed, "device", self.name, task.round, "train"),
                round=task.round,
            )
        else:
            job = EvaluateJob(
                id=self._job_id(),
                candidates={
                    k: {role: ref.hash for role, ref in parts.items()} for k, parts in task.candidates.items()
                },
            )
        return [Work(job)]

    def _answer_update(self, event: Trained, now: float) -> list[Action]:
        task = self.state.task
        assert isinstance(task, TrainTask)
        encoding, schemas = self.federation.wire.encoding, gate.schemas(self.federation)
        try:
            parts, keeps = feedback.encode_update(
                self.state.feedback, encoding, task.round, task.parts, event.parts, self.blobs, schemas
            )
        except PartError as error:
            return self._give_up(str(error))
        update = DeviceUpdate(
            instance=self.state.instance,
            device=self.name,
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
            received=self.state.received,
            seconds=now - self.state.began,
        )
        detail = {
            "samples": event.samples,
            "loss": round(event.loss, 6),
            "holdout": event.holdout.count,
            "correct": event.holdout.correct,
            "seconds": round(now - self.state.began, 3),
        }
        return [
            *self._answered(),
            *keeps,
            Log("trained", "", task.round, detail),
            Send(self._channel("update"), update, ANSWER),
        ]

    def _answer_scores(self, event: Evaluated, now: float) -> list[Action]:
        task = self.state.task
        assert isinstance(task, EvaluateTask)
        scores = DeviceScores(
            instance=self.state.instance,
            device=self.name,
            round=task.round,
            scores=dict(event.scores),
            received=self.state.received,
            seconds=now - self.state.began,
        )
        return [
            *self._answered(),
            Log("evaluated", "", task.round),
            Send(self._channel("update"), scores, ANSWER),
        ]

    def _answered(self) -> list[Action]:
        self.state.phase, self.state.timers = "answered", {}
        return []

    def _receipt(self, receipt: Receipt) -> list[Action]:
        task = self.state.task
        if receipt.kind == "train" and receipt.accepted:  # a refusal is left for the next task to confirm
            feedback.settle(self.state.feedback, receipt.round, True)
        if (
            task is None
            or self.state.phase != "answered"
            or (receipt.kind, receipt.round) != (kind_of(task), task.round)
        ):
            return []
        self.state.phase = "done"
        detail = {"accepted": receipt.accepted, "why": receipt.reason}
        return [Settle(ANSWER), Log("receipt", receipt.kind, receipt.round, detail)]

    def _give_up(self, reason: str) -> list[Action]:
        task = self.state.task
        assert task is not None
        self.state.phase, self.state.timers, self.state.why = "declined", {}, reason[:400]
        return [
            StopWork(),
            Log("gave up", kind_of(task), task.round, {"why": reason}),
            self._reply(False, reason),
        ]

    def _leave_selection(self, reason: str) -> list[Action]:
        self.state.unable = reason[:400]
        return [Log("unable", "", 0, {"why": self.state.unable})]

    # --- what this device's data need ---

    def _counts(self) -> tuple[int, int]:
        """Samples to train on, and those of them without labels."""
        return self.profile.samples, self.profile.samples - self.profile.labelled

    def _roles(self, task: TrainTask) -> tuple[str, ...]:
        """The roles of a task that are fetched here: no others travel to this device."""
        needed = self.method.needed(task.round, *self._counts())
        return tuple(role for role in needed if role in task.parts)

    def _needs(self, task: TrainTask | EvaluateTask) -> list[PartRef]:
        """The parts without which the task cannot be done."""
        if isinstance(task, TrainTask):
            return [task.parts[role] for role in self._roles(task)]
        return [ref for parts in task.candidates.values() for ref in parts.values()]

    # --- small things ---

    def _reply(self, accepted: bool, reason: str = "") -> Send:
        task = self.state.task
        assert task is not None
        reply = TaskReply(kind=kind_of(task), round=task.round, accepted=accepted, reason=reason[:400])
        return Send(self._channel("reply"), reply)

    def _is_current(self, job: str) -> bool:
        return self.state.phase == "working" and job == self._job_id()

    def _job_id(self) -> str:
        task = self.state.task
        return "" if task is None else f"{kind_of(task)}-{task.round}"

    def _channel(self, leaf: Leaf) -> Channel:
        return Channel(leaf, self.gateway, self.name)


def _most(one: Profile, other: Profile) -> Profile:
    """The larger count of each kind."""
    labelled = max(one.labelled, other.labelled)
    unlabelled = max(one.samples - one.labelled, other.samples - other.labelled)
    return msgspec.structs.replace(
        other, samples=labelled + unlabelled, labelled=labelled, holdout=max(one.holdout, other.holdout)
    )


def _order(task: TrainTask | EvaluateTask) -> tuple[int, int]:
    """Tasks in time: the evaluation of a round comes after its training."""
    return (task.round, isinstance(task, EvaluateTask))
