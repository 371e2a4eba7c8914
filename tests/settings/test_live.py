"""What may change in the middle of a federation's life, and what is refused by name with both values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedbac_edge.federation_file import reading
from fedbac_edge.node import assemble
from fedbac_edge.node.store import Store, StoreError
from fedbac_edge.settings import live
from fedbac_edge.settings.federation import Federation, HassleTable

INSTANCE = "0badcafe"


def fleet(head: str = "", more: str = "", gateways: str = 'gw1 = ["d1"]') -> Federation:
    return reading.parse(
        f'name = "t"\nrounds = 5\n{head}\n[model]\nclasses = ["a", "b"]\ninput = [1, 16, 16]\n{more}\n'
        f"[gateways]\n{gateways}\n"
    )


def start(federation: Federation, store: Store) -> Any:
    return assemble.cloud(federation, INSTANCE, store).machine


def test_each_setting_is_of_one_kind() -> None:
    """A setting that is added must be put into one table or the other."""
    described = set(live.settings_of(fleet()))
    assert set(live.LIVE) | set(live.IDENTITY) == described
    assert not set(live.LIVE) & set(live.IDENTITY)


def test_the_documentation_names_what_stays() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
    stays = text[text.index("| stays as it began") :]
    stays = stays[: stays.index("\n\n")]
    for setting in live.IDENTITY:
        table, _, name = setting.rpartition(".")
        assert f"`{name}`" in stays or f"`{setting}`" in stays or f"`[{table}]`" in stays, setting


@pytest.mark.parametrize("eligibility", ["online", "roster"])
def test_live_settings_change_with_a_ledger_line(eligibility: str) -> None:
    head, store = f'eligibility = "{eligibility}"', Store(None)
    start(fleet(head), store)
    changed = fleet(head, "[training]\nlearning_rate = 0.002")
    changed = msgspec.structs.replace(changed, rounds=9, gateways={"gw1": ("d1", "d2")})
    machine = start(changed, store)
    assert machine.federation == changed
    assert machine.state.contested, "the new description goes out"
    lines = {line.subject: (line.round, line.detail) for line in store.ledger(kind="setting")}
    assert lines == {
        "rounds": (1, {"before": 5, "after": 9}),
        "training.learning_rate": (1, {"before": 0.01, "after": 0.002}),
        "gateways.gw1": (1, {"before": ["d1"], "after": ["d1", "d2"]}),
    }
    start(changed, store)
    assert len(store.ledger(kind="setting")) == 3, "once"


def test_what_cannot_change_is_named_with_both_values() -> None:
    store = Store(None)
    start(fleet(), store)
    other = msgspec.structs.replace(
        fleet(more="[method]\nclusters = 3"),
        seed=7,
        model=msgspec.structs.replace(fleet().model, classes=("a", "b", "c")),
    )
    with pytest.raises(StoreError) as error:
        start(other, store)
    said = str(error.value)
    assert "seed: 1 -> 7" in said
    assert 'model.classes: ["a","b"] -> ["a","b","c"]' in said
    assert "method.clusters: 1 -> 3" in said
    assert "rounds:" not in said, "only what differs"
    assert "fedbac init --from" in said
    assert start(fleet(), store).federation == fleet(), "nothing of it was stored"


def test_a_gateway_more_joins_the_clusters_that_there_are() -> None:
    """`clusters = 0` is one per gateway of the list that the federation began with."""
    store, wider = Store(None), 'gw1 = ["d1"]\ngw2 = ["d2"]'
    start(fleet(), store)
    machine = start(fleet(gateways=wider), store)
    assert machine.method.clusters == 1
    assert set(machine.federation.gateways) == {"gw1", "gw2"}
    for again in (fleet(gateways=wider), fleet(more="[method]\nclusters = 1", gateways=wider), fleet()):
        assert start(again, store).method.clusters == 1
    with pytest.raises(StoreError, match=r"method\.clusters: 1 -> 2"):
        start(fleet(more="[method]\nclusters = 2", gateways=wider), store)


def test_places_are_held_to_the_clusters_that_there_are() -> None:
    store = Store(None)
    start(fleet(), store)
    beyond = fleet(more="[method]\nplaces = { gw2 = 1 }", gateways='gw1 = ["d1"]\ngw2 = ["d2"]')
    with pytest.raises(reading.FederationError, match="gw2 in cluster 1, but there are 1"):
        start(beyond, store)


def test_a_site_of_its_own_is_no_gateway_more() -> None:
    """Where every site has a network of its own, one more is another federation."""
    store, local = Store(None), '[method]\nname = "local"'
    start(fleet(more=local), store)
    with pytest.raises(StoreError, match=r"method\.clusters: 1 -> 2"):
        start(fleet(more=local, gateways='gw1 = ["d1"]\ngw2 = ["d2"]'), store)


def test_a_table_left_out_is_its_defaults() -> None:
    hassle = fleet(more='[method]\nname = "hassle"')
    said = msgspec.structs.replace(hassle, hassle=HassleTable())
    assert not live.changes(hassle, said)
    sharper = msgspec.structs.replace(hassle, hassle=HassleTable(tau_s=1.5))
    assert [str(change) for change in live.changes(hassle, sharper)] == ["hassle.tau_s: 2.0 -> 1.5"]
    assert live.restarts_trainers(hassle, sharper)
    assert not live.restarts_trainers(hassle, msgspec.structs.replace(hassle, rounds=99))


def test_campaigns_of_an_older_store_count_on_from_where_they_were() -> None:
    """Rounds of earlier campaigns stay as many as they were when `rounds` changes."""
    store = Store(None)
    machine = start(fleet(), store)
    machine.state.campaign, machine.state.round = 3, 12
    store.write("machine", msgspec.msgpack.encode(machine.state))
    longer = start(msgspec.structs.replace(fleet(), rounds=8), store)
    assert (longer.state.campaign_after, longer.campaign.last_round) == (10, 18)
