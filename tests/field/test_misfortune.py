"""A small share of the campaigns of `tests/soak`: seeded misfortunes, and deaths at write points."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import wire
from fedbac_edge.lab.fleet.faults import Died
from fedbac_edge.lab.fleet.world import World
from fedbac_edge.lab.trials import trials
from fedbac_edge.lab.trials.dying_store import DyingStore
from fedbac_edge.node import assemble
from fedbac_edge.node.effects import Publish, Subscribe, Unsubscribe
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.messages import DeviceStatus, GatewayTask, Spec
from fedbac_edge.vocabulary.training import LocalTraining

TRAINING = LocalTraining(
    epochs=1, batch_size=1, learning_rate=0.1, momentum=0.0, weight_decay=0.0, clip_norm=1.0, l2={}
)
SMALL: trials.Shape = (1, 1, 2, "int8")
POINTS_APART = 17
"""Of the write points, so many are left out between two that are tried here; every one is in `make soak`."""


@pytest.mark.parametrize("seed", range(24))
def test_a_seed_of_misfortunes(seed: int) -> None:
    outcome = trials.run(seed)
    assert not outcome.wrong, f"python -m fedbac_edge.lab.trials.trials {seed}: {outcome.wrong}"


@pytest.mark.parametrize("role", ["cloud", "gw1", "d11"])
def test_a_death_at_a_write_point(role: str) -> None:
    points = trials.undisturbed(SMALL)[2][role]
    assert points > 100
    for point in range(1, points + 1, POINTS_APART):
        outcome = trials.die_at(SMALL, role, [point])
        assert not outcome.wrong, outcome
        assert outcome.deaths == 1, outcome


def test_dying_over_and_over() -> None:
    """Thirty deaths of one process in a row, some of them while it comes back from another."""
    for role in ("cloud", "gw1", "d11"):
        outcome = trials.die_at(SMALL, role, range(2, 152, 5))
        assert not outcome.wrong, outcome
        assert outcome.deaths > 20, outcome


def test_a_store_dies_where_it_is_told_to_and_keeps_what_was_committed() -> None:
    for deaths, kept in ((1, None), (2, None), (3, b"1")):
        store = DyingStore(deaths=frozenset({deaths}))
        with pytest.raises(Died), store.transaction():
            store.write("key", b"1")
        assert store.read("key") == kept
        assert store.points == ["write", "before commit", "after commit"][:deaths]


def test_a_trial_notices_what_it_is_there_for() -> None:
    """A campaign that could not fail would prove nothing: lost and doubled counts are told."""
    trial = trials.Trial(trials.federation_of(SMALL), World())
    trial.add_all(lambda name: Store(None))
    assert trial.finish()
    assert trial.miscounts() == []
    store = trial.world.processes["gw1"].store
    store.log(0.0, 1, "accepted", "d11", {})
    store.log(0.0, 2, "accepted", "d11", {})
    store.log(0.0, 3, "accepted", "d11", {})
    assert len(trial.miscounts()) == 3


def test_a_device_that_died_before_its_first_word_is_waited_for() -> None:
    """Its will is all that the gateway has: the roster is not complete, and nobody takes it for empty."""
    store = Store(None)
    node = assemble.gateway("trial", "gw1", store)
    node.start(0.0)
    will = DeviceStatus(state="offline", session=1, samples=100, labelled=100, holdout=10)
    node.delivered("fedbac/v1/trial/edge/gw1/device/d11/status", wire.encode(will), 1.0)
    assert not node.machine.state.members["d11"].seen
    birth = DeviceStatus(state="online", session=1, samples=100, labelled=100, holdout=10)
    node.delivered("fedbac/v1/trial/edge/gw1/device/d11/status", wire.encode(birth), 2.0)
    assert node.machine.state.members["d11"].seen
    assert node.machine.state.members["d11"].samples == 100


def test_a_gateway_whose_description_was_lost_asks_for_it_again() -> None:
    """Retained messages come once; a full queue or an expired session can swallow this one, too."""
    node = assemble.gateway("trial", "gw1", Store(None))
    spec = "fedbac/v1/trial/spec"
    assert Subscribe(spec) in node.start(0.0)
    assert Unsubscribe(spec) not in node.connected(True, None, 0.0)
    again = node.tick(61.0)
    assert again.index(Unsubscribe(spec)) < again.index(Subscribe(spec))
    federation = trials.federation_of(SMALL)
    heard = Spec(federation=federation, instance=trials.INSTANCE, software="")
    node.delivered(spec, wire.encode(heard), 62.0)
    assert Unsubscribe(spec) not in node.tick(122.0)
    # A task of a federation that it has not heard of: the description has changed.
    task = GatewayTask(
        instance="11111111",
        round=1,
        cluster=0,
        parts={},
        previous={},
        training=TRAINING,
        deadline_s=1.0,
    )
    effects = node.delivered("fedbac/v1/trial/edge/gw1/task", wire.encode(task), 123.0)
    assert effects.index(Unsubscribe(spec)) < effects.index(Subscribe(spec))


def test_a_cloud_that_died_before_it_could_repair_a_forgetful_broker_does_it_in_its_next_life() -> None:
    """By then the broker has a session of it again: its word "session present" proves nothing any more."""
    store = DyingStore()
    federation = trials.federation_of(SMALL)
    node = assemble.cloud(federation, trials.INSTANCE, store)
    node.start(0.0)
    effects = node.connected(False, None, 0.0)
    while packets := [effect for effect in effects if isinstance(effect, Publish)]:
        effects = [effect for packet in packets for effect in node.published(packet.token)]
    assert not node.unsent()
    owned = {topic for topic, *_ in store.owned()}
    assert len(owned) == 7
    node.disconnected()
    store.deaths = frozenset({len(store.points) + 3})
    with pytest.raises(Died):
        node.connected(False, None, 100.0)
    again = assemble.cloud(federation, trials.INSTANCE, store)
    again.start(0.0)
    assert not [row for row in store.outbox() if row.retain]
    again.connected(True, None, 0.0)
    assert owned <= {row.topic for row in store.outbox()}


@given(last=st.floats(0, 1e6), monotonic=st.floats(0, 1e6))
def test_a_machine_s_clock_does_not_go_back_by_a_rounding(last: float, monotonic: float) -> None:
    """Seconds are differences of two of its times, and a negative one is refused by whoever reads it."""
    store = Store(None)
    with store.transaction():
        store.write("clock", msgspec.msgpack.encode((last, 50.0)))
    node = assemble.gateway("trial", "gw1", store, wall=lambda: 50.0)
    node.start(monotonic)
    now, _ = msgspec.msgpack.decode(store.read("clock") or b"", type=tuple[float, float])
    assert now >= last
