"""Certificates are replaced and links cut in the middle of a campaign: no round, no update is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from broker import certificates
from fedbac_edge.protocol.messages import RoundSummary


def test_rotation_in_the_middle_of_rounds(
    orchard: Any, until: Callable[..., None], said: Callable[[], list[str]]
) -> None:
    for user in orchard.users:
        if user not in ("cloud", "observer"):
            orchard.start(user)
    cloud = orchard.start("cloud", until=lambda node: node.machine.state.phase == "finished")
    serials = set()
    for round in (2, 4, 6):
        until(lambda round=round: cloud.round >= round, f"round {round}")
        for user in orchard.users:
            pair = certificates.issue(orchard.keys, user, replace=True)
            serials.add(pair.certificate.read_bytes())
        orchard.link.cut()
    cloud.join(60)
    summaries = [
        msgspec.convert(line.detail, RoundSummary) for line in cloud.ledger if line.kind == "summary"
    ]
    rounds = [summary for summary in summaries if summary.phase == "train"]
    assert [summary.round for summary in rounds] == list(range(1, 9))
    for summary in rounds:
        for name, site in summary.sites.items():
            assert (site.asked, site.answered, site.refused, site.void) == (2, 2, 0, ""), (
                summary.round,
                name,
            )
    assert len(serials) == 3 * len(orchard.users)
    for user, tier in orchard.tiers.items():
        assert tier.connections >= 4, user
    assert said() == []
