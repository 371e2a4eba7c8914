"""The rules by hand, against byzfl, against hostile updates, and within their memory."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tracemalloc
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbac_edge.federation_file import reading
from fedbac_edge.federation_file.reading import FederationError
from fedbac_edge.parts import robust
from fedbac_edge.parts.aggregation import AggregationError, Contribution
from fedbac_edge.parts.part import Part
from fedbac_edge.parts.robust import Rule, RuleName, capped, combine, krum_order, unsupported

RULES: tuple[RuleName, ...] = ("mean", "clip", "trimmed-mean", "median", "multi-krum")
ZERO: Part = {"w": np.zeros(1, np.float32)}


def column(*values: float) -> list[Contribution]:
    """Updates of one weight each, of equal weight."""
    return [one({"w": np.array([value], np.float32)}) for value in values]


def one(part: Part, weight: float = 1.0) -> Contribution:
    return Contribution(weight, lambda: part)


def single(rule: Rule, updates: Sequence[Contribution], base: Part = ZERO) -> float:
    part = combine(rule, updates, base)
    assert part is not None
    assert part["w"].dtype == np.float32
    return float(part["w"][0])


def vectors(count: int, seed: int, shift: float = 0.0) -> list[Part]:
    """Parts of two tensors, 9 numbers."""
    rng = np.random.default_rng(seed)
    drawn = [rng.standard_normal(9).astype(np.float32) + np.float32(shift) for _ in range(count)]
    return [{"a": v[:6].reshape(2, 3), "b": v[6:]} for v in drawn]


def flat(part: Part | None) -> Any:
    assert part is not None
    return np.concatenate([part["a"].ravel(), part["b"]]).astype(np.float64)


# --- by hand --------------------------------------------------------------------------------------


def test_a_trimmed_mean_by_hand() -> None:
    assert single(Rule("trimmed-mean", hostile=0.2), column(1, 1000, 2, 3, -1000)) == 2.0
    assert single(Rule("trimmed-mean", hostile=0.4), column(1, 1000, 2.5, 3, -1000)) == 2.5


def test_medians_by_hand() -> None:
    assert single(Rule("median"), column(5, 1, 1e30)) == 5.0
    assert single(Rule("median"), column(5, 1, 2, 1e30)) == 3.5


def test_clipping_by_hand() -> None:
    """Steps are clipped, not weights: the base is far longer than the norm and stays where it is."""
    base: Part = {"w": np.array([100.0], np.float32)}
    updates = column(101, 103, 110, 98)
    assert single(Rule("clip", clip_norm=3.0), updates, base) == 100 + (1 + 3 + 3 - 2) / 4
    assert single(Rule("clip"), updates, base) == 100 + (1 + 2.5 + 2.5 - 2) / 4  # median of 1, 3, 10, 2


def test_the_norm_of_a_step_is_over_all_tensors() -> None:
    base: Part = {"a": np.zeros(1, np.float32), "b": np.zeros(1, np.float32)}
    update: Part = {"a": np.array([3.0], np.float32), "b": np.array([4.0], np.float32)}
    part = combine(Rule("clip", clip_norm=1.0), [one(update)], base)
    assert part is not None
    np.testing.assert_allclose([part["a"][0], part["b"][0]], [0.6, 0.8], rtol=1e-6)


def test_krum_by_hand() -> None:
    """n = 5, f = 1: scores are the sums of the two smallest squares, 0 of [0, 1] and so on."""
    points = np.array([0.0, 1.0, 2.5, 3.0, 50.0])
    squares = (points[:, None] - points[None, :]) ** 2
    # 0: 1 + 6.25; 1: 1 + 2.25; 2: 0.25 + 2.25; 3: 0.25 + 4; 4: 47^2 + 47.5^2
    assert krum_order(squares, 2) == [2, 1, 3, 0, 4]
    assert single(Rule("multi-krum"), column(0, 1, 2.5, 3, 50)) == pytest.approx(6.5 / 4)


def test_krum_takes_equal_scores_in_order() -> None:
    assert krum_order(np.zeros((5, 5)), 2) == [0, 1, 2, 3, 4]


def test_samples_weigh_where_a_rule_allows_it() -> None:
    updates = [
        one({"w": np.array([v], np.float32)}, w) for v, w in ((1, 10), (2, 20), (4, 20), (3, 10), (2, 10))
    ]
    assert single(Rule("mean"), updates) == pytest.approx(180 / 70)
    assert single(Rule("clip", clip_norm=100.0), updates) == pytest.approx(180 / 70)
    assert single(Rule("multi-krum"), updates) == pytest.approx(100 / 50)  # without the 4
    assert single(Rule("median"), updates) == 2.0
    assert single(Rule("trimmed-mean"), updates) == pytest.approx(7 / 3)


def test_a_device_cannot_outweigh_the_others_by_its_word() -> None:
    assert capped([10, 20, 30, 1e12]) == [10, 20, 30, 50]
    boaster = [*column(1, 1, 1, 1), one({"w": np.array([2.0], np.float32)}, 1e12)]
    assert single(Rule("mean"), boaster) == pytest.approx(2)
    assert single(Rule("clip", clip_norm=5.0), boaster) == pytest.approx(8 / 6)


# --- what the number of updates does not support --------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "least"),
    [
        (Rule("mean"), 1),
        (Rule("clip", clip_norm=1.0), 1),
        (Rule("clip"), 3),
        (Rule("median"), 3),
        (Rule("trimmed-mean", hostile=0.2), 5),
        (Rule("trimmed-mean", hostile=0.3), 4),
        (Rule("trimmed-mean", hostile=0.49), 3),
        (Rule("multi-krum", hostile=0.2), 5),
        (Rule("multi-krum", hostile=0.1), 10),
    ],
)
def test_too_few_updates_are_refused(rule: Rule, least: int) -> None:
    for count in range(1, least + 1):
        assert bool(unsupported(rule, count)) == (count < least), count
    if least > 1:
        with pytest.raises(AggregationError, match=rule.name):
            combine(rule, column(*range(least - 1)), ZERO)
    assert combine(rule, column(*range(least)), ZERO) is not None


def test_krum_needs_two_f_plus_three() -> None:
    rule = Rule("multi-krum", hostile=0.4)
    assert [count for count in range(3, 30) if not unsupported(rule, count)] == [
        n for n in range(3, 30) if n >= 2 * int(0.4 * n + 1e-9) + 3 and int(0.4 * n + 1e-9)
    ]
    assert "needs 7 (n >= 2f + 3)" in unsupported(rule, 5)


def test_shares_are_counted_as_a_person_would() -> None:
    """0.29 * 100 is 28.999999999999996."""
    assert Rule(hostile=0.29).outliers(100) == 29
    assert Rule(hostile=0.1).outliers(30) == 3
    assert Rule(hostile=0.2).outliers(4) == 0


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_never_reach_a_rule(rule: RuleName, value: float) -> None:
    with pytest.raises(AggregationError, match="finite"):
        combine(Rule(rule), column(1, 2, 3, 4, value), ZERO)


@pytest.mark.parametrize("rule", RULES)
def test_nothing_that_weighs_is_no_part(rule: RuleName) -> None:
    assert combine(Rule(rule), [one(ZERO, 0.0)] * 6, ZERO) is None


FILE = """
name = "t"
eligibility = "roster"
[model]
classes = ["a", "b"]
[method]
name = "{method}"
clusters = {clusters}
[selection]
participation = {participation}
[robust]
{robust}
[gateways]
gw1 = ["d1", "d2", "d3", "d4", "d5"]
gw2 = ["d1", "d2", "d3", "d4", "d5", "d6"]
gw3 = ["d1", "d2", "d3", "d4", "d5"]
"""


def parse(rules: str, method: str = "fedbac", clusters: int = 1, participation: float = 1.0) -> None:
    reading.parse(FILE.format(robust=rules, method=method, clusters=clusters, participation=participation))


def test_a_roster_that_does_not_support_a_rule_is_refused_with_the_reason() -> None:
    parse('edge = "trimmed-mean"\ncloud = "median"')
    with pytest.raises(FederationError, match=r"\[robust\] edge: gw1 asks 4 .* leaves out none of 4 updates"):
        parse('edge = "trimmed-mean"', participation=0.8)
    with pytest.raises(FederationError, match="multi-krum against 2 of 5 updates needs 7"):
        parse('edge = "multi-krum"\nedge_hostile = 0.4')
    with pytest.raises(FederationError, match=r"\[robust\] cloud: .* over 3 sites"):
        parse('cloud = "multi-krum"')
    with pytest.raises(FederationError, match=r"\[robust\] cloud: .* over 1 sites, but median needs 3"):
        parse('cloud = "median"', clusters=3)
    parse('cloud = "median"', method="hierfavg", clusters=3)
    with pytest.raises(FederationError, match="edge_hostile"):
        parse("edge_hostile = 0.5")
    with pytest.raises(FederationError, match="edge"):
        parse('edge = "best"')


# --- against byzfl --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def byzfl() -> Any:
    """byzfl's aggregators without the rest of it, which wants torchvision and data sets."""
    found = importlib.util.find_spec("byzfl")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("byzfl is not installed: pip install --no-deps byzfl")
    package = types.ModuleType("byzfl")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["byzfl"] = package
    try:
        aggregators = importlib.import_module("byzfl.aggregators.aggregators")
        clipping = importlib.import_module("byzfl.aggregators.preaggregators").Clipping
        return types.SimpleNamespace(
            Median=aggregators.Median,
            TrMean=aggregators.TrMean,
            MultiKrum=aggregators.MultiKrum,
            Average=aggregators.Average,
            Clipping=clipping,
        )
    finally:
        for name in [name for name in sys.modules if name == "byzfl" or name.startswith("byzfl.")]:
            del sys.modules[name]


