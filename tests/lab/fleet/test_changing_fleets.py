"""Settings that change in mid-life: the cloud starts again with another file, and the fleet follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fedbac_edge.protocol.device.machine import Device
from fedbac_edge.protocol.events import Channel, Log, Received
from fedbac_edge.protocol.messages import GatewayTask, TrainTask

Build = Callable[..., Any]


def change(fleet: Any, **new: Any) -> None:
    """Stop the cloud, change its file, start it."""
    fleet.federation = msgspec.structs.replace(fleet.federation, **new)
    fleet.world.crash("cloud", restart_s=1.0)


def test_a_setting_changes_with_the_next_round_on_all_tiers(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=6))
    assert fleet.run_to_round(2)
    before = fleet.federation
    training = msgspec.structs.replace(before.training, learning_rate=0.5, learning_rate_decay=1.0)
    selection = msgspec.structs.replace(before.selection, participation=0.5)
    change(fleet, training=training, selection=selection, rounds=8)
    assert fleet.run_to_round(4)
    assert fleet.world.run(lambda: isinstance(fleet.device("d1").task, TrainTask))
    assert fleet.run_to_round(6)
    task = fleet.gateway("gw1").task
    assert isinstance(task, GatewayTask)
    assert task.training.learning_rate == 0.5
    assert fleet.gateway("gw1").federation == fleet.federation
    device = fleet.world.processes["d1"].node.machine
    assert isinstance(device, Device)
    assert device.federation == fleet.federation, "devices hear it, too"
    assert fleet.run()
    asked = {line.round: line.detail["asked"] for line in fleet.ledger("gw1", "selected")}
    assert len(asked[1]) == 1
    assert max(asked) == 8, "two rounds more"
    assert {line.subject for line in fleet.ledger("cloud", "setting")} == {
        "rounds",
        "training.learning_rate",
        "training.learning_rate_decay",
        "selection.participation",
    }
    assert {line.subject for line in fleet.ledger("gw1", "setting")} >= {"training.learning_rate", "rounds"}


@pytest.mark.parametrize("tier", ["edge", "cloud"])
def test_the_open_round_closes_by_the_settings_that_it_began_with(
    build: Build, settings: Build, tier: str
) -> None:
    """The change is heard before the answers are there; it counts from the next round on."""
    rule = {tier: "clip", f"{tier}_clip_norm": 1e-6}
    quiet, changed = build(settings(rounds=4)), build(settings(rounds=4))
    assert quiet.run()
    assert changed.run_to_round(2)
    change(changed, robust=msgspec.structs.replace(changed.federation.robust, **rule))
    assert changed.run()
    if tier == "edge":
        (heard,) = [line for line in changed.ledger("gw1", "setting") if line.subject == "robust.edge"]
        (closed,) = changed.ledger("gw1", "closed", 2)
        assert heard.id < closed.id, "or this test shows nothing"
    (restarted,) = [line for line in changed.ledger("cloud", "setting") if line.subject == f"robust.{tier}"]
    assert restarted.id < changed.ledger("cloud", "aggregated", 2)[0].id
    models = [
        [fleet.ledger("cloud", "aggregated", round)[0].detail for round in (1, 2, 3)]
        for fleet in (quiet, changed)
    ]
    assert models[0][:2] == models[1][:2]
    assert models[0][2] != models[1][2], "and from the next round on it counts"


def test_more_devices_are_asked_when_the_share_grows(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=6))
    assert fleet.run_to_round(2)
    change(fleet, selection=msgspec.structs.replace(fleet.federation.selection, participation=1.0))
    assert fleet.run()
    asked = {line.round: line.detail["asked"] for line in fleet.ledger("gw1", "selected")}
    assert len(asked[1]) == 1
    assert asked[4] == asked[6] == ["d1", "d2"]


def test_a_campaign_that_is_over_goes_on_with_more_rounds(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=3))
    assert fleet.run()
    change(fleet, rounds=5)
    assert fleet.run_to_round(4)
    assert fleet.run()
    assert fleet.cloud.round == 5
    through = build(settings(rounds=5))
    assert through.run()
    assert fleet.cloud.round == through.cloud.round


def test_fewer_rounds_end_it_at_the_next_one(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=9))
    assert fleet.run_to_round(4)
    change(fleet, rounds=2)
    assert fleet.run()
    assert fleet.cloud.round == 4


def test_a_gateway_more_takes_part(build: Build, settings: Build) -> None:
    """`clusters = 0`: the newcomer joins a cluster that there is, and trains with the next round."""
    fleet = build(settings(rounds=6, gateways={"gw1": ("d1", "d2")}))
    assert fleet.run_to_round(2)
    wider = {"gw1": ("d1", "d2"), "gw2": ("d3", "d4")}
    change(fleet, gateways=wider)
    fleet.add_gateway("gw2", at=fleet.world.now + 5)
    fleet.add_device("gw2", "d3", at=fleet.world.now + 5)
    fleet.add_device("gw2", "d4", at=fleet.world.now + 5)
    assert fleet.run()
    rounds = {line.round: line.detail["asked"] for line in fleet.ledger("cloud", "round")}
    assert rounds[1] == ["gw1"]
    assert rounds[6] == ["gw1", "gw2"]
    assert fleet.cloud.assignment == {"gw1": 0, "gw2": 0}
    assert any(line.subject == "gw2" for line in fleet.ledger("cloud", "reported", 6))


def test_without_a_change_nothing_changes(build: Build, settings: Build) -> None:
    """A cloud that starts again with the same file: equal bits, no line."""
    quiet, restarted = build(settings()), build(settings())
    assert quiet.run()
    assert restarted.run_to_round(2)
    change(restarted)
    assert restarted.run()
    assert restarted.hashes() == quiet.hashes()
    assert not restarted.ledger("cloud", "setting")
    assert not restarted.ledger("gw1", "setting")


def test_a_specification_that_a_cloud_would_not_send_is_not_believed(build: Build, settings: Build) -> None:
    fleet = build(settings())
    assert fleet.run_to_round(2)
    machine = fleet.world.processes["gw1"].node.machine
    spec = machine.state.spec
    other = msgspec.structs.replace(spec, federation=msgspec.structs.replace(spec.federation, seed=99))
    (line,) = machine.handle(Received(Channel("spec"), other), fleet.world.now)
    assert isinstance(line, Log)
    assert line.detail == {"why": "it changes seed: 1 -> 99"}
    assert machine.state.spec == spec


def test_who_is_not_on_the_list_is_not_asked_until_it_is(build: Build, settings: Build) -> None:
    """An open fleet with lists: the gateway and the cloud hold strangers off, access list or not."""
    fleet = build(settings(rounds=8, eligibility="online", gateways={"gw1": ("d1",)}))
    fleet.add_device("gw1", "d2")
    fleet.add_gateway("gw7")
    fleet.add_device("gw7", "d7")
    assert fleet.run_to_round(3)
    assert fleet.subjects("gw1", "unlisted") == ["d2"]
    assert {name for line in fleet.ledger("gw1", "selected") for name in line.detail["asked"]} == {"d1"}
    assert {name for line in fleet.ledger("cloud", "round") for name in line.detail["asked"]} == {"gw1"}
    status = fleet.world.processes["gw1"].node.machine.status("online").message
    assert (status.devices, status.online) == (1, 1)
    selection = msgspec.structs.replace(fleet.federation.selection, participation=1.0)
    change(fleet, gateways={"gw1": ("d1", "d2")}, selection=selection)
    assert fleet.run()
    asked = {line.round: line.detail["asked"] for line in fleet.ledger("gw1", "selected")}
    assert asked[8] == ["d1", "d2"], "its status was heard before it was listed"
