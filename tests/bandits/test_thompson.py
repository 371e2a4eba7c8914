"""Client selection by Thompson sampling."""

from collections import Counter
from decimal import Decimal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbac_edge.bandits.thompson import (
    Posterior,
    Selection,
    participants,
    reward,
    reward_softly,
    select,
    soft_credit,
)
from fedbac_edge.randomness import generator

POSTERIORS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.builds(Posterior, st.integers(1, 50).map(float), st.integers(1, 50).map(float)),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize(
    ("share", "clients", "expected"),
    [(0.29, 100, 29), (0.8, 10, 8), (1.0, 7, 7), (0.05, 10, 1), (0.0, 10, 1), (0.8, 1, 1), (0.8, 0, 0)],
)
def test_participants(share: float, clients: int, expected: int) -> None:
    assert participants(share, clients) == expected


@given(st.integers(0, 1000), st.integers(1, 5000))
def test_participants_are_exact_in_decimals(thousandths: int, clients: int) -> None:
    share = float(Decimal(thousandths).scaleb(-3))
    assert participants(share, clients) == max(1, thousandths * clients // 1000)


@pytest.mark.parametrize(("share", "clients"), [(-0.1, 5), (1.1, 5), (float("nan"), 5), (0.5, -1)])
def test_participants_of_nonsense(share: float, clients: int) -> None:
    with pytest.raises(ValueError):
        participants(share, clients)


def test_warm_up_is_uniform_without_replacement_whatever_the_posteriors() -> None:
    roster = {name: Posterior() for name in "abcde"} | {"a": Posterior(1000.0, 1.0)}
    rng, runs = generator(1, "warm-up"), 5000
    pairs = Counter(select(roster, roster, 2, rng, warm_up=True).chosen for _ in range(runs))
    assert len(pairs) == 10
    # 9 degrees of freedom: beyond 33.7 once in ten thousand.
    assert sum((n - runs / 10) ** 2 / (runs / 10) for n in pairs.values()) < 33.7


def test_a_client_is_chosen_as_often_as_its_beta_is_the_larger() -> None:
    """X ~ Beta(3, 1) against Y uniform: P(X > Y) = E[X] = 3/4."""
    roster = {"a": Posterior(3.0, 1.0), "b": Posterior()}
    rng, runs = generator(2, "ranks"), 5000
    wins = sum(select(roster, roster, 1, rng, warm_up=False).chosen == ("a",) for _ in range(runs))
    assert abs(wins / runs - 0.75) < 4 * np.sqrt(0.75 * 0.25 / runs)


@given(POSTERIORS, st.data(), st.booleans(), st.integers(0, 2**32))
def test_the_largest_eligible_draws_are_chosen_and_nobody_else_shifts_them(
    roster: dict[str, Posterior], data: st.DataObject, warm_up: bool, seed: int
) -> None:
    eligible = data.draw(st.sets(st.sampled_from(sorted(roster))))
    count = data.draw(st.integers(0, 9))
    selection = select(roster, eligible, count, generator(seed), warm_up)
    everyone = select(dict(reversed(roster.items())), sorted(roster), count, generator(seed), warm_up)
    assert selection.draws == everyone.draws
    assert list(selection.draws) == sorted(roster)
    assert list(selection.chosen) == sorted(selection.chosen)
    assert set(selection.chosen) <= eligible
    assert len(selection.chosen) == min(count, len(eligible))
    left = [selection.draws[name] for name in eligible - set(selection.chosen)]
    assert all(selection.draws[name] >= max(left, default=0.0) for name in selection.chosen)


def test_equal_draws_go_by_name() -> None:
    """Beta(1e12, 1e-12) is 1 in every sample."""
    roster = {name: Posterior(1e12, 1e-12) for name in ("c", "a", "b", "d")}
    selection = select(roster, ["d", "c", "b"], 2, generator(3), warm_up=False)
    assert set(selection.draws.values()) == {1.0}
    assert selection.chosen == ("b", "c")


def test_strangers_and_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="zz"):
        select({"a": Posterior()}, ["a", "zz"], 1, generator(1), warm_up=True)
    with pytest.raises(ValueError, match="-1"):
        select({"a": Posterior()}, ["a"], -1, generator(1), warm_up=True)
    with pytest.raises(ValueError, match="zz"):
        reward({"a": Posterior()}, ["zz"], improved=True)
    with pytest.raises(ValueError, match="credit"):
        reward_softly({"a": Posterior()}, ["a"], float("nan"))


def test_reward_counts_for_the_chosen_only() -> None:
    before = {"b": Posterior(2.0, 5.0), "a": Posterior(), "c": Posterior()}
    assert reward(before, ["a", "b"], improved=True) == {
        "a": Posterior(2.0, 1.0),
        "b": Posterior(3.0, 5.0),
        "c": Posterior(),
    }
    assert reward(before, ["b"], improved=False)["b"] == Posterior(2.0, 6.0)
    assert before["b"] == Posterior(2.0, 5.0)
    assert list(reward(before, [], improved=True)) == ["a", "b", "c"]


def test_soft_credit_is_shared_between_both_parameters() -> None:
    assert reward_softly({"a": Posterior()}, ["a"], 0.25) == {"a": Posterior(1.25, 1.75)}
    changes = (-1.0, -0.02, -0.01, 0.0, 0.01, 0.02, 1.0, float("nan"), float("-inf"))
    assert [soft_credit(change) for change in changes] == [0, 0, 0.25, 0.5, 0.75, 1, 1, 0, 0]


def test_helpful_clients_come_to_be_preferred() -> None:
    """A round helps when it has a helpful client; after 80 rounds they lead the posteriors."""
    roster = {f"dev-{i}": Posterior() for i in range(6)}
    chosen = Counter[str]()
    for t in range(1, 81):
        selection = select(roster, roster, 2, generator(5, "round", t), warm_up=t <= 10)
        chosen.update(selection.chosen)
        roster = reward(roster, selection.chosen, improved="dev-4" in selection.chosen)
    assert chosen.most_common(1)[0][0] == "dev-4"
    assert roster["dev-4"] == Posterior(1.0 + chosen["dev-4"], 1.0)


def test_state_goes_through_messagepack() -> None:
    roster = {"a": Posterior(1.1, 7.0)}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(roster), type=dict[str, Posterior]) == roster
    selection = select(roster, ["a"], 1, generator(1), warm_up=False)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(selection), type=Selection) == selection
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"a": 0.0, "b": 1.0}), type=Posterior)
