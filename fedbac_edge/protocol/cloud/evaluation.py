"""The cloud's evaluation: sites score the clusters' models, and the sweep moves sites between clusters."""

from __future__ import annotations

from collections.abc import Iterable

from fedbac_edge.bandits import linucb
from fedbac_edge.protocol import answers, collecting
from fedbac_edge.protocol.cloud import generations, restoration, sites, summaries
from fedbac_edge.protocol.cloud.assignment import decision_detail, evaluations, start_warm, sweep
from fedbac_edge.protocol.cloud.campaign import Campaign, status
from fedbac_edge.protocol.collecting import share, task_key
from fedbac_edge.protocol.events import Action, Channel, Log, Send, Settle
from fedbac_edge.protocol.gateway import gate
from fedbac_edge.protocol.messages import GatewayEvaluation, GatewayScores


def is_due(campaign: Campaign) -> bool:
    """After every tau_re rounds and after the last one; in a fleet a void round brings none."""
    if campaign.state.void and campaign.counts_updates_alone:
        return False
    federation = campaign.federation
    sweeps = campaign.method.reassigns and linucb.due(
        campaign.round_in_campaign, federation.rounds, federation.assignment.every
    )
    return sweeps or campaign.state.round >= campaign.last_round


def begin(campaign: Campaign, now: float) -> list[Action]:
    """M * K forward passes at the sites: the loss of every cluster's served model.

    After the last round each site scores its own cluster's model alone.
    """
    state, federation = campaign.state, campaign.federation
    last = state.round >= campaign.last_round
    assignment = state.assignment
    asked = sites.to_evaluate(federation, state)
    state.phase, state.began, state.scores, state.traffic = "evaluating", now, {}, (0, 0)
    limit = federation.deadlines.evaluation_deadline_s
    state.timers = {}
    answers.collect(state, collecting.begin(state.collecting, now + limit, asked), now)
    sends: list[Action] = []
    for gateway in asked:
        clusters = [assignment[gateway]] if last else range(campaign.method.clusters)
        sends.append(Send(Channel("task", gateway), _task(campaign, clusters, limit), task_key(gateway)))
    begun = [Log("evaluation", "", state.round, {"asked": list(asked), "last": last}), *sends]
    return [*begun, status(campaign, "evaluating")]


def _task(campaign: Campaign, clusters: Iterable[int], limit: float) -> GatewayEvaluation:
    """The served models of `clusters` on a site's evaluation data."""
    state = campaign.state
    return GatewayEvaluation(
        instance=state.instance,
        round=state.round,
        candidates={k: generations.served(campaign.method, state, k) for k in clusters},
        deadline_s=share(limit),
    )


def take_scores(
    campaign: Campaign, gateway: str, scores: GatewayScores, size: int, now: float
) -> list[Action]:
    """A gateway's scores, a message of `size` bytes: count them once, or refuse them."""
    state, to, key = campaign.state, Channel("receipt", gateway), answers.key(scores)
    if collecting.has_counted(state.collecting, "evaluate", gateway, key):
        return [answers.receipt(to, "evaluate", scores.round, True)]
    try:
        gate.admit_site_scores(state, gateway, scores, campaign.method.clusters)
    except gate.Refused as refusal:
        return answers.refuse(state, gateway, to, "evaluate", scores.round, str(refusal), now)
    state.scores[gateway] = scores.scores
    up, down = state.traffic
    state.traffic = (up + scores.traffic.up + size, down + scores.traffic.down)
    line = Log("scored", gateway, scores.round, {"answered": scores.answered, "bytes": size})
    restoration.prove(state, gateway)
    answers.collect(state, collecting.count(state.collecting, "evaluate", gateway, key), now)
    return [Settle(task_key(gateway)), answers.receipt(to, "evaluate", scores.round, True), line]


def close(campaign: Campaign, now: float) -> list[Action]:
    """All scores are here, or it is time: sweep, but not after the last round."""
    state, before, moved = campaign.state, campaign.state.assignment, dict[str, int]()
    swept: list[Action] = []
    if state.round < campaign.last_round:
        swept = _sweep(campaign)
        moved = {site: cluster for site, cluster in state.assignment.items() if cluster != before[site]}
    state.last = summaries.of_evaluation(state, now, before, moved)
    state.scores = {}
    return [*swept, summaries.line(state.last), status(campaign, state.phase)]


def _sweep(campaign: Campaign) -> list[Action]:
    """Every site's cluster by the method's rule, from the losses of all clusters there."""
    state, federation, method = campaign.state, campaign.federation, campaign.method
    assert state.clustering is not None
    before = state.assignment
    evaluated = evaluations(state.scores, before, method.clusters)
    clustering, decisions = sweep(
        federation, method, state.clustering, evaluated, campaign.round_in_campaign, state.scores
    )
    lines: list[Action] = [
        Log(
            "sweep",
            d.server,
            state.round,
            decision_detail(d, evaluated.get(d.server), state.scores.get(d.server, {})),
        )
        for d in decisions
    ]
    if federation.method.cluster_start == "warm":
        lines += generations.warm(state, start_warm(method, before, decisions))
    state.clustering, state.placed = clustering, True
    return lines