SIZES = [(5, 0.2), (6, 0.2), (9, 0.3), (12, 0.4), (15, 0.2)]


@pytest.mark.parametrize(("count", "hostile"), SIZES)
@pytest.mark.parametrize("seed", range(4))
def test_byzfl_comes_to_the_same(byzfl: Any, count: int, hostile: float, seed: int) -> None:
    honest = vectors(count - int(hostile * count), seed)
    parts = [*honest, *vectors(count - len(honest), seed + 100, shift=20.0)]
    updates, rows = [one(part) for part in parts], np.stack([flat(part) for part in parts])
    base = vectors(1, seed + 7)[0]
    f = Rule(hostile=hostile).outliers(count)

    def ours(rule: Rule) -> Any:
        return flat(combine(rule, updates, base))

    close: Callable[..., None] = np.testing.assert_allclose
    close(ours(Rule("median")), byzfl.Median()(rows), rtol=1e-6)
    close(ours(Rule("trimmed-mean", hostile=hostile)), byzfl.TrMean(f)(rows), rtol=1e-5, atol=1e-6)
    steps = byzfl.Clipping(1.5)(rows - flat(base))
    close(ours(Rule("clip", clip_norm=1.5)), flat(base) + byzfl.Average()(steps), rtol=1e-5, atol=1e-6)
    close(ours(Rule("mean")), byzfl.Average()(rows), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("count", "hostile"), SIZES)
