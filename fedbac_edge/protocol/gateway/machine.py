"""A gateway's state machine: choose devices, collect their updates, average, report to the cloud.

    idle --task--> fetching --parts here--> training --all answered | deadline--> [scoring] --> reported
    idle --evaluation--> evaluating --all answered | deadline--> reported

Thompson sampling chooses (Fed-BAC, client selection). In a fleet the gateway owns no data: the reward of
round t is the paired change on the hold-outs of devices that answer in round t+1. In the laboratory, with
`evaluation = "test"`, it is the change of the edge-aggregated model on the gateway's own evaluation data.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from fedbac_edge import __version__
from fedbac_edge.federation_file.reading import FederationError, check
from fedbac_edge.protocol import answers, collecting
from fedbac_edge.protocol.cloud import restoration
from fedbac_edge.protocol.collecting import task_key
from fedbac_edge.protocol.events import (
    Action,
    Channel,
    Evaluated,
    Event,
    Fetched,
    Hello,
    JobFailed,
    Log,
    Received,
    Refresh,
    Resend,
    Send,
    Settle,
    Stalled,
    Started,
    TimerFired,
)
from fedbac_edge.protocol.gateway import evaluation, feedback, norm_gate, own_data, roster, rounds
from fedbac_edge.protocol.gateway.state import REPORT, Edge, GatewayState, kind
from fedbac_edge.protocol.messages import (
    DeviceScores,
    DeviceStatus,
    DeviceUpdate,
    Forgotten,
    GatewayEvaluation,
    GatewayStatus,
    GatewayTask,
    Missing,
    Receipt,
    Spec,
    Taken,
    TaskReply,
)
from fedbac_edge.settings import live
from fedbac_edge.settings.federation import Federation
from fedbac_edge.settings.round_rules import rules_of
from fedbac_edge.vocabulary.terms import PartRef

GRACE_S = 30.0
"""So long a device that vanished in an open fleet is waited for: its link or its process may come back."""


class Gateway:
    """The machine; `blobs` is the store's view by content hash."""

    def __init__(self, name: str, blobs: Mapping[str, bytes], state: GatewayState | None = None) -> None:
        self.name, self.blobs = name, blobs
        self.state = state or GatewayState()

    # --- what the runner asks ---

    def timers(self) -> Mapping[str, float]:
        """Deadlines."""
        return collecting.timers(self.state.collecting)

    def wanted(self) -> Mapping[str, PartRef]:
        """The parts that updates are held against, or those to score where the site does it itself."""
        if self.state.phase != "fetching" or self.state.task is None:
            return {}
        return {ref.hash: ref for ref in _parts(self.state.task) if ref.hash not in self.blobs}

    def kept(self) -> Set[str]:
        """Base parts, accepted updates until the cloud's receipt, what an encoding could not express."""
        hashes = {hash for answer in self.state.answers.values() for hash in answer.parts.values()}
        hashes |= feedback.kept(self.state.feedback)
        if self.state.phase == "scoring":
            hashes |= set(self.state.averaged.values())
        task = self.state.task
        if isinstance(task, GatewayTask) or (task is not None and own_data.is_used(self.state)):
            hashes |= {ref.hash for ref in _parts(task)}
        return hashes

    def status(self, state: str) -> Send:
        """The birth message, and with "offline" the will."""
        members = [roster.member(self.state, name) for name in roster.names(self.name, self.state)]
        message = GatewayStatus(
            state=state,
            session=self.state.session,
            ready=roster.is_ready(self.name, self.state),
            devices=len(members),
            online=sum(member.online for member in members),
            round=0 if self.state.task is None else self.state.task.round,
            software=__version__,
            refused=dict(norm_gate.again_and_again(self.state)),
        )
        return Send(Channel("status", self.name), message, retain=True)

    # --- events ---

    def handle(self, event: Event, now: float) -> list[Action]:
        """One event in, actions out; see the picture on top."""
        edge = Edge(self.name, self.state, self.blobs)
        if event == TimerFired(collecting.DEADLINE):
            self.state.collecting = collecting.fired(self.state.collecting)
        match event:
            case Started():
                self.state.session += 1
                return own_data.work_again(edge)
            case Hello(repeated=repeated):
                self.state.announced = roster.is_ready(self.name, self.state)
                lost = repeated and self.state.spec is None
                return [self.status("online"), *([Refresh(Channel("spec"))] if lost else [])]
            case Received(message=Spec() as spec):
                return self._specify(spec)
            case Received(message=DeviceStatus() as status):
                return self._presence(event.channel.device, status, now)
            case Received(message=Forgotten()):
                return self._forget(event.channel.device, now)
            case Received(message=GatewayTask() | GatewayEvaluation() as task):
                return self._take(task, now)
            case Received(message=TaskReply() as reply):
                return self._reply(event.channel.device, reply, now)
            case Received(message=DeviceUpdate() as update):
                return rounds.take_update(edge, event.channel.device, update, event.size, now)
            case Received(message=DeviceScores() as scores):
                return evaluation.take_scores(edge, event.channel.device, scores, event.size, now)
            case Received(message=Receipt() as receipt):
                return self._receipt(receipt)
            case Fetched():
                self.state.received += event.size
                return self._go_on_when_complete(now)
            case Stalled(hashes=hashes, times=times) if self.state.task is not None:
                task = self.state.task
                line = Log("stalled", kind(task), task.round, {"times": times})
                return [line, Send(Channel("reply", self.name), Missing(hashes=hashes[:64]))]
            case Received(message=Missing() as missing):
                return [Send(Channel("reply", self.name), missing)]
            case Evaluated():
                return own_data.take_scores(edge, event, now)
            case JobFailed():
                return own_data.take_failure(edge, event, now)
            case TimerFired(name=collecting.DEADLINE):
                return self._close(now)
            case TimerFired(name=name) if name.startswith(collecting.GONE):
                opened = 0 if self.state.task is None else self.state.task.round
                return answers.give_up(self.state, name.removeprefix(collecting.GONE), opened, now)
        return []

    # --- members ---

    def _specify(self, spec: Spec) -> list[Action]:
        state = self.state
        try:
            check(spec.federation)
        except FederationError as error:
            # Newer software may know methods and models that this one does not: better nothing than half.
            return [Log("unusable spec", spec.instance, 0, {"why": str(error)})]
        if state.spec is not None and state.spec.instance == spec.instance:
            return self._follow(state.spec.federation, spec)
        # Another federation under this name: nothing of the old one counts, but devices stay online.
        restored = state.spec is not None and restoration.is_kin(spec.instance, state.spec.instance)
        known = state.posteriors if restored else {}
        self.state = GatewayState(session=state.session, spec=spec, members=state.members, posteriors=known)
        return [
            Settle(REPORT),
            *(Settle(task_key(name)) for name in state.collecting.asked),
            Log("restored" if restored else "spec", spec.instance),
            *self._strangers(),
            *self._readiness(),
        ]

    def _follow(self, before: Federation, spec: Spec) -> list[Action]:
        """The same federation, perhaps by other settings; what its cloud would not change is not believed."""
        changed = live.changes(before, spec.federation)
        if refused := [str(change) for change in changed if not change.is_live]:
            return [Log("unusable spec", spec.instance, 0, {"why": f"it changes {'; '.join(refused)}"[:400]})]
        self.state.spec = spec
        lines = [
            Log(
                "setting",
                each.setting,
                0 if self.state.task is None else self.state.task.round,
                {"before": each.before, "after": each.after},
            )
            for each in changed
        ]
        return [*lines, *self._strangers(), *self._readiness()] if changed else []

    def _strangers(self) -> list[Action]:
        """A line for each device that is here and that the new list leaves out."""
        here = (name for name, member in sorted(self.state.members.items()) if member.online)
        return [
            Log("unlisted", name, 0) for name in here if not roster.is_listed(self.name, self.state, name)
        ]

    def _presence(self, device: str, status: DeviceStatus, now: float) -> list[Action]:
        restarted = roster.hear(self.state, device, status)
        if self.state.federation is not None and self.state.federation.eligibility == "online":
            online = roster.member(self.state, device).online
            self.state.collecting = collecting.seen(self.state.collecting, device, online, now + GRACE_S)
        again: list[Action] = (
            [Resend(task_key(device))] if restarted and device in self.state.collecting.waiting else []
        )
        if restarted and not roster.is_listed(self.name, self.state, device):
            return [Log("unlisted", device, 0)]
        return [*again, *self._readiness()]

    def _forget(self, device: str, now: float) -> list[Action]:
        """It is gone for good; one of this name that comes later is a new one."""
        state, dropped = self.state, []
        if not roster.forget(state, device):
            return []
        if device in state.collecting.waiting:
            answers.collect(state, collecting.decline(state.collecting, device), now)
            dropped = [Settle(task_key(device))]
        opened = 0 if state.task is None else state.task.round
        return [*dropped, Log("forgotten", device, opened), *self._readiness()]

    def _readiness(self) -> list[Action]:
        if roster.is_ready(self.name, self.state) == self.state.announced:
            return []
        self.state.announced = roster.is_ready(self.name, self.state)
        return [self.status("online")]

    # --- the cloud's task ---

    def _take(self, task: GatewayTask | GatewayEvaluation, now: float) -> list[Action]:
        state, name = self.state, kind(task)
        if state.spec is None or task.instance != state.spec.instance:
            return [Log("foreign task", name, task.round), Refresh(Channel("spec"))]
        if state.task is not None:
            if _order(task) < _order(state.task):
                # Either it was overtaken on its way, or the cloud is an old copy of itself: it can tell.
                behind = Log("stale task", name, task.round, {"newest": state.task.round})
                return [behind, self._taken(state.task, task.instance)]
            if task == state.task:
                return [self._taken(task)]
        dropped = [Settle(task_key(device)) for device in state.collecting.waiting]
        state.task, state.began, state.rules = task, now, rules_of(state.spec.federation)
        state.collecting = collecting.begin(state.collecting, now + task.deadline_s)
        state.answers, state.scores = {}, {}
        state.received = state.sent = 0
        if isinstance(task, GatewayTask):
            feedback.begin(state.feedback, task.parts, task.counted)
        begun: list[Action] = [*dropped, Settle(REPORT), self._taken(task), Log("task", name, task.round)]
        if isinstance(task, GatewayTask) or own_data.is_used(state):
            state.phase = "fetching"
            return [*begun, *self._go_on_when_complete(now)]
        state.phase = "evaluating"
        return [*begun, *evaluation.ask(Edge(self.name, state, self.blobs), task, now)]

    def _go_on_when_complete(self, now: float) -> list[Action]:
        state, task = self.state, self.state.task
        if state.phase != "fetching" or self.wanted() or task is None:
            return []
        edge = Edge(self.name, state, self.blobs)
        if isinstance(task, GatewayTask):
            asked = rounds.ask(edge, task, now)
            return asked if state.collecting.waiting else [*asked, *self._close(now)]
        state.phase = "evaluating"
        return own_data.score_candidates(edge, task)

    def _reply(self, device: str, reply: TaskReply, now: float) -> list[Action]:
        if not answers.awaits(self.state, device, reply.kind, reply.round):
            return []
        settled: list[Action] = [Settle(task_key(device))]
        if reply.accepted:
            return settled
        answers.collect(self.state, collecting.decline(self.state.collecting, device), now)
        return [*settled, Log("declined", device, reply.round, {"why": reply.reason})]

    def _close(self, now: float) -> list[Action]:
        """The round ends here, by the last answer or by the deadline."""
        state, task = self.state, self.state.task
        edge = Edge(self.name, state, self.blobs)
        if isinstance(task, GatewayEvaluation) and state.phase in ("fetching", "evaluating"):
            return evaluation.report(edge, evaluation.summed(state.scores), len(state.scores), now)
        if not isinstance(task, GatewayTask) or state.phase not in ("fetching", "training"):
            return []
        ended = rounds.end(edge, task, now)
        if own_data.is_used(state) and not rounds.void(edge):
            state.phase = "scoring"
            return [*ended, *own_data.score_average(edge)]
        return [*ended, *rounds.report(edge, None, now)]

    def _receipt(self, receipt: Receipt) -> list[Action]:
        state, task = self.state, self.state.task
        if receipt.kind == "train" and receipt.accepted:  # a refusal is left for the next task to confirm
            feedback.settle(state.feedback, receipt.round, True)
        if task is None or state.phase != "reported" or (receipt.kind, receipt.round) != state.opened:
            return []
        state.phase, state.answers, state.scores = "idle", {}, {}
        detail = {"accepted": receipt.accepted, "why": receipt.reason}
        return [Settle(REPORT), Log("receipt", receipt.kind, receipt.round, detail)]

    def _taken(self, task: GatewayTask | GatewayEvaluation, instance: str | None = None) -> Send:
        return Send(Channel("reply", self.name), Taken(kind=kind(task), round=task.round, instance=instance))


def _order(task: GatewayTask | GatewayEvaluation) -> tuple[int, int]:
    """Tasks in time: the evaluation of a round comes after its training."""
    return (task.round, isinstance(task, GatewayEvaluation))


def _parts(task: GatewayTask | GatewayEvaluation) -> list[PartRef]:
    """The parts that a task names."""
    if isinstance(task, GatewayTask):
        return list(task.parts.values())
    return [ref for candidate in task.candidates.values() for ref in candidate.values()]
