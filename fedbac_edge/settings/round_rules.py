"""The settings that decide how an open round closes: those that it began with.

A live setting counts from the next round on, and a change can be heard in the middle of one. What travels in
the task is safe from that; these settings are read when answers come and when the round closes, so each tier
keeps them with the round.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from fedbac_edge.settings.federation import DeadlineTable, Federation, RobustTable, SelectionTable


class RoundRules(msgspec.Struct, frozen=True, kw_only=True):
    """See the module; part of a tier's state."""

    selection: SelectionTable
    deadlines: DeadlineTable
    robust: RobustTable
    cloud_weight: Literal["data", "participants"]


def rules_of(federation: Federation) -> RoundRules:
    """What a round that begins now goes by."""
    return RoundRules(
        selection=federation.selection,
        deadlines=federation.deadlines,
        robust=federation.robust,
        cloud_weight=federation.method.cloud_weight,
    )


def by_rules(federation: Federation, rules: RoundRules | None) -> Federation:
    """The federation as the open round knows it; None: no round has begun."""
    if rules is None:
        return federation
    return replace(
        federation,
        selection=rules.selection,
        deadlines=rules.deadlines,
        robust=rules.robust,
        method=replace(federation.method, cloud_weight=rules.cloud_weight),
    )
