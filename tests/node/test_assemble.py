"""The tiers put together: who listens where, and which store a tier may go on with."""

from __future__ import annotations

import msgspec
import pytest

from broker import wire
from fedbac_edge.federation_file import reading
from fedbac_edge.node import assemble
from fedbac_edge.node.store import Store, StoreError
from fedbac_edge.protocol.cloud.machine import Cloud
from fedbac_edge.protocol.device.state import DeviceState, Profile
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.settings.federation import Federation

INSTANCE = "0badcafe"
PROFILE = Profile(samples=1, labelled=1, holdout=0)


@pytest.fixture
def federation() -> Federation:
    return reading.parse('name = "t"\nrounds = 3\n[model]\nclasses = ["a", "b"]\ninput = [1, 16, 16]\n')


def spec(federation: Federation, instance: str = INSTANCE) -> Spec:
    return Spec(federation=federation, instance=instance, software="")


def test_each_tier_hears_its_own_topics(federation: Federation) -> None:
    cloud = assemble.cloud(federation, INSTANCE, Store(None))
    gateway = assemble.gateway("t", "gw1", Store(None))
    device = assemble.device(spec(federation), "gw1", "d1", PROFILE, Store(None))
    root = "fedbac/v1/t"
    assert set(cloud.subscriptions()) >= {f"{root}/edge/+/{leaf}" for leaf in ("status", "reply", "update")}
    assert set(gateway.subscriptions()) >= {
        f"{root}/spec",
        f"{root}/edge/gw1/task",
        f"{root}/edge/gw1/receipt",
        *(f"{root}/edge/gw1/device/+/{leaf}" for leaf in ("status", "reply", "update")),
    }
    assert set(device.subscriptions()) >= {
        f"{root}/spec",
        *(f"{root}/edge/gw1/device/d1/{leaf}" for leaf in ("task", "receipt")),
    }
    foreign = f"{root}/edge/gw2/", f"{root}/edge/gw1/device/d2/"
    assert not [f for node in (gateway, device) for f in node.subscriptions() if f.startswith(foreign)]
    assert cloud.will().topic == f"{root}/cloud/status"
    assert gateway.will().topic == f"{root}/edge/gw1/status"
    assert device.will().topic == f"{root}/edge/gw1/device/d1/status"


def test_a_cloud_goes_on_where_it_was(federation: Federation) -> None:
    store = Store(None)
    first = assemble.cloud(federation, INSTANCE, store)
    first.start(0.0)
    again = assemble.cloud(federation, "ffffffff", store)
    assert again.machine.state.instance == INSTANCE, "drawn once"
    assert again.machine.state == first.machine.state


def test_other_settings_are_refused_and_newer_defaults_are_not(federation: Federation) -> None:
    store = Store(None)
    assemble.cloud(federation, INSTANCE, store)
    with pytest.raises(StoreError, match="belongs to a run of 't' with other settings"):
        assemble.cloud(msgspec.structs.replace(federation, seed=99), INSTANCE, store)
    fields = msgspec.to_builtins(federation)
    del fields["training"]["threads"]  # as an older version wrote it, which knew no such setting
    del fields["evaluation"]
    store.write("federation", msgspec.msgpack.encode(fields))
    assert assemble.cloud(federation, INSTANCE, store)


def test_an_open_fleet_may_grow_in_the_middle_of_a_campaign(federation: Federation) -> None:
    """A device on the list, another deadline: the campaign goes on and the new description goes out."""
    fleet = msgspec.structs.replace(federation, eligibility="online", gateways={"gw1": ("d1",)})
    grown = {"gw1": ("d1", "newcomer")}
    store = Store(None)
    assemble.cloud(fleet, INSTANCE, store).start(0.0)
    wider = msgspec.structs.replace(fleet, gateways=grown)
    again = assemble.cloud(wider, INSTANCE, store)
    again.start(1.0)
    again.connected(True, None, 2.0)
    published = [payload for topic, payload, _, _ in store.owned() if topic.endswith("/spec")]
    assert wire.decode(published[0] or b"", Spec).federation == wider
    further = assemble.cloud(
        msgspec.structs.replace(wider, gateways={**grown, "gw9": ("d9",)}), INSTANCE, store
    )
    assert isinstance(further.machine, Cloud)
    assert further.machine.federation.cluster_count == 1, "one more gateway, no cluster more"


@pytest.mark.parametrize("written", [b"", b"\xc1", b"\x80", msgspec.msgpack.encode({"session": "x"})])
def test_a_state_that_cannot_be_read_is_named(federation: Federation, written: bytes) -> None:
    store = Store(None)
    store.write("machine", written)
    with pytest.raises(StoreError, match="not readable as DeviceState"):
        assemble.device(spec(federation), "gw1", "d1", PROFILE, store)


def test_a_device_keeps_its_session_but_nothing_else_in_a_new_federation(federation: Federation) -> None:
    store = Store(None)
    old = DeviceState(instance="ffffffff", session=7, phase="answered", why="x")
    store.write("machine", msgspec.msgpack.encode(old))
    device = assemble.device(spec(federation), "gw1", "d1", PROFILE, store)
    assert device.machine.state == DeviceState(instance=INSTANCE, session=7)


def test_a_state_of_older_software_is_read(federation: Federation) -> None:
    """Fields that came later have defaults, fields that went are skipped."""
    store = Store(None)
    store.write("machine", msgspec.msgpack.encode({"instance": INSTANCE, "session": 3, "no longer": 1}))
    device = assemble.device(spec(federation), "gw1", "d1", PROFILE, store)
    assert device.machine.state == DeviceState(instance=INSTANCE, session=3)
