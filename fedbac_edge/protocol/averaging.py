"""From stored updates to new parts, in name order, by each tier's rule: a weighted mean, or one of `robust`.

Updates are stored as they came. They are decoded on top of the part that they were trained from when the rule
reads them, so memory holds no more of them than the rule needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from fedbac_edge import aggregation
from fedbac_edge.aggregation import Contribution
from fedbac_edge.encodings import decode
from fedbac_edge.federation import Federation
from fedbac_edge.methods.method import Method
from fedbac_edge.parts import Part, pack, unpack
from fedbac_edge.protocol.cloud_state import SiteReport
from fedbac_edge.protocol.gate import schema
from fedbac_edge.protocol.gateway_state import Answer
from fedbac_edge.protocol.messages import PartRef, Parts
from fedbac_edge.robust import combine, unsupported


def edge_averages(
    answers: Mapping[str, Answer], base: Parts, blobs: Mapping[str, bytes], federation: Federation
) -> dict[str, bytes]:
    """Role -> canonical bytes of the new part over the devices that answered; weights are their samples.

    `base` are the parts that they trained. Raises AggregationError for a rule that they are too few for.
    """
    rule, described = federation.robust.edge_rule(), schema(federation)
    fresh: dict[str, bytes] = {}
    for role in sorted(base):
        start = unpack(blobs[base[role].hash], described)
        updates = [
            Contribution(
                float(answers[device].samples),
                partial(_read, blobs, answers[device].parts[role], start, federation),
            )
            for device in sorted(answers)
        ]
        part = combine(rule, updates, start)
        if part is not None:
            fresh[role] = pack(part)
    return fresh


def two_phases(
    reports: Mapping[str, SiteReport],
    method: Method,
    assignment: Mapping[str, int],
    parts: Mapping[str, PartRef],
    blobs: Mapping[str, bytes],
    federation: Federation,
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Part name -> canonical bytes, for every part that somebody reported; the others stay as they are.

    `parts` is the generation that the round started from. Second: part name -> why it stays although it was
    reported, when there are too few reports of it for the cloud's rule.
    """
    rule, described = federation.robust.cloud_rule(), schema(federation)
    unprotected: dict[str, str] = {}

    def base(name: str) -> Part:
        return unpack(blobs[parts[name].hash], described)

    def as_report(site: str, report: SiteReport) -> aggregation.Report:
        served = method.served(assignment[site])

        def load(role: str) -> Part:
            return _read(blobs, report.parts[role], base(served[role]), federation)

        return aggregation.Report(dict.fromkeys(report.parts, float(report.weight)), load)

    def new(name: str, updates: Sequence[Contribution]) -> Part | None:
        if reason := unsupported(rule, len(updates)):
            unprotected[name] = reason
            return None
        return combine(rule, updates, base(name))

    weighed = {site: as_report(site, report) for site, report in sorted(reports.items()) if report.weight}
    scopes = {role.name: role.scope for role in method.roles}
    means = aggregation.phases(weighed, scopes, assignment, method.clusters, new)
    fresh = {name: pack(mean) for name, mean in means if mean is not None}
    return fresh, unprotected


def _read(blobs: Mapping[str, bytes], hash: str, base: Part, federation: Federation) -> Part:
    return decode(federation.wire.encoding, blobs[hash], base, schema(federation))
