r"""A device's state machine: take a task, fetch its parts, work, answer until the receipt comes.

    idle --task--> fetching --parts here--> working --done--> answered --receipt--> done
                                     \--no data, deadline, failure--> declined

A newer task replaces whatever goes on; an older or known one is answered again from what is stored. The
answer is sent again until its receipt, so it counts once whatever the link does.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import msgspec

from fedbac_edge import __version__
from fedbac_edge.methods import method
from fedbac_edge.protocol.cloud import restoration
from fedbac_edge.protocol.device import work
from fedbac_edge.protocol.device.state import ANSWER, Client, DeviceState, Profile, kind, most
from fedbac_edge.protocol.events import (
    Action,
    Channel,
    DataRead,
    Evaluated,
    Event,
    Fetched,
    Hello,
    JobFailed,
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
)
from fedbac_edge.protocol.gateway import feedback
from fedbac_edge.protocol.messages import (
    DeviceStatus,
    EvaluateTask,
    Missing,
    Receipt,
    Spec,
    TrainTask,
)
from fedbac_edge.settings import live
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import PartRef


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

    @property
    def _client(self) -> Client:
        return Client(
            self.gateway, self.name, self.federation, self.method, self.profile, self.state, self.blobs
        )

    # --- what the runner asks ---

    def timers(self) -> Mapping[str, float]:
        """The deadline of the current task."""
        return self.state.timers

    def wanted(self) -> Mapping[str, PartRef]:
        """Parts of the task that are not here yet."""
        if self.state.phase != "fetching" or self.state.task is None:
            return {}
        return {
            ref.hash: ref for ref in work.needs(self._client, self.state.task) if ref.hash not in self.blobs
        }

    def kept(self) -> Set[str]:
        """The task's parts, what was served before, and what an encoding could not express."""
        hashes = {ref.hash for ref in self.state.served.values()} | feedback.kept(self.state.feedback)
        if self.state.task is not None:
            hashes |= {ref.hash for ref in work.needs(self._client, self.state.task)}
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
        return Send(self._client.channel("status"), message, retain=True)

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
                return work.begin(self._client) if self.state.phase == "working" else []
            case Hello():
                return [self.status("online")]
            case Leaving() if not self.between_rounds and self.federation.eligibility == "online":
                # With a roster the task stays open: a device that comes back in time gives the same bits.
                return [work.reply(self._client, False, "the device has left")]
            case Received(message=TrainTask() | EvaluateTask() as task):
                return self._take(task, now)
            case Received(message=Spec(instance=instance)) if instance != self.state.instance:
                became = "restored" if restoration.is_kin(instance, self.state.instance) else "new federation"
                self.state = DeviceState(
                    instance=instance, session=self.state.session, unable=self.state.unable
                )
                return [StopWork(), Settle(ANSWER), Log(became, instance)]
            case Received(message=Spec() as spec) if spec.federation != self.federation:
                return self._follow(spec.federation)
            case Received(message=Receipt() as receipt):
                return self._receipt(receipt)
            case Fetched():
                self.state.received += event.size
                return self._start_when_complete()
            case Stalled(hashes=hashes, times=times) if self.state.task is not None:
                line = Log("stalled", kind(self.state.task), self.state.task.round, {"times": times})
                return [line, Send(self._client.channel("reply"), Missing(hashes=hashes[:64]))]
            case Trained() if work.is_current(self.state, event.job):
                return work.answer_update(self._client, event, now)
            case Evaluated() if work.is_current(self.state, event.job):
                return work.answer_scores(self._client, event, now)
            case JobFailed(reason=reason, final=final) if work.is_current(self.state, event.job):
                return [
                    *work.give_up(self._client, reason),
                    *(self._leave_selection(reason) if final else []),
                ]
            case TimerFired(name="deadline") if self.state.phase in ("fetching", "working"):
                return work.give_up(self._client, "the deadline passed")
        return []

    def _read(self, found: DataRead) -> list[Action]:
        """The data are others now; a task that is under way may have been answered from those before."""
        before = self.profile
        self.profile = msgspec.structs.replace(
            before, samples=found.samples, labelled=found.labelled, holdout=found.holdout
        )
        if self.profile == before:
            return []
        self._bound = most(self._bound, self.profile) if self._answering() else self.profile
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
        return most(self._bound, self.profile)

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
        state, name = self.state, kind(task)
        if task.instance != state.instance:
            foreign = Log("foreign task", name, task.round, {"instance": task.instance})
            return [foreign, Refresh(Channel("spec"))]
        if state.task is not None:
            if _order(task) < _order(state.task):
                return [Log("stale task", name, task.round)]
            if task == state.task:  # known: it goes on, its answer is under way, or it was declined
                return [work.reply(self._client, state.phase != "declined", state.why)]
        refusal = work.refusal(self._client, task)
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
                Log("declined", name, task.round, {"why": refusal}),
                work.reply(self._client, False, refusal),
            ]
        state.phase, state.timers = "fetching", {"deadline": now + task.deadline_s}
        return [
            *abandoned,
            Log("task", name, task.round),
            work.reply(self._client, True),
            *self._start_when_complete(),
        ]

    def _start_when_complete(self) -> list[Action]:
        if self.state.phase != "fetching" or self.wanted():
            return []
        self.state.phase = "working"
        return work.begin(self._client)

    def _receipt(self, receipt: Receipt) -> list[Action]:
        if receipt.kind == "train" and receipt.accepted:  # a refusal is left for the next task to confirm
            feedback.settle(self.state.feedback, receipt.round, True)
        if self.state.phase != "answered" or (receipt.kind, receipt.round) != self.state.opened:
            return []
        self.state.phase = "done"
        detail = {"accepted": receipt.accepted, "why": receipt.reason}
        return [Settle(ANSWER), Log("receipt", receipt.kind, receipt.round, detail)]

    def _leave_selection(self, reason: str) -> list[Action]:
        self.state.unable = reason[:400]
        return [Log("unable", "", 0, {"why": self.state.unable})]


def _order(task: TrainTask | EvaluateTask) -> tuple[int, int]:
    """Tasks in time: the evaluation of a round comes after its training."""
    return (task.round, isinstance(task, EvaluateTask))
