"""Which parts a method has, who shares them, and how they start."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedbac_edge.federation_file import reading
from fedbac_edge.methods import METHODS, UnknownMethod, method
from fedbac_edge.models.catalog import architecture
from fedbac_edge.parts.part import Part
from fedbac_edge.settings.federation import Federation


def federation(**tables: str) -> Federation:
    text = f"""
    name = "t"
    [model]
    classes = ["a", "b"]
    input = [1, 16, 16]
    [method]
    {tables.get("method", "")}
    [assignment]
    {tables.get("assignment", "")}
    [training]
    {tables.get("training", "")}
    [gateways]
    gw1 = []
    gw2 = []
    gw3 = []
    """
    return reading.parse(text)


def equal(one: Part, other: Part) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def initial(**tables: str) -> dict[str, Part]:
    model = architecture("lenet", (1, 16, 16), 2)
    return method(federation(**tables)).initial(model, 7)


def test_fedbac_has_one_global_part_and_a_part_per_cluster() -> None:
    found = method(federation())
    assert list(found.parts()) == ["global", "cluster-0", "cluster-1", "cluster-2"], "K_max: one per gateway"
    assert found.served(2) == {"global": "global", "cluster": "cluster-2"}
    assert found.served_view.coefficients() == {"global": 1.0, "cluster": 1.0}, (
        "a plain sum, never divided by 2"
    )
    assert {role.name: role.l2 for role in found.roles} == {"global": 0.0, "cluster": 1e-3}
    assert found.reassigns


def test_lambda_and_k_max_are_settings() -> None:
    found = method(federation(method="clusters = 5", training="cluster_l2 = 0.25"))
    assert len(found.parts()) == 6
    assert [role.l2 for role in found.roles] == [0.0, 0.25]


@pytest.mark.parametrize(
    ("tables", "reassigns"),
    [({}, True), ({"assignment": 'method = "fixed"'}, False), ({"method": "clusters = 1"}, False)],
)
def test_who_holds_sweeps(tables: dict[str, Any], reassigns: bool) -> None:
    assert method(federation(**tables)).reassigns == reassigns


def test_all_clusters_start_from_one_common_draw_distinct_from_the_global_one() -> None:
    parts = initial()
    assert equal(parts["cluster-0"], parts["cluster-2"])
    assert not equal(parts["global"], parts["cluster-0"]), "equal networks would get equal gradients"
    assert all(equal(parts[name], part) for name, part in initial().items()), "a seed is a seed"
    assert equal(initial(method='cluster_start = "warm"')["cluster-1"], parts["cluster-1"])


def test_each_cluster_its_own_draw_is_an_option() -> None:
    parts = initial(method='cluster_start = "each"')
    names = sorted(parts)
    assert not any(equal(parts[a], parts[b]) for a in names for b in names if a < b)


def test_hierfavg_is_one_network() -> None:
    found = method(federation(method='name = "hierfavg"'))
    assert list(found.parts()) == ["global"]
    assert found.served(0) == {"global": "global"}
    assert not found.reassigns


def test_an_unknown_method_names_those_that_exist() -> None:
    known = federation()
    wrong = type(known)(name="t", model=known.model, method=type(known.method)(name="fedbuck"))
    with pytest.raises(UnknownMethod) as refusal:
        method(wrong)
    assert "'fedbuck'" in str(refusal.value)
    assert all(name in str(refusal.value) for name in METHODS)


def test_methods_that_train_jointly_can_take_samples_without_labels() -> None:
    """Fed-BAC and its kin alike; HASSLE has a way of its own."""
    for name in sorted(METHODS):
        ignoring, taking = (
            method(federation(method=f'name = "{name}"', training=more))
            for more in ("", 'unlabelled = "pseudo"')
        )
        if name == "hassle":
            assert taking == ignoring
            continue
        assert (ignoring.usable(3, 40), taking.usable(3, 40)) == (3, 43)
        assert ignoring.roles == taking.roles
        assert taking.trained(1, 40, 40) == tuple(role.name for role in taking.roles)