@pytest.mark.parametrize("seed", range(6))
def test_krum_orders_as_byzfl_does(byzfl: Any, count: int, hostile: float, seed: int) -> None:
    """byzfl sums over n - f - 1 neighbours, the paper (and we) over n - f - 2: the number is given here."""
    f = Rule(hostile=hostile).outliers(count)
    rows = np.random.default_rng(seed).standard_normal((count, 6))
    squares = np.square(rows[:, None] - rows[None, :]).sum(axis=2)
    chosen = sorted(krum_order(squares, count - f - 1)[: count - f])
    np.testing.assert_allclose(rows[chosen].mean(axis=0), byzfl.MultiKrum(f)(rows), rtol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_multi_krum_as_byzfl_when_the_hostile_ones_are_far(byzfl: Any, seed: int) -> None:
    parts = [*vectors(8, seed), *vectors(2, seed + 50, shift=30.0)]
    ours = flat(combine(Rule("multi-krum"), [one(part) for part in parts], parts[0]))
    np.testing.assert_allclose(
        ours, byzfl.MultiKrum(2)(np.stack([flat(p) for p in parts])), rtol=1e-5, atol=1e-6
    )


# --- properties -----------------------------------------------------------------------------------


@given(st.integers(5, 20), st.integers(0, 1000), st.sampled_from(RULES[1:]), st.floats(-1e20, 1e20))
def test_a_fifth_of_hostile_updates_does_not_leave_the_honest_ones(
    count: int, seed: int, name: RuleName, shift: float
) -> None:
    """The result stays in the box that the honest updates span (clip: within the largest honest norm)."""
    honest = vectors(count - int(0.2 * count), seed)
    hostile = vectors(int(0.2 * count), seed + 1, shift=shift)
    base: Part = {n: np.zeros_like(t) for n, t in honest[0].items()}
    result = flat(combine(Rule(name), [one(part) for part in [*hostile, *honest]], base))
    rows = np.stack([flat(part) for part in honest])
    if name == "clip":
        assert np.linalg.norm(result) <= np.linalg.norm(rows, axis=1).max() * (1 + 1e-6)
    elif abs(shift) > 1e3 or name != "multi-krum":
        assert (result >= rows.min(axis=0) - 1e-6).all()
        assert (result <= rows.max(axis=0) + 1e-6).all()


@pytest.mark.parametrize("name", RULES)
def test_windows_change_nothing(name: RuleName, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = vectors(7, 3)
    whole = flat(combine(Rule(name), [one(part) for part in parts], parts[0]))
    for window in (1, 14, 21, 49):
        monkeypatch.setattr(robust, "WINDOW", window)
        np.testing.assert_allclose(
            flat(combine(Rule(name), [one(part) for part in parts], parts[0])), whole, rtol=1e-6
        )


@pytest.mark.parametrize("name", ["trimmed-mean", "median", "multi-krum"])
def test_memory_does_not_grow_with_the_updates(name: RuleName, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 updates of 200 KB are 16 MB in float64; a rule holds a window of 0.8 MB and one update."""
    monkeypatch.setattr(robust, "WINDOW", 100_000)

    drawn = np.random.default_rng(0).standard_normal(50_000, np.float32)

    def read(index: int) -> Part:
        return {"w": np.roll(drawn, index)}

    updates = [Contribution(1.0, lambda i=i: read(i)) for i in range(40)]  # type: ignore[misc]
    tracemalloc.start()
    try:
        combine(Rule(name), updates, read(0))
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()


def test_distances_survive_a_large_common_offset() -> None:
    """|x|^2 + |y|^2 - 2xy in float32 sees no difference at all here, and may be negative."""
    offset = 4096.0
    values = [offset, offset + 0.5, offset + 0.25, offset + 0.75, offset + 8]
    assert single(Rule("multi-krum"), column(*values), ZERO) == pytest.approx(offset + 0.375)
