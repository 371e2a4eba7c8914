"""A gateway's state machine: choose devices, collect their updates, average, report to the cloud.

    idle --task--> fetching --parts here--> training --all answered | deadline--> [scoring] --> reported
    idle --evaluation--> evaluating --all answered | deadline--> reported

Thompson sampling chooses (Fed-BAC, client selection). In a fleet the gateway owns no data: the reward of
round t is the paired change on the hold-outs of those who answer in round t+1. In the laboratory, with
`evaluation = "test"`, it is the change of the edge-aggregated model on the gateway's own evaluation data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any, Literal

import msgspec

from fedbac_edge import __version__, aggregation
from fedbac_edge.bandits import thompson
from fedbac_edge.federation import Federation
from fedbac_edge.models.catalog import architecture
from fedbac_edge.parts import Part, Schema, digest, pack, unpack
from fedbac_edge.protocol import gate
from fedbac_edge.protocol.deadlines import share
from fedbac_edge.protocol.engine import (
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
    Resend,
    Send,
    Settle,
    Started,
    TimerFired,
    Work,
)
from fedbac_edge.protocol.messages import (
    NO_SCORE,
    DeviceScores,
    DeviceStatus,
    DeviceUpdate,
    EvaluateTask,
    GatewayEvaluation,
    GatewayScores,
    GatewayStatus,
    GatewayTask,
    GatewayUpdate,
    PartRef,
    Receipt,
    Score,
    Spec,
    Taken,
    TaskReply,
    Traffic,
    TrainTask,
)
from fedbac_edge.randomness import generator

REPORT = "report"
Phase = Literal["idle", "fetching", "training", "scoring", "evaluating", "reported"]


class Member(msgspec.Struct, kw_only=True):
    """What a device last said about itself."""

    online: bool = False
    session: int = 0
    samples: int = 0
    holdout: int = 0
    seen: bool = False


class Answer(msgspec.Struct, kw_only=True):
    """An accepted update: where its parts are, and what it counts."""

    parts: dict[str, str]
    samples: int
    holdout: Score
    previous: Score | None
    received: int
    sent: int


class GatewayState(msgspec.Struct, kw_only=True):
    """All that a gateway remembers between events."""

    session: int = 0
    spec: Spec | None = None
    members: dict[str, Member] = {}
    posteriors: dict[str, thompson.Posterior] = {}
    phase: Phase = "idle"
    task: GatewayTask | GatewayEvaluation | None = None
    began: float = 0.0
    asked: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    answers: dict[str, Answer] = {}
    scores: dict[str, dict[int, Score]] = {}
    refused: dict[str, str] = {}
    received: int = 0
    """Bytes of models: fetched by this gateway and, as they report, by its devices."""
    sent: int = 0
    """Bytes of updates from devices, refused ones included."""
    norms: list[float] = []
    unrewarded: tuple[str, ...] = ()
    """Who took part in the last round and has no reward yet."""
    unrewarded_round: int = 0
    reference: float | None = None
    """Laboratory: accuracy of the last edge-aggregated model."""
    announced: bool = False
    """The readiness that the cloud was told last."""
    timers: dict[str, float] = {}


class Gateway:
    """The machine; `blobs` is the store's view by content hash."""

    def __init__(self, name: str, blobs: Mapping[str, bytes], state: GatewayState | None = None) -> None:
        self.name, self.blobs = name, blobs
        self.state = state or GatewayState()

    # --- what the runner asks ---

    def timers(self) -> Mapping[str, float]:
        """Deadlines."""
        return self.state.timers

    def wanted(self) -> Mapping[str, PartRef]:
        """The round's parts: updates are held against the base that they started from."""
        if self.state.phase != "fetching" or not isinstance(self.state.task, GatewayTask):
            return {}
        return {ref.hash: ref for ref in self.state.task.parts.values() if ref.hash not in self.blobs}

    def kept(self) -> Set[str]:
        """Base parts and accepted updates, until the cloud's receipt."""
        hashes = {hash for answer in self.state.answers.values() for hash in answer.parts.values()}
        if isinstance(self.state.task, GatewayTask):
            hashes |= {ref.hash for ref in self.state.task.parts.values()}
        return hashes

    def status(self, state: str) -> Send:
        """The birth message, and with "offline" the will."""
        members = self.state.members.values()
        message = GatewayStatus(
            state=state,
            session=self.state.session,
            ready=self._ready(),
            devices=len(members),
            online=sum(member.online for member in members),
            round=0 if self.state.task is None else self.state.task.round,
            software=__version__,
        )
        return Send(Channel("status", self.name), message, retain=True)

    # --- events ---

    def handle(self, event: Event, now: float) -> list[Action]:
        """One event in, actions out; see the picture on top."""
        match event:
            case Started():
                self.state.session += 1
                return self._work_again()
            case Hello():
                self.state.announced = self._ready()
                return [self.status("online")]
            case Received(message=Spec() as spec):
                return self._specify(spec)
            case Received(message=DeviceStatus() as status):
                return self._presence(event.channel.device, status)
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
                return self._ask_when_complete(now)
            case Evaluated(scores=scores) if self.state.phase == "scoring" and event.job == self._job_id():
                return self._report_update(now, scores[0])
            case Evaluated(scores=scores) if self.state.phase == "evaluating" and event.job == self._job_id():
                return self._report_scores(dict(scores), 1, now)
            case JobFailed() if event.job == self._job_id():
                return self._job_failed(event.reason, now)
            case TimerFired(name="deadline"):
                return self._close(now)
        return []

    # --- members ---

    def _specify(self, spec: Spec) -> list[Action]:
        state = self.state
        if state.spec is not None and state.spec.instance == spec.instance:
            state.spec = spec
            return []
        # Another federation under this name: nothing of the old one counts, but who is there still is.
        self.state = GatewayState(session=state.session, spec=spec, members=state.members)
        return [
            Settle(REPORT),
            *(Settle(_task_key(name)) for name in state.asked),
            Log("spec", spec.instance),
            *self._readiness(),
        ]

    def _presence(self, device: str, status: DeviceStatus) -> list[Action]:
        member = self.state.members.setdefault(device, Member())
        if status.session < member.session:
            return []  # a late will of an earlier session
        came = status.state != "offline"
        restarted = came and (not member.online or status.session > member.session)
        member.online, member.session, member.seen = came, status.session, True
        if came:
            member.samples, member.holdout = status.samples, status.holdout
        again: list[Action] = (
            [Resend(_task_key(device))] if restarted and device in self.state.waiting else []
        )
        return [*again, *self._readiness()]

    def _roster(self) -> tuple[str, ...]:
        """The members in name order: those of the federation's file, or whoever has joined."""
        federation = self._federation()
        if federation is None:
            return ()
        if federation.eligibility == "roster":
            return tuple(sorted(federation.gateways.get(self.name, ())))
        listed = federation.gateways.get(self.name, ())
        return tuple(sorted(set(listed) | set(self.state.members)))

    def _member(self, device: str) -> Member:
        return self.state.members.get(device, Member())

    def _reachable(self, device: str) -> bool:
        federation = self._federation()
        assert federation is not None
        return federation.eligibility == "roster" or self._member(device).online

    def _ready(self) -> bool:
        federation, roster = self._federation(), self._roster()
        if federation is None or not roster:
            return False
        if federation.eligibility == "roster":
            return all(self._member(device).seen for device in roster)
        return any(self._member(device).online and self._member(device).samples for device in roster)

    def _readiness(self) -> list[Action]:
        if self._ready() == self.state.announced:
            return []
        self.state.announced = self._ready()
        return [self.status("online")]

    # --- a round ---

    def _take(self, task: GatewayTask | GatewayEvaluation, now: float) -> list[Action]:
        state, kind = self.state, _kind(task)
        if state.spec is None or task.instance != state.spec.instance:
            return [Log("foreign task", kind, task.round)]
        if state.task is not None:
            if _order(task) < _order(state.task):
                return [Log("stale task", kind, task.round)]
            if task == state.task:
                return [self._taken(task)]
        dropped = [Settle(_task_key(device)) for device in state.waiting]
        state.task, state.began = task, now
        state.asked = state.waiting = ()
        state.answers, state.scores, state.refused = {}, {}, {}
        state.received = state.sent = 0
        state.timers = {"deadline": now + task.deadline_s}
        begun: list[Action] = [*dropped, Settle(REPORT), self._taken(task), Log("task", kind, task.round)]
        if isinstance(task, GatewayTask):
            state.phase = "fetching"
            return [*begun, *self._ask_when_complete(now)]
        state.phase = "evaluating"
        return [*begun, *self._ask_scores(task, now)]

    def _ask_when_complete(self, now: float) -> list[Action]:
        state, task = self.state, self.state.task
        if state.phase != "fetching" or self.wanted() or not isinstance(task, GatewayTask):
            return []
        state.phase = "training"
        selection = self._select(task.round)
        state.asked = state.waiting = selection.chosen
        detail = {
            "asked": list(selection.chosen),
            "draws": selection.draws,
            "posteriors": {name: [p.a, p.b] for name, p in sorted(state.posteriors.items())},
            "warm_up": self._warm_up(task.round),
        }
        remaining = max(0.0, state.timers["deadline"] - now)
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
                ),
                _task_key(device),
            )
            for device in selection.chosen
        ]
        asked: list[Action] = [Log("selected", self.name, task.round, detail), *sends]
        return asked if state.waiting else [*asked, *self._close(now)]

    def _warm_up(self, round: int) -> bool:
        federation = self._federation()
        assert federation is not None
        return federation.selection.method == "random" or round <= federation.selection.warm_up

    def _select(self, round: int) -> thompson.Selection:
        federation, roster = self._federation(), self._roster()
        assert federation is not None
        self.state.posteriors = {
            name: self.state.posteriors.get(name, thompson.Posterior()) for name in roster
        }
        able = [name for name in roster if self._member(name).samples and self._reachable(name)]
        count = thompson.participants(federation.selection.participation, len(able))
        rng = generator(federation.seed, "gateway", self.name, round, "select")
        return thompson.select(self.state.posteriors, able, count, rng, self._warm_up(round))

    def _reply(self, device: str, reply: TaskReply, now: float) -> list[Action]:
        state, task = self.state, self.state.task
        if (
            task is None
            or (reply.kind, reply.round) != (_kind(task), task.round)
            or device not in state.waiting
        ):
            return []
        settled: list[Action] = [Settle(_task_key(device))]
        if reply.accepted:
            return settled
        state.waiting = tuple(name for name in state.waiting if name != device)
        return [
            *settled,
            Log("declined", device, task.round, {"why": reply.reason}),
            *self._close_when_done(now),
        ]

    def _update(self, device: str, update: DeviceUpdate, size: int, now: float) -> list[Action]:
        state, task = self.state, self.state.task
        if isinstance(task, GatewayTask) and task.round == update.round and device in state.answers:
            return [self._device_receipt(device, "train", update.round, True)]  # counted once, said again
        state.sent += size
        try:
            if not isinstance(task, GatewayTask) or task.round != update.round or state.phase != "training":
                raise gate.Refused(f"round {update.round} is not open here")
            if update.device != device:
                raise gate.Refused("the update names another device than the topic")
            if device not in state.asked:
                raise gate.Refused("this device was not asked in this round")
            if not 0 < update.samples <= update.data:
                raise gate.Refused(f"{update.samples} samples of {update.data}")
            gate.check_score(update.holdout)
            gate.check_score(update.previous)
            gate.check_base(update.base, task.parts)
            federation = self._federation()
            assert federation is not None
            base = {role: self.blobs[ref.hash] for role, ref in task.parts.items()}
            norm = gate.check_parts(
                update.parts, base, self._schema(), state.norms, federation.deadlines.norm_gate
            )
        except gate.Refused as refusal:
            return self._refuse(device, "train", update.round, str(refusal), now)
        state.norms = [*state.norms, norm][-gate.NORM_HISTORY :]
        keeps = [Keep(digest(data), data) for _, data in sorted(update.parts.items())]
        state.answers[device] = Answer(
            parts={role: digest(data) for role, data in sorted(update.parts.items())},
            samples=update.samples,
            holdout=update.holdout,
            previous=update.previous,
            received=update.received,
            sent=size,
        )
        state.received += update.received
        state.waiting = tuple(name for name in state.waiting if name != device)
        detail = {
            "samples": update.samples,
            "loss": update.loss,
            "norm": norm,
            "bytes": size,
            "seconds": update.seconds,
        }
        return [
            *keeps,
            Settle(_task_key(device)),
            self._device_receipt(device, "train", update.round, True),
            Log("accepted", device, update.round, detail),
            *self._close_when_done(now),
        ]

    def _refuse(self, device: str, kind: str, round: int, reason: str, now: float) -> list[Action]:
        state, task = self.state, self.state.task
        answer: list[Action] = [
            self._device_receipt(device, kind, round, False, reason),
            Log("refused", device, round, {"why": reason}),
        ]
        if task is None or (kind, round) != (_kind(task), task.round) or device not in state.waiting:
            return answer
        state.refused[device] = reason
        state.waiting = tuple(name for name in state.waiting if name != device)
        return [*answer, Settle(_task_key(device)), *self._close_when_done(now)]

    def _close_when_done(self, now: float) -> list[Action]:
        """All answered: the deadline is now, as an event of its own, once this one's blobs are stored."""
        if not self.state.waiting:
            self.state.timers = {"deadline": now}
        return []

    def _close(self, now: float) -> list[Action]:
        """The round ends here, by the last answer or by the deadline."""
        state, task = self.state, self.state.task
        if isinstance(task, GatewayEvaluation) and state.phase == "evaluating":
            total: dict[int, Score] = {}
            for _, scores in sorted(state.scores.items()):
                for cluster, score in sorted(scores.items()):
                    total[cluster] = total.get(cluster, NO_SCORE) + score
            return self._report_scores(total, len(state.scores), now)
        if not isinstance(task, GatewayTask) or state.phase not in ("fetching", "training"):
            return []
        late: list[Action] = [Settle(_task_key(device)) for device in state.waiting]
        silent: list[Action] = [Log("silent", device, task.round) for device in state.waiting]
        federation = self._federation()
        assert federation is not None
        if federation.evaluation == "test" and len(state.answers) >= federation.deadlines.min_updates:
            state.phase = "scoring"
            return [*late, *silent, *self._score_again()]
        return [*late, *silent, *self._report_update(now, None)]

    def _averages(self) -> dict[str, bytes]:
        """Role -> canonical bytes of the average by samples, folded in device-name order in float64."""
        task, answers = self.state.task, self.state.answers
        assert isinstance(task, GatewayTask)
        averages: dict[str, bytes] = {}
        for role in sorted(task.parts):
            mean = aggregation.weighted_mean(self._parts_of(role, answers))
            if mean is not None:
                averages[role] = pack(mean)
        return averages

    def _parts_of(self, role: str, answers: Mapping[str, Answer]) -> Iterator[tuple[Part, float]]:
        for device in sorted(answers):
            yield (
                unpack(self.blobs[answers[device].parts[role]], self._schema()),
                float(answers[device].samples),
            )

    def _report_update(self, now: float, own: Score | None) -> list[Action]:
        state, task, federation = self.state, self.state.task, self._federation()
        assert isinstance(task, GatewayTask)
        assert federation is not None
        void = ""
        if len(state.answers) < max(1, federation.deadlines.min_updates):
            needed = federation.deadlines.min_updates
            void = f"{len(state.answers)} updates of {len(state.asked)} asked, {needed} needed"
        rewarded = self._reward_own(task.round, own) if own is not None else self._reward_paired(task)
        if not void:
            state.unrewarded, state.unrewarded_round = tuple(sorted(state.answers)), task.round
        update = GatewayUpdate(
            round=task.round,
            parts={} if void else self._averages(),
            samples=0 if void else sum(answer.samples for answer in state.answers.values()),
            data=sum(self._member(device).samples for device in self._roster()),
            holdout=sum((answer.holdout for answer in state.answers.values()), NO_SCORE),
            asked=len(state.asked),
            answered=len(state.answers),
            refused=len(state.refused),
            traffic=Traffic(up=state.sent, down=state.received),
            seconds=now - state.began,
            void=void,
        )
        state.phase, state.waiting, state.timers = "reported", (), {}
        return [*rewarded, Log("closed", self.name, task.round, self._counts(update)), self._report(update)]

    def _reward_paired(self, task: GatewayTask) -> list[Action]:
        """Reward of the last round: summed paired hold-out change, now that its model was scored.

        Forgotten when the cluster has changed since (`task.previous` is empty): another model is served.
        """
        state = self.state
        pairs = [
            (answer.holdout, answer.previous)
            for answer in state.answers.values()
            if answer.previous is not None
        ]
        chosen, round = state.unrewarded, state.unrewarded_round
        state.unrewarded = ()
        if not chosen or not pairs or not task.previous or round != task.round - 1:
            return []
        count = sum(new.count for new, _ in pairs)
        change = sum(new.correct - old.correct for new, old in pairs if old is not None)
        return self._reward(round, chosen, change / count if count else 0.0)

    def _reward_own(self, round: int, score: Score) -> list[Action]:
        """The paper's rule: the edge-aggregated model's accuracy against that of the round before."""
        task, before = self.state.task, self.state.reference
        assert isinstance(task, GatewayTask)
        self.state.reference = score.accuracy
        if before is None or not task.previous:
            return []
        return self._reward(round, tuple(sorted(self.state.answers)), score.accuracy - before)

    def _reward(self, round: int, chosen: tuple[str, ...], change: float) -> list[Action]:
        state, federation = self.state, self._federation()
        assert federation is not None
        known = {
            name: state.posteriors.get(name, thompson.Posterior()) for name in {*state.posteriors, *chosen}
        }
        if federation.selection.credit == "soft":
            state.posteriors = thompson.reward_softly(known, chosen, thompson.soft_credit(change))
        else:
            state.posteriors = thompson.reward(known, chosen, change > 0)
        return [Log("reward", self.name, round, {"change": change, "chosen": list(chosen)})]

    # --- evaluation ---

    def _ask_scores(self, task: GatewayEvaluation, now: float) -> list[Action]:
        state, federation = self.state, self._federation()
        assert federation is not None
        if federation.evaluation == "test":
            return [Work(self._evaluation(task))]
        able = tuple(name for name in self._roster() if self._member(name).holdout and self._reachable(name))
        state.asked = state.waiting = able
        message = EvaluateTask(
            instance=task.instance,
            round=task.round,
            candidates=task.candidates,
            deadline_s=share(task.deadline_s),
        )
        sends = [Send(Channel("task", self.name, device), message, _task_key(device)) for device in able]
        return [*sends, *self._close_when_done(now)]

    def _device_scores(self, device: str, scores: DeviceScores, size: int, now: float) -> list[Action]:
        state, task = self.state, self.state.task
        if isinstance(task, GatewayEvaluation) and task.round == scores.round and device in state.scores:
            return [self._device_receipt(device, "evaluate", scores.round, True)]
        state.sent += size
        try:
            if (
                not isinstance(task, GatewayEvaluation)
                or task.round != scores.round
                or state.phase != "evaluating"
            ):
                raise gate.Refused(f"the evaluation of round {scores.round} is not open here")
            if scores.device != device or device not in state.asked:
                raise gate.Refused("this device was not asked in this evaluation")
            if set(scores.scores) != set(task.candidates):
                raise gate.Refused("the scores are not those of the clusters asked for")
            for score in scores.scores.values():
                gate.check_score(score)
        except gate.Refused as refusal:
            return self._refuse(device, "evaluate", scores.round, str(refusal), now)
        state.scores[device] = scores.scores
        state.received += scores.received
        state.waiting = tuple(name for name in state.waiting if name != device)
        return [
            Settle(_task_key(device)),
            self._device_receipt(device, "evaluate", scores.round, True),
            *self._close_when_done(now),
        ]

    def _report_scores(self, scores: dict[int, Score], answered: int, now: float) -> list[Action]:
        state, task = self.state, self.state.task
        assert isinstance(task, GatewayEvaluation)
        late: list[Action] = [Settle(_task_key(device)) for device in state.waiting]
        silent: list[Action] = [Log("silent", device, task.round) for device in state.waiting]
        report = GatewayScores(
            round=task.round,
            scores=scores,
            answered=answered,
            traffic=Traffic(up=state.sent, down=state.received),
            seconds=now - state.began,
        )
        state.phase, state.waiting, state.timers = "reported", (), {}
        return [
            *late,
            *silent,
            Log("scored", self.name, task.round, {"answered": answered}),
            self._report(report),
        ]

    # --- jobs of the laboratory ---

    def _work_again(self) -> list[Action]:
        """After a restart: the job that went with the process."""
        task, federation = self.state.task, self._federation()
        if self.state.phase == "scoring":
            return self._score_again()
        own = federation is not None and federation.evaluation == "test"
        if self.state.phase == "evaluating" and own and isinstance(task, GatewayEvaluation):
            return [Work(self._evaluation(task))]
        return []

    def _score_again(self) -> list[Action]:
        """Score the edge-aggregated model on the gateway's own evaluation data."""
        averages = self._averages()
        parts = {role: digest(data) for role, data in averages.items()}
        keeps: list[Action] = [Keep(parts[role], data) for role, data in averages.items()]
        return [*keeps, Work(EvaluateJob(id=self._job_id(), candidates={0: parts}))]

    def _evaluation(self, task: GatewayEvaluation) -> EvaluateJob:
        candidates = {
            k: {role: ref.hash for role, ref in parts.items()} for k, parts in task.candidates.items()
        }
        return EvaluateJob(id=self._job_id(), candidates=candidates)

    def _job_failed(self, reason: str, now: float) -> list[Action]:
        failed: list[Action] = [Log("job failed", self.name, 0, {"why": reason})]
        if self.state.phase == "scoring":
            return [*failed, *self._report_update(now, None)]
        return [*failed, *self._report_scores({}, 0, now)] if self.state.phase == "evaluating" else failed

    # --- answers and small things ---

    def _receipt(self, receipt: Receipt) -> list[Action]:
        state, task = self.state, self.state.task
        if (
            task is None
            or state.phase != "reported"
            or (receipt.kind, receipt.round) != (_kind(task), task.round)
        ):
            return []
        state.phase, state.answers, state.scores = "idle", {}, {}
        detail: dict[str, Any] = {"accepted": receipt.accepted, "why": receipt.reason}
        return [Settle(REPORT), Log("receipt", receipt.kind, receipt.round, detail)]

    def _report(self, report: GatewayUpdate | GatewayScores) -> Send:
        return Send(Channel("update", self.name), report, REPORT)

    def _taken(self, task: GatewayTask | GatewayEvaluation) -> Send:
        return Send(Channel("reply", self.name), Taken(kind=_kind(task), round=task.round))

    def _device_receipt(self, device: str, kind: str, round: int, accepted: bool, reason: str = "") -> Send:
        receipt = Receipt(kind=kind, round=round, accepted=accepted, reason=reason[:400])
        return Send(Channel("receipt", self.name, device), receipt)

    def _counts(self, update: GatewayUpdate) -> dict[str, Any]:
        return {
            "asked": update.asked,
            "answered": update.answered,
            "refused": dict(sorted(self.state.refused.items())),
            "samples": update.samples,
            "accuracy": update.holdout.accuracy if update.holdout.count else None,
            "up": update.traffic.up,
            "down": update.traffic.down,
            "seconds": round(update.seconds, 3),
            "void": update.void,
        }

    def _federation(self) -> Federation | None:
        return None if self.state.spec is None else self.state.spec.federation

    def _schema(self) -> Schema:
        federation = self._federation()
        assert federation is not None
        model = federation.model
        return architecture(model.architecture, model.input, len(model.classes)).schema()

    def _job_id(self) -> str:
        task = self.state.task
        return "" if task is None else f"{self.state.phase}-{task.round}"


def _kind(task: GatewayTask | GatewayEvaluation) -> str:
    return "train" if isinstance(task, GatewayTask) else "evaluate"


def _order(task: GatewayTask | GatewayEvaluation) -> tuple[int, int]:
    return (task.round, isinstance(task, GatewayEvaluation))


def _task_key(device: str) -> str:
    return f"task:{device}"
