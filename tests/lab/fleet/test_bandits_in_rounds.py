"""Both bandits inside whole runs: what the ledgers say must be what the method's rules give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedbac_edge.bandits import linucb, thompson
from fedbac_edge.randomness import generator
from fedbac_edge.settings.federation import Federation

Build = Callable[..., Any]
ROSTERS = {"gw1": ("d1", "d2", "d3"), "gw2": ("d4", "d5", "d6")}


@pytest.fixture(scope="module")
def federation(settings: Build) -> Federation:
    found: Federation = settings(
        rounds=8,
        gateways=ROSTERS,
        head="seed = 5",
        more="[selection]\nwarm_up = 3\nparticipation = 0.7\n[assignment]\nevery = 3",
    )
    return found


@pytest.fixture(scope="module")
def run(build: Build, federation: Federation) -> Any:
    fleet = build(federation)
    assert fleet.run()
    return fleet


def posteriors(line: Any) -> dict[str, thompson.Posterior]:
    return {name: thompson.Posterior(a, b) for name, (a, b) in line.detail["posteriors"].items()}


@pytest.mark.parametrize("gateway", ROSTERS)
def test_selection_is_uniform_in_the_warm_up_and_ranked_after_it(run: Any, gateway: str) -> None:
    lines = run.ledger(gateway, "selected")
    assert [line.detail["warm_up"] for line in lines] == [True] * 3 + [False] * 5
    for line in lines:
        rng = generator(5, "gateway", gateway, line.round, "select")
        again = thompson.select(posteriors(line), ROSTERS[gateway], 2, rng, line.detail["warm_up"])
        assert (list(again.chosen), again.draws) == (line.detail["asked"], line.detail["draws"])
    assert any(line.detail["posteriors"] != lines[0].detail["posteriors"] for line in lines)


@pytest.mark.parametrize("gateway", ROSTERS)
def test_the_reward_of_a_round_counts_two_rounds_later(run: Any, gateway: str) -> None:
    selected = {line.round: line for line in run.ledger(gateway, "selected")}
    rewards = {line.round: line for line in run.ledger(gateway, "reward")}
    assert len(rewards) == len(run.ledger(gateway, "reward")) >= 4
    for round, reward in rewards.items():
        assert reward.detail["chosen"] == selected[round].detail["asked"]
        assert reward.id > selected[round + 1].id
        if round + 2 not in selected:
            continue
        assert reward.id < selected[round + 2].id
        before = posteriors(selected[round + 1])
        improved = reward.detail["change"] > 0
        assert posteriors(selected[round + 2]) == thompson.reward(before, reward.detail["chosen"], improved)


def test_the_reward_is_forgotten_after_a_switch(run: Any) -> None:
    moved = {(line.subject, line.round) for line in run.ledger("cloud", "sweep") if _has_moved(line)}
    stayed = {(line.subject, line.round) for line in run.ledger("cloud", "sweep") if not _has_moved(line)}
    assert moved, "this seed moves a site"
    assert stayed, "and keeps one"
    for gateway, round in moved | stayed:
        rewarded = {line.round for line in run.ledger(gateway, "reward")}
        assert (round in rewarded) == ((gateway, round) in stayed)


def _has_moved(line: Any) -> bool:
    return bool(line.detail["chosen"] != line.detail["previous"])


def test_sweeps_come_every_tau_re_rounds_but_not_after_the_last(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=4, more="[assignment]\nevery = 2"))
    assert fleet.run()
    assert sorted({line.round for line in fleet.ledger("cloud", "sweep")}) == [2]
    last = fleet.ledger("cloud", "evaluation")[-1]
    assert (last.round, last.detail["last"]) == (4, True)
    assert fleet.ledger("cloud", "finished")


def test_contexts_are_those_before_the_switch(run: Any) -> None:
    """Recompute each decision from the logged contexts; balance follows the moves inside the sweep."""
    state = linucb.start({"gw1": 0, "gw2": 1}, 2)
    for round in (3, 6):
        lines = run.ledger("cloud", "sweep", round)
        assert [line.subject for line in lines] == ["gw1", "gw2"]
        arms = state.arms
        for line in lines:
            window = state.windows[line.subject]
            assert window.cluster == line.detail["previous"]
            arms = linucb.update(arms, window.cluster, window.context, line.detail["reward"])
        assignment, windows = dict(state.assignment), dict(state.windows)
        for line in lines:
            current = assignment[line.subject]
            (other,) = (k for name, k in assignment.items() if name != line.subject)
            for k, context in enumerate(line.detail["contexts"]):
                assert context[1:] == [1.0 - (other == k) / 2, float(k == current), round / 8]
            totals = [
                linucb.score(arms, k, tuple(context), 1.0).total
                for k, context in enumerate(line.detail["contexts"])
            ]
            assert [score[2] for score in line.detail["scores"]] == totals
            chosen = line.detail["chosen"]
            assert totals[chosen] == max(totals)
            assignment[line.subject] = chosen
            windows[line.subject] = linucb.Window(chosen, tuple(line.detail["contexts"][chosen]))
        state = linucb.Clustering(arms, windows)
        served = {line.round: line.detail["assignment"] for line in run.ledger("cloud", "round")}
        assert served[round + 1] == assignment, "the sweep decides about the next round"


def test_a_site_that_does_not_answer_keeps_its_cluster_and_rewards_no_arm(
    build: Build, settings: Build
) -> None:
    limits = "deadline_min_s = 100\ndeadline_max_s = 100\nevaluation_deadline_s = 100"
    fleet = build(settings(rounds=4, deadlines=limits, more="[assignment]\nevery = 2"))
    assert fleet.run_to_round(2, "evaluating")
    before = fleet.cloud.clustering
    fleet.world.crash("gw2", restart_s=150.0)
    assert fleet.run_to_round(3)
    silent, answered = (
        next(line for line in fleet.ledger("cloud", "sweep", 2) if line.subject == name)
        for name in ("gw2", "gw1")
    )
    assert (silent.detail["previous"], silent.detail["chosen"], silent.detail["reward"]) == (1, 1, None)
    assert silent.detail["contexts"] == silent.detail["scores"] == []
    assert answered.detail["reward"] is not None
    after = fleet.cloud.clustering
    assert after.windows["gw2"] == before.windows["gw2"]
    assert after.arms.A[1] == before.arms.A[1]
    assert after.arms.A[0] != before.arms.A[0]
    assert fleet.run()


def test_a_warm_start_copies_the_network_that_the_first_server_leaves(build: Build, settings: Build) -> None:
    for seed in range(30):
        fleet = build(
            settings(
                rounds=3,
                head=f"seed = {seed}",
                more='[method]\ninitial = "single"\nclusters = 3\ncluster_start = "warm"\n'
                "[assignment]\nevery = 2",
            )
        )
        assert fleet.run_to_round(3)
        if fleet.ledger("cloud", "warm start"):
            break
    for line in fleet.ledger("cloud", "warm start"):
        assert line.detail["from"] == "cluster-0"
        assert fleet.hashes()[line.subject] == fleet.hashes()["cluster-0"]
        fleet.go_on(1.0)
        told = fleet.world.broker.retained[f"fedbac/v1/t/model/{line.subject}"]
        assert fleet.hashes()["cluster-0"].encode() in told
    assert fleet.ledger("cloud", "warm start"), "no seed moved a site"
    assert fleet.run()


def test_the_learning_rate_decays_once_per_round(build: Build, settings: Build) -> None:
    fleet = build(
        settings(
            rounds=3,
            more="[training]\nlearning_rate = 0.1\nlearning_rate_decay = 0.5\n"
            "[selection]\nparticipation = 1.0",
        )
    )
    rates = []
    for round in (1, 2, 3):
        assert fleet.run_to_round(round)
        assert fleet.world.run(lambda: fleet.device("d1").phase == "working")
        rates.append(fleet.device("d1").task.training.learning_rate)
        assert fleet.world.run(lambda: fleet.device("d1").phase != "working")
    assert rates == [0.1, 0.05, 0.025]


def test_soft_credit_and_random_selection_are_options(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=4, more='[selection]\nwarm_up = 0\nmethod = "random"\ncredit = "soft"'))
    assert fleet.run()
    assert all(line.detail["warm_up"] for line in fleet.ledger("gw1", "selected"))
    rewards = fleet.ledger("gw1", "reward")
    assert rewards
    final = fleet.gateway("gw1").posteriors
    earned = sum(thompson.soft_credit(line.detail["change"]) * len(line.detail["chosen"]) for line in rewards)
    assert sum(p.a for p in final.values()) == pytest.approx(len(final) + earned)


def test_a_gateway_with_an_evaluation_set_rewards_in_the_same_round(build: Build, settings: Build) -> None:
    """evaluation = "test", the paper's protocol: no device is asked for scores; restarts change nothing."""
    federation = settings(
        rounds=5, evaluation="test", more="[selection]\nwarm_up = 1\n[assignment]\nevery = 2"
    )
    whole, hurt = build(federation), build(federation)
    assert whole.run()
    for phase in ("scoring", "evaluating", "fetching"):
        assert hurt.world.run(lambda phase=phase: hurt.gateway("gw1").phase == phase), phase
        hurt.world.crash("gw1", restart_s=1.0)
        hurt.go_on(1.5)
    assert hurt.run()
    assert hurt.hashes() == whole.hashes()
    assert hurt.gateway("gw1").posteriors == whole.gateway("gw1").posteriors
    moved = {
        line.round + 1
        for line in whole.ledger("cloud", "sweep")
        if line.subject == "gw1" and _has_moved(line)
    }
    rewarded = [line.round for line in whole.ledger("gw1", "reward")]
    assert rewarded == [round for round in range(2, 6) if round not in moved]
    assert not [job for _, job in whole.jobs if job.startswith("evaluate")]
    assert not whole.ledger("gw1", "job failed")
    assert {line.round for line in whole.ledger("cloud", "sweep")} == {2, 4}
    assert all(line.detail["contexts"] for line in whole.ledger("cloud", "sweep"))


def test_hierfavg_has_one_part_and_no_sweep(build: Build, settings: Build) -> None:
    fleet = build(settings(rounds=3, more='[method]\nname = "hierfavg"\n[assignment]\nevery = 1'))
    assert fleet.run()
    assert set(fleet.hashes()) == {"global"}
    assert not fleet.ledger("cloud", "sweep")
