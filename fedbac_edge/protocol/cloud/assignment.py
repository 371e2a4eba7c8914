"""Between the cloud and the rule that assigns clusters: scores become decisions and lines of the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedbac_edge.bandits import linucb
from fedbac_edge.methods import merging
from fedbac_edge.methods.ifca import closest
from fedbac_edge.methods.method import Method, Placement
from fedbac_edge.settings.federation import AssignmentTable, Federation
from fedbac_edge.vocabulary.terms import Score


def initial_places(
    known: Sequence[str],
    fresh: Sequence[str],
    clusters: int,
    rule: Placement,
    named: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Site -> cluster at its start; "argmin" deals out too, until the losses are known.

    `named` are the sites whose cluster the federation's file names.
    """
    sites = [*known, *fresh]
    dealt = linucb.initial_assignment(sites, clusters, "single" if rule == "single" else "round-robin")
    return {site: (named or {}).get(site, cluster) for site, cluster in dealt.items()}


def sweep(
    federation: Federation,
    method: Method,
    clustering: linucb.Clustering,
    evaluated: Mapping[str, linucb.Evaluation],
    round: int,
    scores: Mapping[str, Mapping[int, Score]] | None = None,
) -> tuple[linucb.Clustering, tuple[linucb.Decision, ...]]:
    """Reassign every site by the method's policy; before the first round always by the smallest loss.

    `scores` are what `evaluated` was made from; only the policy "merge" needs the counts in them.
    """
    table = federation.assignment
    if round > 0 and method.policy == "linucb":
        return linucb.sweep(clustering, evaluated, round, federation.rounds, cluster_options(table))
    if round > 0 and method.policy == "merge":
        return _merge(table, clustering, {site: (scores or {})[site] for site in evaluated})
    margin = 1.0 if round == 0 else table.margin
    decisions = []
    for site, current in clustering.assignment.items():
        losses = evaluated[site].losses if site in evaluated else ()
        chosen = closest(losses, current, margin) if losses else current
        decisions.append(linucb.Decision(site, current, chosen))
    places = {decision.server: decision.chosen for decision in decisions}
    return linucb.start(places, clustering.arms.clusters, clustering.arms.kind), tuple(decisions)


def _merge(
    table: AssignmentTable, clustering: linucb.Clustering, scores: merging.Scores
) -> tuple[linucb.Clustering, tuple[linucb.Decision, ...]]:
    thresholds = merging.Thresholds(table.confidence, table.tolerance, table.moves, table.merges)
    before = clustering.assignment
    places = merging.regroup(before, scores, clustering.arms.clusters, thresholds)
    decisions = tuple(linucb.Decision(site, before[site], places[site]) for site in before)
    return linucb.start(places, clustering.arms.clusters, clustering.arms.kind), decisions


def cluster_options(table: AssignmentTable) -> linucb.Options:
    """The bandit's options of the federation's file."""
    return linucb.Options(table.arms, table.reward, table.alpha, table.live_counts)


def evaluations(
    scores: Mapping[str, Mapping[int, Score]], assignment: Mapping[str, int], clusters: int
) -> dict[str, linucb.Evaluation]:
    """Mean losses and accuracy per site; a site without labelled hold-out (or without an answer) has none."""
    complete: dict[str, linucb.Evaluation] = {}
    for site, by_cluster in sorted(scores.items()):
        if all(k in by_cluster and by_cluster[k].count for k in range(clusters)):
            losses = tuple(by_cluster[k].mean_loss for k in range(clusters))
            complete[site] = linucb.Evaluation(losses, by_cluster[assignment[site]].accuracy)
    return complete


def decision_detail(
    decision: linucb.Decision, evaluation: linucb.Evaluation | None, scores: Mapping[int, Score]
) -> dict[str, Any]:
    """All that explains one site's place, for the ledger."""
    return {
        "previous": decision.previous,
        "chosen": decision.chosen,
        "losses": [] if evaluation is None else list(evaluation.losses),
        "right": [] if evaluation is None else [score.correct for _, score in sorted(scores.items())],
        "reward": decision.reward,
        "contexts": [list(context) for context in decision.contexts],
        "scores": [[score.mean, score.width, score.total] for score in decision.scores],
    }


def start_warm(
    method: Method, before: Mapping[str, int], decisions: Sequence[linucb.Decision]
) -> dict[str, str]:
    """Part -> part to copy, for clusters that were empty: from the cluster that its first site leaves."""
    copies: dict[str, str] = {}
    active = set(before.values())
    for decision in decisions:
        if decision.chosen not in active:
            active.add(decision.chosen)
            for role in method.roles:
                if role.scope == "cluster":
                    copies[method.part_name(role, decision.chosen)] = method.part_name(
                        role, decision.previous
                    )
    return copies
