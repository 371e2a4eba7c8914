"""The cloud's round of training: a task for each site, reports that count once, the two-phase aggregation.

A report that passes the gate counts at once, but for a step far longer than the others': that one is held and
judged when the round closes (`norm_gate`).
"""

from __future__ import annotations

from fedbac_edge.bandits import linucb
from fedbac_edge.methods.method import Method
from fedbac_edge.parts.part import digest
from fedbac_edge.protocol import answers, averaging, collecting
from fedbac_edge.protocol.cloud import generations, restoration, summaries
from fedbac_edge.protocol.cloud.assignment import initial_places
from fedbac_edge.protocol.cloud.campaign import Campaign, status
from fedbac_edge.protocol.cloud.state import SiteReport
from fedbac_edge.protocol.collecting import share, task_key
from fedbac_edge.protocol.events import Action, Channel, Keep, Log, Send, Settle
from fedbac_edge.protocol.gateway import gate, norm_gate
from fedbac_edge.protocol.messages import GatewayTask, GatewayUpdate
from fedbac_edge.settings.federation import Federation
from fedbac_edge.settings.round_rules import rules_of
from fedbac_edge.vocabulary.training import LocalTraining


def place_new(campaign: Campaign, gateways: tuple[str, ...]) -> list[Action]:
    """Clusters for sites that have none yet: dealt out in name order, or all in one."""
    state, federation, method = campaign.state, campaign.federation, campaign.method
    known = {} if state.clustering is None else dict(state.clustering.windows)
    fresh = [gateway for gateway in gateways if gateway not in known]
    if not fresh:
        return []
    places = initial_places(list(known), fresh, method.clusters, method.placement, federation.method.places)
    if state.clustering is None:
        state.clustering = linucb.start(places, method.clusters, federation.assignment.arms)
    else:
        for gateway in fresh:
            progress = campaign.round_in_campaign / federation.rounds
            state.clustering = linucb.join(state.clustering, gateway, places[gateway], progress)
    return [Log("assigned", gateway, state.round + 1, {"cluster": places[gateway]}) for gateway in fresh]


def begin(campaign: Campaign, asked: tuple[str, ...], now: float) -> list[Action]:
    """The next round: every asked gateway gets the parts of its cluster."""
    state, federation = campaign.state, campaign.federation
    state.phase, state.round, state.began = "training", state.round + 1, now
    state.reports, state.rules = {}, rules_of(federation)
    limit = collecting.adaptive(
        state.seconds,
        federation.deadlines.deadline_min_s,
        federation.deadlines.deadline_max_s,
        state.voids,
    )
    state.timers, state.collecting = {}, collecting.begin(state.collecting, now + limit, asked)
    sends = [
        Send(Channel("task", gateway), _task(campaign, gateway, limit), task_key(gateway))
        for gateway in asked
    ]
    assignment = state.assignment
    state.served_by = {**state.served_by, **{gateway: assignment[gateway] for gateway in asked}}
    detail = {"asked": list(asked), "deadline": limit, "assignment": assignment}
    return [Log("round", "", state.round, detail), *sends, status(campaign, "training")]


def _task(campaign: Campaign, gateway: str, limit: float) -> GatewayTask:
    """Round `state.round` for one site, which the cloud closes after `limit` seconds."""
    state, method = campaign.state, campaign.method
    cluster = state.assignment[gateway]
    stayed = state.served_by.get(gateway) == cluster
    return GatewayTask(
        instance=state.instance,
        round=state.round,
        cluster=cluster,
        parts=generations.whole(method, state.parts, cluster),
        previous=generations.whole(method, state.previous, cluster) if stayed else {},
        training=_local(campaign.federation, method, state.round),
        deadline_s=share(limit),
        counted=state.last_update.get(gateway, 0),
    )


def _local(federation: Federation, method: Method, round: int) -> LocalTraining:
    """The optimiser's settings in this round, the same for every device."""
    training = federation.training
    return LocalTraining(
        epochs=training.epochs,
        batch_size=training.batch_size,
        learning_rate=federation.learning_rate(round),
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        clip_norm=training.clip_norm,
        l2={role.name: role.l2 for role in method.roles if role.l2},
        threads=training.threads,
        turns=method.turns,
    )


# --- reports --------------------------------------------------------------------------------------


