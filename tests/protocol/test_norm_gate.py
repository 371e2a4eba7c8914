"""The gate on lengths: unable to lock a device out, to refuse a majority, or to let one update go far."""

from __future__ import annotations

from math import ceil, log

import hypothesis.strategies as st
import pytest
from hypothesis import given

from fedbac_edge.lab.trials.long_life import Life, attackers, honest, live
from fedbac_edge.protocol.gateway import norm_gate

lengths = st.floats(1e-6, 1e9)


@given(
    st.lists(lengths, min_size=norm_gate.MINIMUM, max_size=40),
    st.dictionaries(st.sampled_from("abcdefgh"), lengths, min_size=1),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 9)),
    st.integers(1, 3),
)
def test_at_most_half_is_refused_and_nothing_counts_for_more_than_ten(
    past: list[float], round: dict[str, float], refusals: dict[str, int], needed: int
) -> None:
    answers = {name: {"g": step} for name, step in round.items()}
    suspects = [name for name, steps in answers.items() if norm_gate.is_suspect({"g": past}, steps)]
    verdict = norm_gate.judge({"g": past}, refusals, answers, suspects, needed)
    assert len(verdict.refused) <= len(answers) / 2
    assert len(answers) - len(verdict.refused) >= min(needed, len(answers))
    assert {*verdict.refused, *verdict.shortened} == set(suspects)
    typical = sorted([*past, *round.values()])[-1]
    for name, factors in verdict.shortened.items():
        assert 0 < factors["g"] <= 1
        assert factors["g"] * round[name] <= norm_gate.FACTOR * typical * (1 + 1e-9)
    assert all(verdict.refusals[name] == refusals.get(name, 0) + 1 for name in verdict.refused)


@pytest.mark.parametrize("times", [11.2, 29.0, 31.0, 1000.0, 1e9])
def test_a_device_whose_steps_stay_long_is_not_locked_out(times: float) -> None:
    """Four usual devices beside it, 1,000 rounds, and its step never becomes shorter."""
    norms: dict[str, list[float]] = {"g": [1.0] * norm_gate.HISTORY}
    refusals: dict[str, int] = {}
    row = most = counted = 0
    for _ in range(1000):
        answers = {**{name: {"g": 1.0} for name in "abcd"}, "late": {"g": times}}
        for name in "abcd":
            norms = norm_gate.remembered(norms, answers[name])
        verdict = norm_gate.judge(norms, refusals, answers, ["late"])
        norms, refusals = verdict.norms, verdict.refusals
        row = row + 1 if "late" in verdict.refused else 0
        counted += not row
        most = max(most, row)
    bound = max(0, ceil(log(times / norm_gate.REFUSED) / log(norm_gate.WIDENING)))
    assert most == bound
    assert counted >= 1000 // (bound + 1)


def test_in_a_long_life_nobody_is_locked_out() -> None:
    """150 rounds of absences, drift, decay and attackers; `benchmarks/norm_gate.py` has 1,000."""
    life = Life(rounds=150, away=(40, 120))
    outcome = live(life)
    good, bad = honest(life), attackers(life)
    assert outcome.void == 0
    assert outcome.rate(outcome.refused, good) < 0.01
    assert outcome.rate(outcome.refused, bad) > 0.8
    assert all(outcome.in_a_row[name] <= 1 for name in good)
