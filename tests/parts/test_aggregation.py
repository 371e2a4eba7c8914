"""Weighted means in a fixed order, and the cloud's two phases."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedbac_edge.parts.aggregation import AggregationError, Report, Scope, phases, two_phase, weighted_mean
from fedbac_edge.parts.part import Part

WEIGHTS = st.lists(st.integers(0, 10_000), min_size=1, max_size=6)
VALUES = st.floats(-1e6, 1e6, width=32)
SCOPES: dict[str, Scope] = {"global": "global", "cluster": "cluster"}


def part(*values: float) -> Part:
    return {"w": np.array(values, np.float32)}


def mean(*items: tuple[Part, float]) -> Part:
    result = weighted_mean(iter(items))
    assert result is not None
    return result


def report(weight: float, shared: float, own: float) -> Report:
    return Report.of(weight, {"global": part(shared), "cluster": part(own)})


def test_a_mean_by_hand() -> None:
    result = mean((part(1.0, -2.0), 1), (part(5.0, 2.0), 3))
    np.testing.assert_array_equal(result["w"], np.array([4.0, 1.0], np.float32))
    assert result["w"].dtype == np.float32


@given(WEIGHTS, st.data())
def test_means_equal_numpys_average(weights: list[int], data: st.DataObject) -> None:
    parts = [{"w": data.draw(arrays(np.float32, (2, 3), elements=VALUES))} for _ in weights]
    result = weighted_mean(zip(parts, weights, strict=True))
    if sum(weights) == 0:
        assert result is None
        return
    assert result is not None
    expected = np.average([p["w"].astype(np.float64) for p in parts], axis=0, weights=weights)
    np.testing.assert_allclose(result["w"], expected, rtol=1e-6, atol=1e-30 + 1e-9 * np.abs(expected).max())


@given(arrays(np.float32, 5, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)), WEIGHTS)
def test_the_mean_of_equal_parts_is_that_part_to_the_bit(values: Any, weights: list[int]) -> None:
    result = mean(*(({"w": values}, weight + 1) for weight in weights))
    assert result["w"].tobytes() == values.tobytes()


def test_sums_are_kept_in_float64() -> None:
    """In float32 the one would vanish beside 1e8."""
    result = mean((part(1e8), 1), (part(1.0), 1), (part(-1e8), 1))
    assert result["w"][0] == np.float32(1 / 3)


def test_nothing_that_weighs_gives_none() -> None:
    assert weighted_mean([]) is None
    assert weighted_mean([(part(1.0), 0), (part(2.0), 0.0)]) is None


def test_a_part_of_no_weight_cannot_spoil_the_mean() -> None:
    result = mean((part(float("nan")), 0), (part(3.0), 2), ({"other": np.zeros(9, np.float32)}, 0))
    assert result["w"][0] == 3.0


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), 2.0**54])
def test_weights_that_are_none_are_refused(weight: float) -> None:
    with pytest.raises(AggregationError, match="weight"):
        weighted_mean([(part(1.0), 1), (part(1.0), weight)])
    with pytest.raises(AggregationError, match="weight"):
        phases({"a": report(weight, 1.0, 1.0)}, SCOPES, {"a": 0}, 1)


@pytest.mark.parametrize(
    "other",
    [
        {"v": np.zeros(1, np.float32)},
        {"w": np.zeros(1, np.float32), "v": np.zeros(1, np.float32)},
        {"w": np.zeros((1, 1), np.float32)},
        {"w": np.zeros(1, np.float64)},
    ],
)
def test_parts_of_another_model_are_refused(other: Any) -> None:
    with pytest.raises(AggregationError):
        weighted_mean([(part(1.0), 1), (other, 1)])


def test_integer_buffers_are_the_firsts_and_never_averaged() -> None:
    def counted(batches: int) -> Any:
        return {"batches": np.array(batches, np.int64), "scale": np.array(batches, np.float32)}

    result = mean((counted(1), 0), (counted(7), 1), (counted(10), 2))
    assert result["batches"].dtype == np.int64
    assert (int(result["batches"]), float(result["scale"])) == (7, 9.0)


def test_inputs_are_left_as_they_were() -> None:
    first, second = part(1.0, 2.0), part(3.0, 4.0)
    buffer: Any = {"n": np.array([5])}
    result = mean((first, 1), (second, 1))
    result["w"][:] = 0
    mean((buffer, 1))["n"][:] = 0
    assert buffer["n"][0] == 5
    np.testing.assert_array_equal(first["w"], [1.0, 2.0])
    np.testing.assert_array_equal(second["w"], [3.0, 4.0])


def test_memory_does_not_grow_with_the_number_of_parts() -> None:
    """Forty parts of 1 MB read one at a time: the float64 sums (2), a product (2), a part and the mean."""

    def read() -> Iterator[tuple[Part, float]]:
        for i in range(40):
            yield {"w": np.full(250_000, i, np.float32)}, 1

    tracemalloc.start()
    try:
        result = weighted_mean(read())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result is not None
    assert result["w"][0] == 19.5
    assert peak < 6.5e6


def test_two_phases_by_hand() -> None:
    old = {
        "global": part(9.0),
        "cluster-0": part(8.0),
        "cluster-1": part(7.0),
        "cluster-2": part(6.0),
    }
    reports = {"a": report(100, 1.0, 1.0), "b": report(300, 2.0, 2.0), "c": report(100, 6.0, 6.0)}
    new = two_phase(old, reports, SCOPES, {"a": 0, "b": 0, "c": 1, "silent": 2}, 3)
    assert {name: float(p["w"][0]) for name, p in new.items()} == {
        "global": float(np.float32((100 + 600 + 600) / 500)),
        "cluster-0": 1.75,
        "cluster-1": 6.0,
        "cluster-2": 6.0,  # its only server is silent: it keeps its network
    }
    assert new["cluster-2"] is old["cluster-2"]
    assert float(old["global"]["w"][0]) == 9.0


@pytest.mark.parametrize("weight", [None, 0.0])
def test_without_reports_everything_stays(weight: float | None) -> None:
    old = {"global": part(9.0), "cluster-0": part(8.0)}
    reports = {} if weight is None else {"a": report(weight, 1.0, 1.0)}
    assert two_phase(old, reports, SCOPES, {"a": 0}, 1) == old


def test_edge_then_cloud_equals_one_mean_over_all_clients() -> None:
    rng = np.random.default_rng(1)
    clients = {m: [(part(*rng.normal(size=4)), int(rng.integers(1, 90))) for _ in range(5)] for m in "abc"}
    reports = {
        m: Report.of(sum(n for _, n in items), {"global": mean(*items)}) for m, items in clients.items()
    }
    new = two_phase({}, reports, {"global": "global"}, {}, 0)
    flat = mean(*(item for m in "abc" for item in clients[m]))
    np.testing.assert_allclose(new["global"]["w"], flat["w"], rtol=1e-6)


def test_the_order_of_arrival_changes_no_bit() -> None:
    rng = np.random.default_rng(2)
    values = {f"gw{i}": part(*rng.normal(size=50)) for i in range(9)}
    reports = {m: Report.of(1 + len(m) * i, {"global": values[m]}) for i, m in enumerate(values)}
    one = two_phase({}, reports, {"global": "global"}, {}, 0)
    other = two_phase({}, dict(reversed(reports.items())), {"global": "global"}, {}, 0)
    assert one["global"]["w"].tobytes() == other["global"]["w"].tobytes()


def test_parts_are_loaded_when_their_turn_comes_in_name_order() -> None:
    loads: list[tuple[str, str]] = []

    def lazy(server: str, weights: dict[str, float]) -> Report:
        def load(role: str) -> Part:
            loads.append((server, role))
            return part(1.0)

        return Report(weights, load)

    reports = {
        "b": lazy("b", {"global": 1, "cluster": 1}),
        "a": lazy("a", {"global": 1, "cluster": 0}),
        "c": lazy("c", {"cluster": 1}),
    }
    steps = phases(reports, SCOPES, {"a": 0, "b": 1, "c": 0}, 2)
    assert loads == []
    assert next(steps)[0] == "global"
    assert loads == [("a", "global"), ("b", "global")]
    assert [name for name, _ in steps] == ["cluster-0", "cluster-1"]
    assert loads[2:] == [("c", "cluster"), ("b", "cluster")]


def test_reports_that_fit_nowhere_are_refused_before_anything_is_read() -> None:
    for assignment in ({}, {"a": 2}, {"a": -1}):
        with pytest.raises(AggregationError, match="clusters"):
            phases({"a": report(1, 1.0, 1.0)}, SCOPES, assignment, 2)
    with pytest.raises(AggregationError, match="cluster"):
        phases({"a": report(1, 1.0, 1.0)}, {"global": "global"}, {}, 0)
