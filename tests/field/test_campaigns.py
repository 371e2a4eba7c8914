"""A fleet without a last round: campaigns follow each other, and ledgers do not grow for ever."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fedbac_edge.lab.fleet.world import Process, World
from fedbac_edge.lab.trials import trials
from fedbac_edge.node import assemble
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.settings.federation import Federation

T = 4


def continuing(federation: Federation, going_on: bool = True, **options: Any) -> trials.Trial:
    trial = trials.Trial(federation, World())
    trial.add_all(lambda name: Store(None))
    cloud = trial.world.processes["cloud"]
    make_cloud(trial, cloud, going_on, **options)
    return trial


def make_cloud(trial: trials.Trial, cloud: Process, going_on: bool, **options: Any) -> None:
    def clock() -> float:
        return trial.world.now

    cloud.make = lambda store: assemble.cloud(
        trial.federation, trials.INSTANCE, store, clock, continuing=going_on, **options
    )


def state_of(trial: trials.Trial) -> CloudState:
    assert trial.cloud is not None
    return trial.cloud


def run_to(trial: trials.Trial, round: int) -> bool:
    def there() -> bool:
        state = trial.cloud
        return state is not None and (state.round, state.phase) == (round, "training")

    return trial.world.run(there)


@pytest.fixture(scope="module")
def federation() -> Federation:
    federation = trials.federation_of((2, 2, T, "float32"))
    training = msgspec.structs.replace(
        federation.training, learning_rate=0.1, learning_rate_decay=0.5, learning_rate_floor=0.01
    )
    return msgspec.structs.replace(federation, training=training)


def test_campaigns_follow_each_other(federation: Federation) -> None:
    trial = continuing(federation)
    assert run_to(trial, 3 * T + 1)
    store = trial.world.processes["cloud"].store
    assert [line.round for line in store.ledger("finished")] == [T, 2 * T, 3 * T]
    assert [line.detail["number"] for line in store.ledger("campaign")] == [2, 3, 4]
    # A sweep after every second round but the last of a campaign, and t/T inside its campaign.
    sweeps = store.ledger("sweep")
    assert sorted({line.round for line in sweeps}) == [2, T + 2, 2 * T + 2]
    progress = {context[3] for line in sweeps for context in line.detail["contexts"]}
    assert progress == {2 / T}
    # The models of a campaign are where the next one starts.
    aggregated = {line.round: line.detail["parts"] for line in store.ledger("aggregated")}
    assert store.ledger("finished")[0].detail["parts"] == aggregated[T]
    assert len({str(parts) for parts in aggregated.values()}) == 3 * T


def test_the_learning_rate_has_a_floor(federation: Federation) -> None:
    assert [federation.learning_rate(t) for t in (1, 2, 4, 5, 1000)] == [0.1, 0.05, 0.0125, 0.01, 0.01]
    low = msgspec.structs.replace(federation.training, learning_rate=1e-5)
    assert msgspec.structs.replace(federation, training=low).learning_rate(1) == 1e-5
    none = msgspec.structs.replace(federation.training, learning_rate_floor=0.0)
    assert msgspec.structs.replace(federation, training=none).learning_rate(10**9) > 0


def test_a_finished_federation_goes_on_when_it_is_told_to(federation: Federation) -> None:
    trial = continuing(federation, going_on=False)
    assert trial.finish()
    assert state_of(trial).round == T
    cloud = trial.world.processes["cloud"]
    trial.world.crash("cloud", 1.0)
    assert trial.world.run(lambda: trial.cloud is not None, 1e6)
    assert state_of(trial).phase == "finished"
    make_cloud(trial, cloud, going_on=True)
    trial.world.crash("cloud", 1.0)
    assert trial.world.run(lambda: trial.cloud is not None and state_of(trial).round == 2 * T)
    # Told to stop again: this campaign is held to its end.
    make_cloud(trial, cloud, going_on=False)
    trial.world.crash("cloud", 1.0)
    assert trial.world.run(lambda: trial.cloud is not None and state_of(trial).phase == "finished")
    assert (state_of(trial).round, state_of(trial).campaign) == (2 * T, 2)


def test_one_campaign_is_what_it_was(federation: Federation) -> None:
    """Up to its last round a fleet that goes on afterwards computes the same."""
    once, on = continuing(federation, going_on=False), continuing(federation)
    assert once.finish()
    assert run_to(on, T + 1)
    store = on.world.processes["cloud"].store
    assert store.ledger("finished")[0].detail["parts"] == once.hashes()


def test_the_ledger_keeps_the_last_rounds(federation: Federation) -> None:
    trial = continuing(federation, ledger_rounds=3)
    assert run_to(trial, 3 * T)
    lines = trial.world.processes["cloud"].store.ledger()
    assert min(line.round for line in lines) == 3 * T - 2
    assert {line.round for line in lines if line.kind == "aggregated"} == {3 * T - 2, 3 * T - 1}


def test_a_stranger_cannot_empty_the_ledger() -> None:
    store = Store(None)
    for round in (1, 2, 3):
        store.log(0.0, round, "round", "", {})
        store.log(0.0, 10**9, "refused", "stranger", {})
    assert store.collect_ledger(3, {"refused"}) == 4
    assert [line.round for line in store.ledger()] == [3, 10**9]
    assert store.collect_ledger(4, {"refused"}) == 0
