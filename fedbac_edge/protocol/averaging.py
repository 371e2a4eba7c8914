"""From stored updates to new parts, in name order, by each tier's rule: a weighted mean, or one of `robust`.

Updates are stored as they came. They are decoded on top of the part that they were trained from when the rule
reads them, so memory holds no more of them than the rule needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from fedbac_edge.methods import method
from fedbac_edge.methods.method import Method, weight_of
from fedbac_edge.parts import aggregation
from fedbac_edge.parts.aggregation import Contribution
from fedbac_edge.parts.encodings import decode
from fedbac_edge.parts.part import Part, Schema, pack, unpack
from fedbac_edge.parts.robust import combine, unsupported
from fedbac_edge.protocol.cloud.state import SiteReport
from fedbac_edge.protocol.gateway import gate
from fedbac_edge.protocol.gateway.state import Answer
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import PartRef, Parts


def unprotected(answers: Mapping[str, Answer], federation: Federation) -> dict[str, str]:
    """Role -> why it stays as it is although devices trained it: they are too few for the gateway's rule."""
    rule = federation.robust.edge_rule()
    counts = Counter(role for answer in answers.values() for role in answer.parts)
    reasons = {role: unsupported(rule, count) for role, count in sorted(counts.items())}
    return {role: reason for role, reason in reasons.items() if reason}


def edge_averages(
    answers: Mapping[str, Answer], base: Parts, blobs: Mapping[str, bytes], federation: Federation
) -> dict[str, bytes]:
    """Role -> canonical bytes of the new part over the devices that trained it, weighted by the role's kind
    of samples. A role that no device trained, or too few did, is not there.

    `base` are the parts that they trained.
    """
    rule, schemas, kept = (
        federation.robust.edge_rule(),
        gate.schemas(federation),
        unprotected(answers, federation),
    )
    fresh: dict[str, bytes] = {}
    for role in sorted(method(federation).roles, key=lambda role: role.name):
        trained = {device: answer for device, answer in sorted(answers.items()) if role.name in answer.parts}
        if not trained or role.name in kept:
            continue
        schema = schemas[role.name]
        start = unpack(blobs[base[role.name].hash], schema)
        updates = [
            Contribution(
                float(weight_of(role, answer.samples, answer.unlabelled)),
                partial(
                    _read,
                    blobs,
                    answer.parts[role.name],
                    start,
                    schema,
                    federation,
                    answer.shortened.get(role.name, 1.0),
                ),
            )
            for answer in trained.values()
        ]
        part = combine(rule, updates, start)
        if part is not None:
            fresh[role.name] = pack(part)
    return fresh


def two_phases(
    reports: Mapping[str, SiteReport],
    described: Method,
    assignment: Mapping[str, int],
    parts: Mapping[str, PartRef],
    blobs: Mapping[str, bytes],
    federation: Federation,
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Part name -> canonical bytes, for every part that was reported; the others stay as they are.

    `parts` is the generation that the round started from. Second: part name -> why it stays although it was
    reported, when there are too few reports of it for the cloud's rule.
    """
    rule, schemas, roles = federation.robust.cloud_rule(), gate.schemas(federation), described.parts()
    kept: dict[str, str] = {}

    def base(name: str) -> Part:
        return unpack(blobs[parts[name].hash], schemas[roles[name].name])

    def as_report(site: str, report: SiteReport) -> aggregation.Report:
        served = described.served(assignment[site])

        def load(role: str) -> Part:
            factor = report.shortened.get(role, 1.0)
            return _read(blobs, report.parts[role], base(served[role]), schemas[role], federation, factor)

        weights = {
            role.name: float(weight_of(role, report.weight, report.unlabelled))
            for role in described.roles
            if role.name in report.parts
        }
        return aggregation.Report(weights, load)

    def new(name: str, updates: Sequence[Contribution]) -> Part | None:
        if reason := unsupported(rule, len(updates)):
            kept[name] = reason
            return None
        return combine(rule, updates, base(name))

    weighed = {site: as_report(site, report) for site, report in sorted(reports.items()) if report.weight}
    scopes = {role.name: role.scope for role in described.roles}
    means = aggregation.phases(weighed, scopes, assignment, described.clusters, new)
    fresh = {name: pack(mean) for name, mean in means if mean is not None}
    return fresh, kept


def _read(
    blobs: Mapping[str, bytes], hash: str, base: Part, schema: Schema, federation: Federation, factor: float
) -> Part:
    """The part in a blob, its step from `base` multiplied by `factor`."""
    part = decode(federation.wire.encoding, blobs[hash], base, schema)
    if factor == 1.0:
        return part
    return {name: base[name] + np.float32(factor) * (array - base[name]) for name, array in part.items()}
