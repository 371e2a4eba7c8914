"""A round in figures for people: what the cloud tells on its status topic and keeps in its ledger."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.events import Log
from fedbac_edge.protocol.messages import GatewayUpdate, RoundSummary, SiteSummary
from fedbac_edge.vocabulary.terms import NO_SCORE


def of_site(update: GatewayUpdate, cluster: int) -> SiteSummary:
    """What one site's report says."""
    return SiteSummary(
        cluster=cluster,
        accuracy=update.holdout.accuracy if update.holdout.count else None,
        holdout=update.holdout.count,
        asked=update.asked,
        answered=update.answered,
        refused=update.refused,
        samples=update.samples,
        void=update.void,
    )


def of_training(state: CloudState, now: float) -> RoundSummary:
    """The training phase that has just been closed."""
    sites: dict[str, SiteSummary] = {}
    for gateway in state.collecting.asked:
        report = state.reports.get(gateway)
        if report is None:
            why = state.collecting.refused.get(gateway, "no report")
            sites[gateway] = SiteSummary(cluster=state.assignment[gateway], void=why)
        else:
            sites[gateway] = report.summary
    return RoundSummary(
        round=state.round,
        phase="train",
        seconds=now - state.began,
        sites=sites,
        active_clusters=len(set(state.assignment.values())),
        up_bytes=sum(report.up for report in state.reports.values()),
        down_bytes=sum(report.down for report in state.reports.values()),
    )


def of_evaluation(
    state: CloudState, now: float, before: Mapping[str, int], moved: Mapping[str, int]
) -> RoundSummary:
    """The evaluation phase that has just been closed: each site's model as it was served (`before`)."""
    sites: dict[str, SiteSummary] = {}
    for gateway in state.collecting.asked:
        score = state.scores.get(gateway, {}).get(before[gateway], NO_SCORE)
        accuracy = score.accuracy if score.count else None
        sites[gateway] = SiteSummary(cluster=before[gateway], accuracy=accuracy, holdout=score.count)
    return RoundSummary(
        round=state.round,
        phase="evaluate",
        seconds=now - state.began,
        sites=sites,
        active_clusters=len(set(state.assignment.values())),
        up_bytes=state.traffic[0],
        down_bytes=state.traffic[1],
        reassigned=dict(moved),
    )


def line(summary: RoundSummary) -> Log:
    """For the ledger."""
    return Log("summary", summary.phase, summary.round, msgspec.to_builtins(summary))
