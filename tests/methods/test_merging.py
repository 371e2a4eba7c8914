"""Clusters by evidence: alike sites come together, unlike ones stay apart, drift is followed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbac_edge.methods.merging import Exchange, Thresholds, regroup
from fedbac_edge.vocabulary.terms import NO_SCORE, Score

COUNT = 100
USUAL = Thresholds()
RIGHT, WRONG = Score(COUNT, 90, 30.0), Score(COUNT, 40, 250.0)


def scores(kinds: Mapping[str, int], networks: Sequence[int]) -> dict[str, dict[int, Score]]:
    """Site of a kind under networks that each know one kind."""
    return {
        site: {k: RIGHT if known == kind else WRONG for k, known in enumerate(networks)}
        for site, kind in kinds.items()
    }


def groups(places: Mapping[str, int]) -> set[frozenset[str]]:
    return {frozenset(s for s, at in places.items() if at == k) for k in places.values()}


def test_alike_sites_come_together_and_unlike_ones_stay_apart() -> None:
    kinds = {"a": 0, "b": 1, "c": 0, "d": 1, "e": 2}
    places = {site: k for k, site in enumerate(sorted(kinds))}
    after = regroup(places, scores(kinds, [0, 1, 0, 1, 2]), 5, USUAL)
    assert groups(after) == {frozenset("ac"), frozenset("bd"), frozenset("e")}
    # Nothing changes any more: what belongs together is together.
    assert regroup(after, scores(kinds, [0, 1, 0, 1, 2]), 5, USUAL) == after


def test_the_merged_cluster_goes_on_with_the_network_that_fits_its_members_best() -> None:
    better = Score(COUNT, 91, 25.0)
    both = {"a": {0: RIGHT, 1: better}, "b": {0: RIGHT, 1: better}}
    assert regroup({"a": 0, "b": 1}, both, 2, USUAL) == {"a": 1, "b": 1}


def test_a_site_whose_data_have_changed_moves_to_those_that_it_is_like_now() -> None:
    kinds = {"a": 1, "b": 0, "c": 1}
    after = regroup({"a": 0, "b": 0, "c": 1}, scores(kinds, [0, 1, 2]), 3, USUAL)
    assert after == {"a": 1, "b": 0, "c": 1}


def test_a_site_that_a_merge_was_wrong_for_goes_back_to_the_network_that_it_left() -> None:
    rows = {
        "a": {0: RIGHT, 1: WRONG},
        "b": {0: WRONG, 1: RIGHT},  # network 1 has had nobody since the merge
    }
    assert regroup({"a": 0, "b": 0}, rows, 2, USUAL) == {"a": 0, "b": 1}


def test_one_member_that_objects_keeps_clusters_apart() -> None:
    kinds = {"a": 0, "b": 0, "c": 0, "d": 0, "e": 0, "f": 0}
    rows = scores(kinds, [0, 0])
    places = {"a": 0, "b": 0, "c": 0, "d": 0, "e": 0, "f": 1}
    assert len(groups(regroup(places, rows, 2, USUAL))) == 1
    rows["c"][1] = WRONG
    assert len(groups(regroup(places, rows, 2, USUAL))) == 2


def test_few_samples_are_no_evidence_for_a_move_and_many_are() -> None:
    for factor, expected in ((1, 0), (20, 1)):
        row = {
            0: Score(5 * factor, 4 * factor, 6.0 * factor),
            1: Score(5 * factor, 5 * factor, 2.0 * factor),
        }
        alone = Thresholds(merges=False)
        assert regroup({"a": 0}, {"a": row}, 2, alone) == {"a": expected}


def test_an_absent_site_goes_where_its_cluster_goes_and_alone_it_stays() -> None:
    kinds = {"a": 0, "b": 0}
    places = {"a": 0, "b": 1, "c": 1, "d": 2}
    after = regroup(places, scores(kinds, [0, 0, 0]), 3, USUAL)
    assert after["a"] == after["b"] == after["c"]
    assert after["d"] == 2
    assert regroup(places, {}, 3, USUAL) == places


def test_a_network_that_has_diverged_is_left_and_never_merged_with() -> None:
    broken = Score(COUNT, 10, math.inf)
    rows = {"a": {0: broken, 1: RIGHT}, "b": {0: broken, 1: RIGHT}}
    assert regroup({"a": 0, "b": 1}, rows, 2, USUAL) == {"a": 1, "b": 1}
    only = {"a": {0: broken, 1: broken}, "b": {0: broken, 1: broken}}
    assert regroup({"a": 0, "b": 1}, only, 2, USUAL) == {"a": 0, "b": 1}


def test_each_step_can_be_left_out() -> None:
    kinds = {"a": 0, "b": 0}
    assert regroup({"a": 0, "b": 1}, scores(kinds, [0, 0]), 2, Thresholds(merges=False)) == {"a": 0, "b": 1}
    never = Thresholds(moves=False)
    assert regroup({"a": 0}, {"a": {0: WRONG, 1: RIGHT}}, 2, never) == {"a": 0}


def test_what_an_exchange_says() -> None:
    exchange = Exchange(100, 10, 26, 20.0, 50.0)
    assert exchange.worse == pytest.approx(16 / 6)
    assert exchange.factor == 2.5
    assert Exchange(NO_SCORE.count).worse == 0.0
    assert Exchange(10, 0, 0, 0.0, 0.0).factor == 1.0


@given(st.data())
def test_any_scores_give_places_that_exist_whatever_the_order_of_sites(data: st.DataObject) -> None:
    sites = [f"s{m}" for m in range(data.draw(st.integers(1, 5)))]
    clusters = data.draw(st.integers(1, 5))
    score = st.builds(
        lambda count, right, loss: Score(count, min(count, right), loss),
        st.integers(1, 50),
        st.integers(0, 50),
        st.floats(0, 1e6),
    )
    places = {site: data.draw(st.integers(0, clusters - 1)) for site in sites}
    heard = [site for site in sites if data.draw(st.booleans())]
    rows = {site: {k: data.draw(score) for k in range(clusters)} for site in heard}
    after = regroup(places, rows, clusters, USUAL)
    assert set(after) == set(sites)
    assert all(0 <= k < clusters for k in after.values())
    backwards = dict(reversed(list(rows.items())))
    assert regroup(dict(reversed(list(places.items()))), backwards, clusters, USUAL) == after


def test_what_lies_between_clear_and_nothing_changes_no_place() -> None:
    between = Score(COUNT, 86, 60.0)  # twice the loss, but wrong answers that chance may explain
    assert not Exchange(COUNT, 10, 14, 30.0, 60.0).is_clear(USUAL)
    assert not Exchange(COUNT, 10, 14, 30.0, 60.0).is_nothing(USUAL)
    apart = {"a": {0: RIGHT, 1: between}, "b": {0: between, 1: RIGHT}}
    assert regroup({"a": 0, "b": 1}, apart, 2, USUAL) == {"a": 0, "b": 1}
    assert regroup({"a": 0, "b": 0}, apart, 2, USUAL) == {"a": 0, "b": 0}
