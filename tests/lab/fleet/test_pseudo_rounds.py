"""Fed-BAC where devices without a label take part: they are asked, they count, sites weigh by all data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Build = Callable[..., Any]
DEVICES = {"d1": (40, 0), "d2": (30, 70), "d3": (0, 100), "d4": (0, 50)}
"""Labelled and unlabelled samples: nobody at gw2 has a label."""


@pytest.mark.parametrize("kind", ["ignore", "pseudo"])
def test_devices_without_labels_take_part_with_pseudo_labels_only(
    settings: Build, build: Build, kind: str
) -> None:
    more = f'[training]\nunlabelled = "{kind}"\n[selection]\nparticipation = 1.0'
    federation = settings(rounds=2, more=more, head="seed = 3")
    fleet = build(federation, without=tuple(DEVICES))
    taking = kind == "pseudo"
    for gateway, devices in federation.gateways.items():
        for device in devices:
            labelled, unlabelled = DEVICES[device]
            if not labelled and not taking:
                continue
            fleet.add_device(
                gateway,
                device,
                samples=labelled + unlabelled * taking,
                unlabelled=unlabelled * taking,
                holdout=10 if labelled else 0,
            )
    weights: dict[str, tuple[int, int]] = {}

    def over() -> bool:
        for gateway, report in fleet.cloud.reports.items():
            weights[gateway] = (report.weight, report.unlabelled)
        return bool(fleet.cloud.phase == "finished")

    assert fleet.world.run(over)
    for round in (1, 2):
        assert sorted(fleet.subjects("gw1", "accepted", round)) == ["d1", "d2"]
        assert sorted(fleet.subjects("gw2", "accepted", round)) == (["d3", "d4"] if taking else [])
    assert fleet.ledger("gw2", "declined") == []
    # n_m is all data of a site, of every kind that it learns from.
    assert weights == ({"gw1": (140, 70), "gw2": (150, 150)} if taking else {"gw1": (70, 0), "gw2": (0, 0)})
