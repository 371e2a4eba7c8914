"""The cloud's state machine: hold rounds over the sites, aggregate in two phases, assign clusters.

    gathering --all ready | time--> training --all reported | deadline--> training ...
                                       | every tau_re rounds: evaluating --> sweep --> training
                                       | after the last round: evaluating --> finished
    finished --continuing--> training ... (another campaign of T rounds; rounds are counted on)

Parts keep two generations: the newest, and the one before, which devices score again for the paired reward.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from fedbac_edge.methods import method
from fedbac_edge.models.catalog import architecture
from fedbac_edge.protocol import answers, collecting
from fedbac_edge.protocol.cloud import (
    campaign,
    evaluation,
    generations,
    releasing,
    restoration,
    retained,
    rounds,
    sites,
)
from fedbac_edge.protocol.cloud.campaign import Campaign
from fedbac_edge.protocol.cloud.state import CloudState, Site
from fedbac_edge.protocol.collecting import task_key
from fedbac_edge.protocol.events import (
    Action,
    Built,
    Channel,
    Event,
    Hello,
    JobFailed,
    Log,
    Overwritten,
    Received,
    Resend,
    Send,
    Settle,
    Started,
    TimerFired,
)
from fedbac_edge.protocol.messages import (
    GatewayScores,
    GatewayStatus,
    GatewayUpdate,
    Missing,
    Order,
    Spec,
    Taken,
)
from fedbac_edge.settings.federation import Federation
from fedbac_edge.settings.round_rules import by_rules
from fedbac_edge.vocabulary.terms import PartRef

GRACE_S = 60.0
"""So long a gateway that vanished in an open fleet is waited for."""


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
        state = self.state
        return {**state.timers, **collecting.timers(state.collecting), **retained.timers(state)}

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
        return campaign.status(self.campaign, state)

    @property
    def campaign(self) -> Campaign:
        """How far the campaign is."""
        return Campaign(self.federation, self.method, self.state, self.blobs)

    @property
    def open_round(self) -> Campaign:
        """The same for the open round, which closes by the rules that it began with."""
        federation = by_rules(self.federation, self.state.rules)
        return Campaign(federation, self.method, self.state, self.blobs)

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
                # Retained messages do not reach all (a cluster's other nodes); what is sent live does.
                spec = [self._spec()] if repeated and self.state.phase != "new" else []
                return [*(spec or self._reclaim(now)), self.status(self.state.phase)]
            case Received(message=Spec() as spec):
                return self._hear_spec(spec, now)
            case Overwritten(channel=Channel(leaf="spec"), why=why):
                self.state.contested = True
                return [Log("foreign spec", "", self.state.round, {"why": why}), *self._reclaim(now)]
            case TimerFired(name=retained.RECLAIM):
                self.state.reclaims = None
                return self._reclaim(now, at_last=True)
            case Received(message=GatewayStatus() as status):
                return self._presence(event.channel.gateway, status, now)
            case Received(message=Taken() as taken):
                return self._taken(event.channel.gateway, taken, now)
            case Received(message=GatewayUpdate() as update):
                return rounds.take_report(self.open_round, event.channel.gateway, update, event.size, now)
            case Received(message=GatewayScores() as scores):
                return evaluation.take_scores(self.campaign, event.channel.gateway, scores, event.size, now)
            case Received(message=Missing() as missing):
                return retained.repeat(self.state, self.kept(), event.channel.gateway, missing, now)
            case TimerFired(name="gather") if self.state.phase == "gathering":
                return self._gathered(now)
            case TimerFired(name=collecting.DEADLINE):
                return self._close(now)
            case TimerFired(name=name) if name.startswith(collecting.GONE):
                gateway = name.removeprefix(collecting.GONE)
                return answers.give_up(self.state, gateway, self.state.round, now)
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
        return retained.specification(self.federation, self.state)

    def _hear_spec(self, spec: Spec, now: float) -> list[Action]:
        """What stands on the broker: ours, that of another cloud, or ours from before the roster grew."""
        if retained.is_ours(self.federation, self.state, spec):
            return []
        if restoration.was_succeeded(self.state, spec.instance):
            why = f"the broker holds a later generation of this federation, {spec.instance}"
            return self._renew(why, now)
        return [Log("foreign spec", spec.instance, self.state.round), *self._reclaim(now)]

    def _reclaim(self, now: float, at_last: bool = False) -> list[Action]:
        return retained.reclaim(self.federation, self.state, now, at_last)

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

    def _gathered(self, now: float) -> list[Action]:
        """The wait is over: start with the sites that are there, or wait on when there are none."""
        if not sites.anybody(self.federation, self.state):
            self.state.timers = {"gather": now + self.federation.deadlines.gather_s}
            return [Log("nobody", "", self.state.round)]
        missing = sites.not_ready(self.federation, self.state)
        waited = [Log("missing", "", self.state.round, {"gateways": missing})] if missing else []
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
        return [self._gather(now + self.federation.deadlines.deadline_min_s)]

    def _gather(self, until: float) -> Send:
        self.state.phase, self.state.timers = "gathering", {"gather": until}
        return self.status("gathering")

    def _begin(self, now: float) -> list[Action]:
        """The next round; before the first one an evaluation, where losses decide the clusters."""
        state = self.state
        asked = sites.to_train(self.federation, state)
        if not asked:
            return [Log("nobody", "", state.round), self._gather(now + self.federation.deadlines.gather_s)]
        placed = rounds.place_new(self.campaign, asked)
        if self.method.places_by_loss and not state.placed:
            return [*placed, *evaluation.begin(self.campaign, now)]
        return [*placed, *rounds.begin(self.campaign, asked, now)]

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
                return [*said, *evaluation.begin(self.campaign, now)]
            case "gathering":
                state.timers = {"gather": now + self.federation.deadlines.gather_s}
        return [*said, self.status(state.phase)]

    def _taken(self, gateway: str, taken: Taken, now: float) -> list[Action]:
        if restoration.is_ahead(self.state, gateway, taken):
            at = f"this one is in round {self.state.round}"
            why = f"{gateway} has been given round {taken.round} by this federation's cloud, and {at}"
            return self._renew(why, now)
        ours = taken.instance in (None, self.state.instance)
        return [Settle(task_key(gateway))] if ours and (taken.kind, taken.round) == self.state.opened else []

    # --- the end of a phase, and what follows ---

    def _close(self, now: float) -> list[Action]:
        """The phase ends here, by the last report or by the deadline."""
        state = self.state
        late = collecting.let_go(state.collecting, state.round)
        state.silent, state.timers = state.collecting.waiting, {}
        judged = rounds.judge(self.open_round, now) if state.phase == "training" else []
        state.collecting = collecting.end(state.collecting)
        match state.phase:
            case "training":
                return [*late, *judged, *self._close_training(now)]
            case "evaluating":
                return [*late, *self._close_evaluation(now)]
        return []

    def _close_training(self, now: float) -> list[Action]:
        """After a round: the end, an evaluation where one is due, or the next round."""
        state = self.state
        closed = rounds.close(self.open_round, now)
        if self.campaign.has_given_up and not self.continuing:
            state.phase = "finished"
            gave_up = Log("gave up", "", state.round, {"void": state.voids})
            return [*closed, gave_up, *self._release(), self.status("finished")]
        if evaluation.is_due(self.campaign):
            return [*closed, *evaluation.begin(self.campaign, now)]
        released = [] if state.void else self._release()  # a void round leaves the models as they were
        return [*closed, *released, *self._go_on(now)]

    def _close_evaluation(self, now: float) -> list[Action]:
        """After an evaluation: the next round, or the end of the campaign."""
        closed = evaluation.close(self.campaign, now)
        if self.state.round < self.campaign.last_round:
            return [*closed, *self._release(), *self._go_on(now)]
        self.state.phase = "finished"
        return [
            *closed,
            Log("finished", "", self.state.round, generations.hashes(self.state)),
            *self._release(),
            self.status("finished"),
            *self._continue(now),
        ]

    def _continue(self, now: float) -> list[Action]:
        if not self.continuing:
            return []
        return [campaign.begin_next(self.state), *self._go_on(now)]

    def _go_on_after_restart(self, now: float) -> list[Action]:
        renewed = self._renew("it was restored by `fedbac restore`", now) if self.state.restored else []
        again = [*renewed, *self._release_again()]
        if self.state.phase != "finished":
            return again
        if self.campaign.has_given_up:  # a restart means that something was mended
            self.state.voids = 0
            return [*again, *self._go_on(now)]
        if self.state.round < self.campaign.last_round:  # more rounds than when it ended
            return [
                *again,
                Log("longer", "", self.state.round, {"rounds": self.federation.rounds}),
                *self._go_on(now),
            ]
        return [*again, *self._continue(now)]

    def _release(self) -> list[Action]:
        if self.signer is None or not releasing.is_due(self.state, self.federation):
            return []
        return releasing.order(self.state, self.method, self.state.round)

    def _release_again(self) -> list[Action]:
        """After a restart: the release that was being built, or the last one if it never came to that."""
        if self.signer is None:
            return []
        return releasing.again(self.state) or (self._release() if self.state.phase == "finished" else [])
