"""The cloud's state machine: hold rounds over the sites, aggregate in two phases, assign clusters.

    gathering --all ready | time--> training --all reported | deadline--> training ...
                                       | every tau_re rounds: evaluating --> sweep --> training
                                       | after the last round: evaluating --> finished
    finished --continuing--> training ... (another campaign of T rounds; rounds are counted on)

Parts keep two generations: the newest, and the one before, which devices score again for the paired reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import msgspec

from fedbac_edge import __version__
from fedbac_edge.bandits import linucb
from fedbac_edge.methods import method
from fedbac_edge.models.catalog import architecture
from fedbac_edge.parts.part import digest
from fedbac_edge.protocol import averaging, collecting
from fedbac_edge.protocol.cloud import generations, releasing, restoration, site_tasks, sites, summaries
from fedbac_edge.protocol.cloud.assignment import (
    decision_detail,
    evaluations,
    initial_places,
    start_warm,
    sweep,
)
from fedbac_edge.protocol.cloud.state import CloudState, Site, SiteReport
from fedbac_edge.protocol.collecting import task_key
from fedbac_edge.protocol.events import (
    Action,
    Built,
    Channel,
    Event,
    Hello,
    JobFailed,
    Keep,
    Log,
    Overwritten,
    Received,
    Repeat,
    Resend,
    Send,
    Settle,
    Started,
    TimerFired,
)
from fedbac_edge.protocol.gateway import gate, norm_gate
from fedbac_edge.protocol.messages import (
    CloudStatus,
    GatewayScores,
    GatewayStatus,
    GatewayUpdate,
    Missing,
    Order,
    Receipt,
    RoundSummary,
    Spec,
    Taken,
)
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import PartRef

RECLAIM_S = 10.0
VOIDS_LEAST = 10
"""A campaign ends after as many void rounds in a row as it has rounds, and after no fewer than these."""
GRACE_S = 60.0
"""So long a gateway that vanished in an open fleet is waited for."""
REPEAT_S = 5.0
"""What is retained goes out again at most so often, however many ask for it."""


class Cloud:
    """The machine; `blobs` is the store's view by content hash. Without a `signer` there are no releases."""

    def __init__(
        self,
        federation: Federation,
        blobs: Mapping[str, bytes],
        state: CloudState,
        signer: releasing.Signer | None = None,
        continuing: bool = False,
        began: int = 0,
    ) -> None:
        """`continuing`: a campaign that is over is followed by another one, on and on.

        `began`: when this process started, in seconds since 1970; only a restored cloud asks for it.
        """
        self.federation, self.blobs, self.state, self.signer = federation, blobs, state, signer
        self.continuing, self.began = continuing, began
        self.start: Mapping[str, bytes] = {}
        """Parts to begin with in the place of drawn ones."""
        self.method = method(federation)
        model = federation.model
        self.model = architecture(model.architecture, model.input, len(model.classes))

    # --- what the runner asks ---

    def timers(self) -> Mapping[str, float]:
        """Deadlines, and when the description is put back."""
        reclaim = {} if self.state.reclaims is None else {"reclaim": self.state.reclaims}
        return {**self.state.timers, **collecting.timers(self.state.collecting), **reclaim}

    def wanted(self) -> Mapping[str, PartRef]:
        """Nothing: the cloud makes the parts."""
        return {}

    def kept(self) -> Set[str]:
        """The generations of parts, the reports of the open round, and the releases."""
        state = self.state
        refs = [*state.parts.values(), *state.previous.values(), *state.earlier.values()]
        reported = {hash for report in self.state.reports.values() for hash in report.parts.values()}
        return {ref.hash for ref in refs} | reported | releasing.kept(self.state)

    def status(self, state: str) -> Send:
        """Where the campaign stands, and with "offline" the will."""
        message = CloudStatus(
            state=state,
            session=self.state.session,
            round=self.state.round,
            rounds=self.last_round,
            last=self.state.last,
        )
        return Send(Channel("status"), message, retain=True)

    # --- events ---

    def handle(self, event: Event, now: float) -> list[Action]:
        """One event in, actions out; see the picture on top."""
        if isinstance(event, TimerFired):
            self.state.timers = {k: when for k, when in self.state.timers.items() if k != event.name}
        if event == TimerFired(collecting.DEADLINE):
            self.state.collecting = collecting.fired(self.state.collecting)
        match event:
            case Started():
                self.state.session += 1
                self.state.proven = ()
                return self._found(now) if self.state.phase == "new" else self._go_on_after_restart(now)
            case Hello(repeated=repeated):
                # Retained messages reach not everybody (a cluster's other nodes); what is sent live does.
                spec = [self._spec()] if repeated and self.state.phase != "new" else []
                return [*(spec or self._reclaim(now)), self.status(self.state.phase)]
            case Received(message=Spec() as spec):
                return self._hear_spec(spec, now)
            case Overwritten(channel=Channel(leaf="spec"), why=why):
                self.state.contested = True
                return [Log("foreign spec", "", self.state.round, {"why": why}), *self._reclaim(now)]
            case TimerFired(name="reclaim"):
                self.state.reclaims = None
                return self._reclaim(now, at_last=True)
            case Received(message=GatewayStatus() as status):
                return self._presence(event.channel.gateway, status, now)
            case Received(message=Taken() as taken):
                return self._taken(event.channel.gateway, taken, now)
            case Received(message=GatewayUpdate() as update):
                return self._update(event.channel.gateway, update, event.size, now)
            case Received(message=GatewayScores() as scores):
                return self._scores(event.channel.gateway, scores, event.size, now)
            case Received(message=Missing() as missing):
                return self._missed(event.channel.gateway, missing, now)
            case TimerFired(name="gather") if self.state.phase == "gathering":
                return self._gathered(now)
            case TimerFired(name=collecting.DEADLINE):
                return self._close(now)
            case TimerFired(name=name) if name.startswith(collecting.GONE):
                return self._give_up(name.removeprefix(collecting.GONE), now)
            case Received(message=Order() as order):
                return releasing.ordered(self.state, self.federation, order, self.signer)
            case Built() if self.signer is not None:
                return releasing.built(self.state, self.federation, self.method, event, self.signer)
            case JobFailed():
                return releasing.failed(self.state, self.method, event)
        return []

    # --- start ---

    def _found(self, now: float) -> list[Action]:
        """Fresh parts, the specification, and the wait for the members."""
        state, federation = self.state, self.federation
        drawn = generations.begin(state, self.method, self.model, federation.seed, self.start)
        state.phase, state.round = "gathering", 0
        state.timers = {"gather": now + federation.deadlines.gather_s}
        return [
            *drawn,
            self._spec(),
            Log("founded", state.instance, 0, {name: ref.hash for name, ref in state.parts.items()}),
            self.status("gathering"),
        ]

    def _spec(self) -> Send:
        spec = Spec(federation=self.federation, instance=self.state.instance, software=__version__)
        return Send(Channel("spec"), spec, retain=True)

    def _hear_spec(self, spec: Spec, now: float) -> list[Action]:
        """What stands on the broker: ours, that of another cloud, or ours from before the roster grew."""
        own = (self.state.instance, self.federation)
        self.state.contested = (spec.instance, spec.federation) != own
        if not self.state.contested:
            return []
        if restoration.was_succeeded(self.state, spec.instance):
            return self._renew(
                f"the broker holds a later generation of this federation, {spec.instance}", now
            )
        return [Log("foreign spec", spec.instance, self.state.round), *self._reclaim(now)]

    def _reclaim(self, now: float, at_last: bool = False) -> list[Action]:
        """Say again whose federation it is; at most every RECLAIM_S, lest two clouds shout at each other."""
        state = self.state
        if not state.contested:
            return []
        if not at_last and now - state.reclaimed < RECLAIM_S:
            state.reclaims = state.reclaimed + RECLAIM_S
            return []
        state.reclaimed, state.reclaims = now, None
        return [self._spec()]

    def _presence(self, gateway: str, status: GatewayStatus, now: float) -> list[Action]:
        restarted, became_ready = sites.hear(self.state, gateway, status)
        if self.federation.eligibility == "online":
            online = sites.site(self.state, gateway).online
            self.state.collecting = collecting.seen(self.state.collecting, gateway, online, now + GRACE_S)
        again: list[Action] = (
            [Resend(task_key(gateway))] if restarted and gateway in self.state.collecting.waiting else []
        )
        gathering = self.state.phase == "gathering" and became_ready
        if gathering and sites.are_complete(self.federation, self.state):
            return [*again, *self._begin(now)]
        return again

    def _missed(self, gateway: str, missing: Missing, now: float) -> list[Action]:
        """Publish again what somebody at this site waits for in vain."""
        state, kept = self.state, self.kept()
        asked = [(hash, Repeat(hash)) for hash in missing.hashes if hash in kept]
        if missing.release:
            asked.append((gateway, Repeat(Channel("release", gateway))))
        recent = {what: when for what, when in state.repeated.items() if now - when < REPEAT_S}
        due = {what: action for what, action in asked if what not in recent}
        state.repeated = {**recent, **dict.fromkeys(due, now)}
        if not due:
            return []
        return [Log("published again", gateway, state.round, {"what": sorted(due)}), *due.values()]

    def _gathered(self, now: float) -> list[Action]:
        """The wait is over: start with who is there, or wait on when nobody is."""
        if not sites.anybody(self.federation, self.state):
            self.state.timers = {"gather": now + self.federation.deadlines.gather_s}
            return [Log("nobody", "", self.state.round)]
        members = sites.names(self.federation, self.state)
        missing = [gateway for gateway in members if not sites.site(self.state, gateway).ready]
        waited: list[Action] = (
            [Log("missing", "", self.state.round, {"gateways": missing})] if missing else []
        )
        return [*waited, *self._begin(now)]

    def _go_on(self, now: float) -> list[Action]:
        """The next round; after a void one not at once, or a fleet in trouble would burn its rounds.

        Sites that did not even report may be cut off, or the cloud is: they are heard again first.
        """
        state = self.state
        if not state.void:
            return self._begin(now)
        for gateway in state.silent:
            state.sites[gateway] = Site(session=sites.site(state, gateway).session)
        state.phase, state.timers = "gathering", {"gather": now + self.federation.deadlines.deadline_min_s}
        return [self.status("gathering")]

    # --- a training round ---

    def _begin(self, now: float) -> list[Action]:
        """Round t: every asked gateway gets the parts of its cluster."""
        state, federation = self.state, self.federation
        asked = sites.to_train(federation, state)
        if not asked:
            state.phase, state.timers = "gathering", {"gather": now + federation.deadlines.gather_s}
            return [Log("nobody", "", state.round), self.status("gathering")]
        joined = self._assign_new(asked)
        if self.method.places_by_loss and not state.placed:
            return [*joined, *self._evaluate(now)]
        state.phase, state.round, state.began = "training", state.round + 1, now
        state.reports = {}
        limit = collecting.adaptive(
            state.seconds,
            federation.deadlines.deadline_min_s,
            federation.deadlines.deadline_max_s,
            state.voids,
        )
        state.timers, state.collecting = {}, collecting.begin(state.collecting, now + limit, asked)
        sends = [
            Send(
                Channel("task", gateway),
                site_tasks.training(federation, self.method, state, gateway, limit),
                task_key(gateway),
            )
            for gateway in asked
        ]
        assignment = state.assignment
        state.served_by = {**state.served_by, **{gateway: assignment[gateway] for gateway in asked}}
        detail = {"asked": list(asked), "deadline": limit, "assignment": assignment}
        return [*joined, Log("round", "", state.round, detail), *sends, self.status("training")]

    def _assign_new(self, gateways: tuple[str, ...]) -> list[Action]:
        """Clusters for sites that have none yet: dealt out in name order, or all in one."""
        state, federation = self.state, self.federation
        known = {} if state.clustering is None else dict(state.clustering.windows)
        fresh = [gateway for gateway in gateways if gateway not in known]
        if not fresh:
            return []
        clusters = self.method.clusters
        named = federation.method.places
        places = initial_places(list(known), fresh, clusters, self.method.placement, named)
        if state.clustering is None:
            state.clustering = linucb.start(places, clusters, federation.assignment.arms)
        else:
            for gateway in fresh:
                progress = self._round_in_campaign() / federation.rounds
                state.clustering = linucb.join(state.clustering, gateway, places[gateway], progress)
        return [Log("assigned", gateway, state.round + 1, {"cluster": places[gateway]}) for gateway in fresh]

    # --- restored from an older backup ---

    def _renew(self, why: str, now: float) -> list[Action]:
        """A new generation of the instance, said to all; the open phase begins again."""
        state = self.state
        begun = restoration.renew(state, why, now)
        said: list[Action] = [*begun, self._spec()]
        if self.signer is not None and state.founded:
            said += releasing.renewed(state, self.federation, self.signer, self.began)
        match state.phase:
            case "training":
                state.round -= 1
                return [*said, *self._begin(now)]
            case "evaluating":
                return [*said, *self._evaluate(now)]
            case "gathering":
                state.timers = {"gather": now + self.federation.deadlines.gather_s}
        return [*said, self.status(state.phase)]

    def _taken(self, gateway: str, taken: Taken, now: float) -> list[Action]:
        if restoration.is_ahead(self.state, gateway, taken):
            at = f"this one is in round {self.state.round}"
            why = f"{gateway} has been given round {taken.round} by this federation's cloud, and {at}"
            return self._renew(why, now)
        current = {"training": "train", "evaluating": "evaluate"}.get(self.state.phase)
        if (taken.kind, taken.round) != (current, self.state.round):
            return []
        if taken.instance not in (None, self.state.instance):
            return []
        return [Settle(task_key(gateway))]

    def _update(self, gateway: str, update: GatewayUpdate, size: int, now: float) -> list[Action]:
        state = self.state
        if collecting.has_counted(state.collecting, "train", gateway, _counted(update)):
            return [self._receipt(gateway, "train", update.round, True)]  # once, and said again
        try:
            base = generations.whole(self.method, state.parts, state.assignment.get(gateway, 0))
            steps = gate.admit_site_update(self.federation, state, gateway, update, base, self.blobs)
        except gate.Refused as refusal:
            return self._refuse(gateway, "train", update.round, str(refusal), now)
        if gateway in state.reports:
            return []  # held until the round closes
        suspect = self.federation.deadlines.norm_gate and norm_gate.is_suspect(state.norms, steps)
        whole = self.federation.method.cloud_weight == "data"
        hashes = {} if update.void else {role: digest(data) for role, data in sorted(update.parts.items())}
        state.reports[gateway] = SiteReport(
            parts=hashes,
            weight=0 if update.void else update.data if whole else update.samples,
            summary=summaries.of_site(update, state.assignment[gateway]),
            took=max(0.0, now - state.began - update.waited),
            up=update.traffic.up + size,
            down=update.traffic.down,
            unlabelled=update.unlabelled_data if whole else update.unlabelled,
            steps=steps,
            suspect=suspect,
        )
        report = state.reports[gateway]
        report.told = {
            "samples": update.samples,
            "weight": report.weight,
            "void": update.void,
            "bytes": size,
        }
        keeps = [Keep(hash, update.parts[role]) for role, hash in hashes.items()]
        restoration.prove(state, gateway)
        settled: list[Action] = [*keeps, Settle(task_key(gateway))]
        if suspect:
            self._collect(collecting.hold(state.collecting, gateway), now)
            return [*settled, Log("held", gateway, update.round, report.told)]
        if not update.void:
            norm_gate.admit(state, gateway, steps)
        return [*settled, *self._accept(gateway, now)]

    def _accept(self, gateway: str, now: float) -> list[Action]:
        """The report of `gateway` that is here counts."""
        state, report = self.state, self.state.reports[gateway]
        key = (state.instance, state.round)
        self._collect(collecting.count(state.collecting, "train", gateway, key), now)
        if report.parts:
            state.last_update = {**state.last_update, gateway: state.round}
        told = {**report.told, **({"shortened": report.shortened} if report.shortened else {})}
        return [
            self._receipt(gateway, "train", state.round, True),
            Log("reported", gateway, state.round, told),
        ]

    def _judge(self, now: float) -> list[Action]:
        """The round closes: which of the long steps count."""
        state = self.state
        counted, refused = norm_gate.close(state, state.reports, self.method.together())
        judged: list[Action] = []
        for gateway, why in refused.items():
            state.collecting = collecting.refuse(state.collecting, gateway, why)
            judged += [
                self._receipt(gateway, "train", state.round, False, why),
                Log("refused", gateway, state.round, {"why": why}),
            ]
        return [*judged, *(action for gateway in counted for action in self._accept(gateway, now))]

    def _collect(self, collected: collecting.Collecting, now: float) -> None:
        self.state.collecting = collecting.close_when_done(collected, now)

    def _refuse(self, gateway: str, kind: str, round: int, reason: str, now: float) -> list[Action]:
        state = self.state
        answer: list[Action] = [
            self._receipt(gateway, kind, round, False, reason),
            Log("refused", gateway, round, {"why": reason}),
        ]
        current = {"training": "train", "evaluating": "evaluate"}.get(state.phase)
        if (kind, round) != (current, state.round) or gateway not in state.collecting.waiting:
            return answer
        self._collect(collecting.refuse(state.collecting, gateway, reason), now)
        return [*answer, Settle(task_key(gateway))]

    def _give_up(self, gateway: str, now: float) -> list[Action]:
        """A gateway that vanished has not come back: its report still counts if it comes before the close."""
        self._collect(collecting.decline(self.state.collecting, gateway), now)
        return [Settle(task_key(gateway)), Log("gone", gateway, self.state.round)]

    def _close(self, now: float) -> list[Action]:
        """The phase ends here, by the last report or by the deadline."""
        state = self.state
        late = collecting.let_go(state.collecting, state.round)
        state.silent, state.timers = state.collecting.waiting, {}
        judged = self._judge(now) if state.phase == "training" else []
        state.collecting = collecting.end(state.collecting)
        match state.phase:
            case "training":
                return [*late, *judged, *self._close_training(now)]
            case "evaluating":
                return [*late, *self._close_evaluation(now)]
        return []

    def _close_training(self, now: float) -> list[Action]:
        """Two-phase aggregation: global parts over all that reported, cluster parts over their cluster."""
        state = self.state
        fresh, unprotected = averaging.two_phases(
            state.reports, self.method, state.assignment, state.parts, self.blobs, self.federation
        )
        took = [report.took for report in state.reports.values() if report.weight]
        if took:  # a void round does not tell how long a round takes
            state.seconds = [*state.seconds, max(took)][-collecting.HISTORY :]
        state.void, state.voids = not fresh, 0 if fresh else state.voids + 1
        if state.void and self._counts_updates_alone:
            state.unused += 1
        summary = summaries.of_training(state, now)
        published = generations.advance(state, self.method, fresh)
        closed = [
            *published,
            *(Log("kept", name, state.round, {"why": why}) for name, why in sorted(unprotected.items())),
            Log("aggregated", "", state.round, generations.hashes(self.state) | {"void": not fresh}),
            *self._tell(summary),
        ]
        state.reports = {}
        federation = self.federation
        to_sweep = self.method.reassigns and linucb.due(
            self._round_in_campaign(), federation.rounds, federation.assignment.every
        )
        if self.has_given_up and not self.continuing:
            state.phase = "finished"
            gave_up = Log("gave up", "", state.round, {"void": state.voids})
            return [*closed, gave_up, *self._release(), self.status("finished")]
        moves = not (state.void and self._counts_updates_alone)
        if moves and (to_sweep or state.round >= self.last_round):
            return [*closed, *self._evaluate(now)]
        released = [] if state.void else self._release()  # a void round leaves the models as they were
        return [*closed, *released, *self._go_on(now)]

    # --- evaluation, sweep, end ---

    def _evaluate(self, now: float) -> list[Action]:
        """M * K forward passes at the sites: the loss of every cluster's served model."""
        state, federation = self.state, self.federation
        last = state.round >= self.last_round
        assignment = self.state.assignment
        asked = sites.to_evaluate(federation, state)
        state.phase, state.began, state.scores, state.traffic = "evaluating", now, {}, (0, 0)
        limit = federation.deadlines.evaluation_deadline_s
        state.timers = {}
        self._collect(collecting.begin(state.collecting, now + limit, asked), now)
        sends: list[Action] = []
        for gateway in asked:
            clusters = [assignment[gateway]] if last else range(self.method.clusters)
            task = site_tasks.evaluation(self.method, state, clusters, limit)
            sends.append(Send(Channel("task", gateway), task, task_key(gateway)))
        begun = [Log("evaluation", "", state.round, {"asked": list(asked), "last": last}), *sends]
        return [*begun, self.status("evaluating")]

    def _scores(self, gateway: str, scores: GatewayScores, size: int, now: float) -> list[Action]:
        state = self.state
        if collecting.has_counted(state.collecting, "evaluate", gateway, _counted(scores)):
            return [self._receipt(gateway, "evaluate", scores.round, True)]
        try:
            gate.admit_site_scores(state, gateway, scores, self.method.clusters)
        except gate.Refused as refusal:
            return self._refuse(gateway, "evaluate", scores.round, str(refusal), now)
        state.scores[gateway] = scores.scores
        up, down = state.traffic
        state.traffic = (up + scores.traffic.up + size, down + scores.traffic.down)
        line = Log("scored", gateway, scores.round, {"answered": scores.answered, "bytes": size})
        restoration.prove(state, gateway)
        self._collect(collecting.count(state.collecting, "evaluate", gateway, _counted(scores)), now)
        return [Settle(task_key(gateway)), self._receipt(gateway, "evaluate", scores.round, True), line]

    def _close_evaluation(self, now: float) -> list[Action]:
        state, federation = self.state, self.federation
        assert state.clustering is not None
        last = state.round >= self.last_round
        before, moved = state.assignment, dict[str, int]()
        actions: list[Action] = []
        if not last:
            evaluated = evaluations(state.scores, before, self.method.clusters)
            clustering, decisions = sweep(
                federation, self.method, state.clustering, evaluated, self._round_in_campaign(), state.scores
            )
            moved.update({d.server: d.chosen for d in decisions if d.chosen != d.previous})
            actions = [
                Log(
                    "sweep",
                    d.server,
                    state.round,
                    decision_detail(d, evaluated.get(d.server), state.scores.get(d.server, {})),
                )
                for d in decisions
            ]
            if federation.method.cluster_start == "warm":
                actions += generations.warm(state, start_warm(self.method, before, decisions))
            state.clustering, state.placed = clustering, True
        actions += self._tell(summaries.of_evaluation(state, now, before, moved))
        state.scores = {}
        if last:
            state.phase = "finished"
            return [
                *actions,
                Log("finished", "", state.round, generations.hashes(self.state)),
                *self._release(),
                self.status("finished"),
                *self._continue(now),
            ]
        return [*actions, *self._release(), *self._go_on(now)]

    # --- campaigns ---

    @property
    def last_round(self) -> int:
        """T in the first campaign; rounds are counted on in the next ones. Void rounds come on top."""
        return self._rounds_before() + self.federation.rounds

    @property
    def _counts_updates_alone(self) -> bool:
        """In a fleet void rounds do not use up a campaign; a laboratory has the paper's number."""
        return self.federation.evaluation == "holdout"

    @property
    def has_given_up(self) -> bool:
        """So many rounds in a row were void that more of them promise nothing."""
        return self._counts_updates_alone and self.state.voids >= max(VOIDS_LEAST, self.federation.rounds)

    def _round_in_campaign(self) -> int:
        """t: 1 in the first round of every campaign, T in the last; 0 before the first one."""
        return self.state.round - self._rounds_before()

    def _rounds_before(self) -> int:
        """How many came before this campaign, and those in it that were void."""
        after = self.state.campaign_after
        before = self.federation.rounds * (self.state.campaign - 1) if after is None else after
        return before + self.state.unused

    def _continue(self, now: float) -> list[Action]:
        """A fleet has no last round: the next campaign goes on with parts, arms and posteriors."""
        if not self.continuing:
            return []
        self.state.campaign += 1
        self.state.campaign_after, self.state.unused = self.state.round, 0
        return [Log("campaign", "", self.state.round, {"number": self.state.campaign}), *self._go_on(now)]

    def _go_on_after_restart(self, now: float) -> list[Action]:
        renewed: list[Action] = []
        if self.state.restored:
            renewed = self._renew("it was restored by `fedbac restore`", now)
        again = [*renewed, *self._release_again()]
        if self.state.phase != "finished":
            return again
        if self.has_given_up:  # whoever starts it again has mended something
            self.state.voids = 0
            return [*again, *self._go_on(now)]
        if self.state.round < self.last_round:  # more rounds than when it ended
            return [
                *again,
                Log("longer", "", self.state.round, {"rounds": self.federation.rounds}),
                *self._go_on(now),
            ]
        return [*again, *self._continue(now)]

    # --- releases ---

    def _release(self) -> list[Action]:
        if self.signer is None or not releasing.is_due(self.state, self.federation):
            return []
        return releasing.order(self.state, self.method, self.state.round)

    def _release_again(self) -> list[Action]:
        """After a restart: the release that was being built, or the last one if it never came to that."""
        if self.signer is None:
            return []
        return releasing.again(self.state) or (self._release() if self.state.phase == "finished" else [])

    # --- for people ---

    def _tell(self, summary: RoundSummary) -> list[Action]:
        self.state.last = summary
        detail: dict[str, Any] = msgspec.to_builtins(summary)
        return [Log("summary", summary.phase, summary.round, detail), self.status(self.state.phase)]

    def _receipt(self, gateway: str, kind: str, round: int, accepted: bool, reason: str = "") -> Send:
        receipt = Receipt(kind=kind, round=round, accepted=accepted, reason=reason[:400])
        return Send(Channel("receipt", gateway), receipt)


def _counted(report: GatewayUpdate | GatewayScores) -> tuple[str, int]:
    """What is counted exactly once per gateway, whatever the link repeats."""
    return (report.instance, report.round)