def take_report(
    campaign: Campaign, gateway: str, update: GatewayUpdate, size: int, now: float
) -> list[Action]:
    """A gateway's report, a message of `size` bytes: count it once, hold it, or refuse it."""
    state, federation, to = campaign.state, campaign.federation, Channel("receipt", gateway)
    if collecting.has_counted(state.collecting, "train", gateway, answers.key(update)):
        return [answers.receipt(to, "train", update.round, True)]  # once, and said again
    try:
        base = generations.whole(campaign.method, state.parts, state.assignment.get(gateway, 0))
        steps = gate.admit_site_update(federation, state, gateway, update, base, campaign.blobs)
    except gate.Refused as refusal:
        return answers.refuse(state, gateway, to, "train", update.round, str(refusal), now)
    if gateway in state.reports:
        return []  # held until the round closes
    suspect = federation.deadlines.norm_gate and norm_gate.is_suspect(state.norms, steps)
    whole = federation.method.cloud_weight == "data"
    hashes = {} if update.void else {role: digest(data) for role, data in sorted(update.parts.items())}
    weight = 0 if update.void else update.data if whole else update.samples
    report = SiteReport(
        parts=hashes,
        weight=weight,
        summary=summaries.of_site(update, state.assignment[gateway]),
        took=max(0.0, now - state.began - update.waited),
        up=update.traffic.up + size,
        down=update.traffic.down,
        unlabelled=update.unlabelled_data if whole else update.unlabelled,
        steps=steps,
        suspect=suspect,
        told={"samples": update.samples, "weight": weight, "void": update.void, "bytes": size},
    )
    state.reports[gateway] = report
    keeps = [Keep(hash, update.parts[role]) for role, hash in hashes.items()]
    restoration.prove(state, gateway)
    settled: list[Action] = [*keeps, Settle(task_key(gateway))]
    if suspect:
        answers.collect(state, collecting.hold(state.collecting, gateway), now)
        return [*settled, Log("held", gateway, update.round, report.told)]
    if not update.void:
        norm_gate.admit(state, gateway, steps)
    return [*settled, *_accept(campaign, gateway, now)]


def _accept(campaign: Campaign, gateway: str, now: float) -> list[Action]:
    """The report of `gateway` that is here counts."""
    state, report = campaign.state, campaign.state.reports[gateway]
    key = (state.instance, state.round)
    answers.collect(state, collecting.count(state.collecting, "train", gateway, key), now)
    if report.parts:
        state.last_update = {**state.last_update, gateway: state.round}
    told = {**report.told, **({"shortened": report.shortened} if report.shortened else {})}
    return [
        answers.receipt(Channel("receipt", gateway), "train", state.round, True),
        Log("reported", gateway, state.round, told),
    ]


# --- the close ------------------------------------------------------------------------------------


def judge(campaign: Campaign, now: float) -> list[Action]:
    """The round closes: which of the long steps count."""
    state = campaign.state
    counted, refused = norm_gate.close(state, state.reports, campaign.method.together())
    judged: list[Action] = []
    for gateway, why in refused.items():
        state.collecting = collecting.refuse(state.collecting, gateway, why)
        judged += [
            answers.receipt(Channel("receipt", gateway), "train", state.round, False, why),
            Log("refused", gateway, state.round, {"why": why}),
        ]
    return [*judged, *(action for gateway in counted for action in _accept(campaign, gateway, now))]


def close(campaign: Campaign, now: float) -> list[Action]:
    """Two-phase aggregation: global parts over all that reported, cluster parts over their cluster."""
    state = campaign.state
    fresh, unprotected = averaging.two_phases(
        state.reports, campaign.method, state.assignment, state.parts, campaign.blobs, campaign.federation
    )
    took = [report.took for report in state.reports.values() if report.weight]
    if took:  # a void round does not tell how long a round takes
        state.seconds = [*state.seconds, max(took)][-collecting.HISTORY :]
    state.void, state.voids = not fresh, 0 if fresh else state.voids + 1
    if state.void and campaign.counts_updates_alone:
        state.unused += 1
    state.last = summaries.of_training(state, now)
    closed = [
        *generations.advance(state, campaign.method, fresh),
        *(Log("kept", name, state.round, {"why": why}) for name, why in sorted(unprotected.items())),
        Log("aggregated", "", state.round, generations.hashes(state) | {"void": not fresh}),
        summaries.line(state.last),
        status(campaign, state.phase),
    ]
    state.reports = {}
    return closed
