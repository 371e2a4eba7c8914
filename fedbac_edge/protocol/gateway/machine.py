"""A gateway's state machine: choose devices, collect their updates, average, report to the cloud.

    idle --task--> fetching --parts here--> training --all answered | deadline--> [scoring] --> reported
    idle --evaluation--> evaluating --all answered | deadline--> reported

Thompson sampling chooses (Fed-BAC, client selection). In a fleet the gateway owns no data: the reward of
round t is the paired change on the hold-outs of those who answer in round t+1. In the laboratory, with
`evaluation = "test"`, it is the change of the edge-aggregated model on the gateway's own evaluation data.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from fedbac_edge import __version__
from fedbac_edge.federation_file.reading import FederationError, check
from fedbac_edge.methods import method
from fedbac_edge.parts.part import PartError, digest
from fedbac_edge.protocol import averaging, collecting
from fedbac_edge.protocol.cloud import restoration
from fedbac_edge.protocol.collecting import task_key
from fedbac_edge.protocol.deadlines import share
from fedbac_edge.protocol.events import (
    Action,
    Channel,
    Evaluated,
    EvaluateJob,
    Event,
    Fetched,
    Hello,
    JobFailed,
    Keep,
    Log,
    Received,
    Refresh,
    Resend,
    Send,
    Settle,
    Stalled,
    Started,
    TimerFired,
    Work,
)
from fedbac_edge.protocol.gateway import feedback, gate, norm_gate, reports, roster, selection, tasks
from fedbac_edge.protocol.gateway.state import Answer, GatewayState
from fedbac_edge.protocol.messages import (
    DeviceScores,
    DeviceStatus,
    DeviceUpdate,
    EvaluateTask,
    GatewayEvaluation,
    GatewayScores,
    GatewayStatus,
    GatewayTask,
    GatewayUpdate,
    Missing,
    Receipt,
    Spec,
    Taken,
    TaskReply,
    TrainTask,
)
from fedbac_edge.settings import live
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import PartRef, Score

REPORT = "report"
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
        return {ref.hash: ref for ref in tasks.parts(self.state.task) if ref.hash not in self.blobs}

    def kept(self) -> Set[str]:
        """Base parts, accepted updates until the cloud's receipt, what an encoding could not express."""
        hashes = {hash for answer in self.state.answers.values() for hash in answer.parts.values()}
        hashes |= feedback.kept(self.state.feedback)
        if self.state.phase == "scoring":
            hashes |= set(self.state.averaged.values())
        task, federation = self.state.task, self.state.federation
        own = federation is not None and federation.evaluation == "test"
        if isinstance(task, GatewayTask) or (task is not None and own):
            hashes |= {ref.hash for ref in tasks.parts(task)}
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
        if event == TimerFired(collecting.DEADLINE):
            self.state.collecting = collecting.fired(self.state.collecting)
        match event:
            case Started():
                self.state.session += 1
                return self._work_again()
            case Hello(repeated=repeated):
                self.state.announced = roster.is_ready(self.name, self.state)
                lost = repeated and self.state.spec is None
                return [self.status("online"), *([Refresh(Channel("spec"))] if lost else [])]
            case Received(message=Spec() as spec):
                return self._specify(spec)
            case Received(message=DeviceStatus() as status):
                return self._presence(event.channel.device, status, now)
            case Received(message=GatewayTask() | GatewayEvaluation() as task):
                return self._take(task, now)
            case Received(message=TaskReply() as reply):
                return self._reply(event.channel.device, reply, now)
            case Received(message=DeviceUpdate() as update):
                return self._update(event.channel.device, update, event.size, now)
            case Received(message=DeviceScores() as scores):
                return self._device_scores(event.channel.device, scores, event.size, now)
            case Received(message=Receipt() as receipt):
                return self._receipt(receipt)
            case Fetched():
                self.state.received += event.size
                return self._go_on_when_complete(now)
            case Stalled(hashes=hashes, times=times) if self.state.task is not None:
                task = self.state.task
                line = Log("stalled", tasks.kind(task), task.round, {"times": times})
                return [line, Send(Channel("reply", self.name), Missing(hashes=hashes[:64]))]
            case Received(message=Missing() as missing):
                return [Send(Channel("reply", self.name), missing)]
            case Evaluated(scores=scores) if self.state.phase == "scoring" and event.job == self._job_id():
                return self._report_update(now, scores[0])
            case Evaluated(scores=scores) if self.state.phase == "evaluating" and event.job == self._job_id():
                return self._report_scores(dict(scores), 1, now)
            case JobFailed() if event.job == self._job_id():
                return self._job_failed(event.reason, now)
            case TimerFired(name=collecting.DEADLINE):
                return self._close(now)
            case TimerFired(name=name) if name.startswith(collecting.GONE):
                return self._give_up(name.removeprefix(collecting.GONE), now)
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
        # Another federation under this name: nothing of the old one counts, but who is there still is.
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

    def _readiness(self) -> list[Action]:
        if roster.is_ready(self.name, self.state) == self.state.announced:
            return []
        self.state.announced = roster.is_ready(self.name, self.state)
        return [self.status("online")]

    # --- a round ---

    def _take(self, task: GatewayTask | GatewayEvaluation, now: float) -> list[Action]:
        state, kind = self.state, tasks.kind(task)
        if state.spec is None or task.instance != state.spec.instance:
            return [Log("foreign task", kind, task.round), Refresh(Channel("spec"))]
        if state.task is not None:
            if tasks.order(task) < tasks.order(state.task):
                # Either it was overtaken on its way, or the cloud is an old copy of itself: it can tell.
                behind = Log("stale task", kind, task.round, {"newest": state.task.round})
                return [behind, self._taken(state.task, task.instance)]
            if task == state.task:
                return [self._taken(task)]
        dropped = [Settle(task_key(device)) for device in state.collecting.waiting]
        state.task, state.began = task, now
        state.collecting = collecting.begin(state.collecting, now + task.deadline_s)
        state.answers, state.scores = {}, {}
        state.received = state.sent = 0
        if isinstance(task, GatewayTask):
            feedback.begin(state.feedback, task.parts, task.counted)
        begun: list[Action] = [*dropped, Settle(REPORT), self._taken(task), Log("task", kind, task.round)]
        if isinstance(task, GatewayTask) or self._federation().evaluation == "test":
            state.phase = "fetching"
            return [*begun, *self._go_on_when_complete(now)]
        state.phase = "evaluating"
        return [*begun, *self._ask_scores(task, now)]

    def _go_on_when_complete(self, now: float) -> list[Action]:
        state, task = self.state, self.state.task
        if state.phase != "fetching" or self.wanted() or task is None:
            return []
        if isinstance(task, GatewayTask):
            return self._ask_updates(task, now)
        state.phase = "evaluating"
        return [Work(reports.own_evaluation(self._job_id(), task))]

    def _ask_updates(self, task: GatewayTask, now: float) -> list[Action]:
        state = self.state
        state.phase = "training"
        choice = selection.select(self.name, state, task.round)
        deadline = state.collecting.deadline
        state.collecting = collecting.ask(state.collecting, choice.chosen)
        detail = selection.explained(choice, state, task.round)
        remaining = 0.0 if deadline is None else max(0.0, deadline - now)
        sends = [
            Send(
                Channel("task", self.name, device),
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
        asked: list[Action] = [Log("selected", self.name, task.round, detail), *sends]
        return asked if state.collecting.waiting else [*asked, *self._close(now)]

    def _reply(self, device: str, reply: TaskReply, now: float) -> list[Action]:
        if not self._awaits(device, reply.kind, reply.round):
            return []
        settled: list[Action] = [Settle(task_key(device))]
        if reply.accepted:
            return settled
        self._collect(collecting.decline(self.state.collecting, device), now)
        return [*settled, Log("declined", device, reply.round, {"why": reply.reason})]

    def _give_up(self, device: str, now: float) -> list[Action]:
        """A device that vanished has not come back: its answer still counts if it comes before the close."""
        task = self.state.task
        self._collect(collecting.decline(self.state.collecting, device), now)
        return [Settle(task_key(device)), Log("gone", device, 0 if task is None else task.round)]

    def _awaits(self, device: str, kind: str, round: int) -> bool:
        """True while an answer of this kind is waited for from `device`."""
        task = self.state.task
        opened = task is not None and (kind, round) == (tasks.kind(task), task.round)
        return opened and device in self.state.collecting.waiting

    def _collect(self, collected: collecting.Collecting, now: float) -> None:
        self.state.collecting = collecting.close_when_done(collected, now)

    def _update(self, device: str, update: DeviceUpdate, size: int, now: float) -> list[Action]:
        state = self.state
        if collecting.has_counted(state.collecting, "train", device, tasks.counted(update)):
            return [self._device_receipt(device, "train", update.round, True)]  # once, and said again
        if self._is_held(device, update):
            return []
        state.sent += size
        try:
            steps = gate.admit_device_update(state, device, update, self.blobs)
        except gate.Refused as refusal:
            return self._refuse(device, "train", update.round, str(refusal), now)
        suspect = self._federation().deadlines.norm_gate and norm_gate.is_suspect(state.norms, steps)
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
            self._collect(collecting.hold(state.collecting, device), now)
            return [*settled, Log("held", device, update.round, state.answers[device].told)]
        norm_gate.admit(state, device, steps)
        return [*settled, *self._accept(device, update.round, now)]

    def _accept(self, device: str, round: int, now: float) -> list[Action]:
        """The update of `device` that is here counts."""
        state, task, answer = self.state, self.state.task, self.state.answers[device]
        assert task is not None, "updates are of an open task"
        self._collect(collecting.count(state.collecting, "train", device, (task.instance, round)), now)
        state.last_update = {**state.last_update, device: round}
        told = {**answer.told, **({"shortened": answer.shortened} if answer.shortened else {})}
        return [self._device_receipt(device, "train", round, True), Log("accepted", device, round, told)]

    def _is_held(self, device: str, update: DeviceUpdate) -> bool:
        """True for an update that came before and is judged when the round closes."""
        state, task = self.state, self.state.task
        if state.phase != "training" or task is None or device not in state.answers:
            return False
        return (update.instance, update.round) == (task.instance, task.round)

    def _judge(self, task: GatewayTask, now: float) -> list[Action]:
        """The round closes: which of the long steps count."""
        state, federation = self.state, self._federation()
        needed = max(1, federation.deadlines.min_updates)
        groups = method(federation).together()
        counted, refused = norm_gate.close(state, state.answers, groups, needed)
        judged: list[Action] = []
        for device, why in refused.items():
            state.collecting = collecting.refuse(state.collecting, device, why)
            judged += [
                self._device_receipt(device, "train", task.round, False, why),
                Log("refused", device, task.round, {"why": why}),
            ]
        return [*judged, *(action for device in counted for action in self._accept(device, task.round, now))]

    def _refuse(self, device: str, kind: str, round: int, reason: str, now: float) -> list[Action]:
        answer: list[Action] = [
            self._device_receipt(device, kind, round, False, reason),
            Log("refused", device, round, {"why": reason}),
        ]
        if not self._awaits(device, kind, round):
            return answer
        self._collect(collecting.refuse(self.state.collecting, device, reason), now)
        return [*answer, Settle(task_key(device))]

    def _close(self, now: float) -> list[Action]:
        """The round ends here, by the last answer or by the deadline."""
        state, task = self.state, self.state.task
        if isinstance(task, GatewayEvaluation) and state.phase in ("fetching", "evaluating"):
            total = reports.summed(state.scores)
            return self._report_scores(total, len(state.scores), now)
        if not isinstance(task, GatewayTask) or state.phase not in ("fetching", "training"):
            return []
        late = [*collecting.let_go(state.collecting, task.round), *self._judge(task, now)]
        state.collecting = collecting.end(state.collecting)
        if self._federation().evaluation == "test" and not self._void():
            state.phase = "scoring"
            return [*late, *self._score_again()]
        return [*late, *self._report_update(now, None)]

    def _averages(self) -> dict[str, bytes]:
        """Role -> canonical bytes of the average, by the federation's rule; a scored one is at hand."""
        task, state = self.state.task, self.state
        assert isinstance(task, GatewayTask)
        if state.phase == "scoring" and state.averaged:
            return {role: self.blobs[hash] for role, hash in state.averaged.items()}
        return averaging.edge_averages(state.answers, task.parts, self.blobs, self._federation())

    def _void(self) -> str:
        """Why the answers of this round make no average of any role; "" when they do."""
        state, federation = self.state, self._federation()
        needed = max(1, federation.deadlines.min_updates)
        if len(state.answers) < needed:
            return f"{len(state.answers)} updates of {len(state.collecting.asked)} asked, {needed} needed"
        kept = averaging.unprotected(state.answers, federation)
        trained = {role for answer in state.answers.values() for role in answer.parts}
        return min(kept.values()) if len(kept) == len(trained) else ""

    def _report_update(self, now: float, own: Score | None) -> list[Action]:
        state, task, federation = self.state, self.state.task, self._federation()
        assert isinstance(task, GatewayTask)
        void, parts, keeps = self._void(), dict[str, bytes](), list[Keep]()
        encoding, schemas = federation.wire.encoding, gate.schemas(federation)
        if not void:
            try:
                parts, keeps = feedback.encode_update(
                    state.feedback, encoding, task.round, task.parts, self._averages(), self.blobs, schemas
                )
            except PartError as error:
                void = str(error)
        rewarded: list[Log] = []
        if own is not None:
            rewarded = selection.reward_own(self.name, state, task, own)
        elif federation.evaluation == "holdout":
            rewarded = selection.reward_paired(self.name, state, task)
        if not void:
            state.unrewarded, state.unrewarded_round = tuple(sorted(state.answers)), task.round
        update = reports.update(self.name, state, parts, encoding, void, now)
        state.phase = "reported"
        unprotected = {} if void else averaging.unprotected(state.answers, federation)
        kept = [Log("kept", role, task.round, {"why": why}) for role, why in unprotected.items()]
        closed = Log("closed", self.name, task.round, reports.counts(state, update))
        return [*rewarded, *keeps, *kept, closed, self._report(update)]

    # --- evaluation ---

    def _ask_scores(self, task: GatewayEvaluation, now: float) -> list[Action]:
        state = self.state
        able = tuple(
            name
            for name in roster.names(self.name, self.state)
            if roster.member(self.state, name).holdout and roster.is_reachable(self.state, name)
        )
        self._collect(collecting.ask(state.collecting, able), now)
        message = EvaluateTask(
            instance=task.instance,
            round=task.round,
            candidates=task.candidates,
            deadline_s=share(task.deadline_s),
        )
        return [Send(Channel("task", self.name, device), message, task_key(device)) for device in able]

    def _device_scores(self, device: str, scores: DeviceScores, size: int, now: float) -> list[Action]:
        state = self.state
        if collecting.has_counted(state.collecting, "evaluate", device, tasks.counted(scores)):
            return [self._device_receipt(device, "evaluate", scores.round, True)]
        state.sent += size
        try:
            gate.admit_device_scores(state, device, scores)
        except gate.Refused as refusal:
            return self._refuse(device, "evaluate", scores.round, str(refusal), now)
        state.scores[device] = scores.scores
        state.received += scores.received
        key = tasks.counted(scores)
        self._collect(collecting.count(state.collecting, "evaluate", device, key), now)
        return [Settle(task_key(device)), self._device_receipt(device, "evaluate", scores.round, True)]

    def _report_scores(self, scores: dict[int, Score], answered: int, now: float) -> list[Action]:
        state, task = self.state, self.state.task
        assert isinstance(task, GatewayEvaluation)
        late = collecting.let_go(state.collecting, task.round)
        report = reports.scores(state, scores, answered, now)
        state.phase, state.collecting = "reported", collecting.end(state.collecting)
        return [
            *late,
            Log("scored", self.name, task.round, {"answered": answered}),
            self._report(report),
        ]

    # --- jobs of the laboratory ---

    def _work_again(self) -> list[Action]:
        """After a restart: the job that went with the process."""
        task, federation = self.state.task, self.state.federation
        if self.state.phase == "scoring":
            return self._score_again()
        own = federation is not None and federation.evaluation == "test"
        if self.state.phase == "evaluating" and own and isinstance(task, GatewayEvaluation):
            return [Work(reports.own_evaluation(self._job_id(), task))]
        return []

    def _score_again(self) -> list[Action]:
        """Score the edge-aggregated model, as it would be served, on the gateway's own evaluation data."""
        task, described = self.state.task, method(self._federation())
        assert isinstance(task, GatewayTask)
        self.state.averaged = {}
        averages = self._averages()
        self.state.averaged = {role: digest(data) for role, data in averages.items()}
        keeps: list[Action] = [Keep(self.state.averaged[role], data) for role, data in averages.items()]
        newest = {role: ref.hash for role, ref in task.parts.items()} | self.state.averaged
        served = {
            term.role: task.parts[term.role].hash if term.generation else newest[term.role]
            for term in described.served_view.terms
        }
        return [*keeps, Work(EvaluateJob(id=self._job_id(), candidates={0: served}))]

    def _job_failed(self, reason: str, now: float) -> list[Action]:
        failed: list[Action] = [Log("job failed", self.name, 0, {"why": reason})]
        if self.state.phase == "scoring":
            return [*failed, *self._report_update(now, None)]
        return [*failed, *self._report_scores({}, 0, now)] if self.state.phase == "evaluating" else failed

    # --- answers and small things ---

    def _receipt(self, receipt: Receipt) -> list[Action]:
        state, task = self.state, self.state.task
        if receipt.kind == "train" and receipt.accepted:  # a refusal is left for the next task to confirm
            feedback.settle(state.feedback, receipt.round, True)
        if (
            task is None
            or state.phase != "reported"
            or (receipt.kind, receipt.round) != (tasks.kind(task), task.round)
        ):
            return []
        state.phase, state.answers, state.scores = "idle", {}, {}
        detail: dict[str, Any] = {"accepted": receipt.accepted, "why": receipt.reason}
        return [Settle(REPORT), Log("receipt", receipt.kind, receipt.round, detail)]

    def _report(self, report: GatewayUpdate | GatewayScores) -> Send:
        return Send(Channel("update", self.name), report, REPORT)

    def _taken(self, task: GatewayTask | GatewayEvaluation, instance: str | None = None) -> Send:
        taken = Taken(kind=tasks.kind(task), round=task.round, instance=instance)
        return Send(Channel("reply", self.name), taken)

    def _device_receipt(self, device: str, kind: str, round: int, accepted: bool, reason: str = "") -> Send:
        receipt = Receipt(kind=kind, round=round, accepted=accepted, reason=reason[:400])
        return Send(Channel("receipt", self.name, device), receipt)

    def _federation(self) -> Federation:
        federation = self.state.federation
        assert federation is not None, "no task is taken before the specification has come"
        return federation

    def _job_id(self) -> str:
        task = self.state.task
        return "" if task is None else f"{self.state.phase}-{task.round}"
