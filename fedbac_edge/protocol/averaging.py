"""From stored updates to averages: both tiers fold blobs in name order, one at a time, in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedbac_edge import aggregation
from fedbac_edge.methods.method import Method
from fedbac_edge.parts import Part, Schema, pack, unpack
from fedbac_edge.protocol.cloud_state import SiteReport
from fedbac_edge.protocol.gateway_state import Answer


def edge_averages(
    answers: Mapping[str, Answer], roles: list[str], blobs: Mapping[str, bytes], schema: Schema
) -> dict[str, bytes]:
    """Role -> canonical bytes of sum n_i theta_i / sum n_i over the devices that answered."""

    def parts_of(role: str) -> Iterator[tuple[Part, float]]:
        for device in sorted(answers):
            yield unpack(blobs[answers[device].parts[role]], schema), float(answers[device].samples)

    means = {role: aggregation.weighted_mean(parts_of(role)) for role in sorted(roles)}
    return {role: pack(mean) for role, mean in means.items() if mean is not None}


def two_phases(
    reports: Mapping[str, SiteReport],
    method: Method,
    assignment: Mapping[str, int],
    blobs: Mapping[str, bytes],
    schema: Schema,
) -> dict[str, bytes]:
    """Part name -> canonical bytes, for every part that somebody reported; the others stay as they are."""

    def as_report(report: SiteReport) -> aggregation.Report:
        weights = dict.fromkeys(report.parts, float(report.weight))
        return aggregation.Report(weights, lambda role: unpack(blobs[report.parts[role]], schema))

    weighed = {site: as_report(report) for site, report in sorted(reports.items()) if report.weight}
    scopes = {role.name: role.scope for role in method.roles}
    means = aggregation.phases(weighed, scopes, assignment, method.clusters)
    return {name: pack(mean) for name, mean in means if mean is not None}
