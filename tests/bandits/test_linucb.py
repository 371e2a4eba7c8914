"""Cluster assignment by LinUCB."""

from math import inf, nan, sqrt

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbac_edge.bandits.linucb import (
    Arms,
    Clustering,
    Context,
    Evaluation,
    Options,
    due,
    initial_assignment,
    join,
    loss_ratio,
    score,
    start,
    sweep,
    update,
)

FEATURE = st.floats(0, 2, allow_subnormal=False)
CONTEXT = st.tuples(FEATURE, FEATURE, FEATURE, FEATURE)
LOSS = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.3, 2.3, nan, inf])


def even(servers: int, loss: float = 1.0, accuracy: float = 0.5) -> dict[str, Evaluation]:
    """Every server sees the same loss under every one of as many clusters."""
    return {f"gw{i}": Evaluation((loss,) * servers, accuracy) for i in range(servers)}


def opened(servers: int, rule: str = "round-robin", clusters: int | None = None) -> Clustering:
    names = [f"gw{i}" for i in range(servers)]
    k = clusters or servers
    return start(initial_assignment(names, k, "single" if rule == "single" else "round-robin"), k)


@pytest.mark.parametrize(
    ("current", "candidate", "ratio"),
    [
        (1.0, 2.0, 0.5),
        (1.0, 1.0, 1.0),
        (3.0, 1.0, 2.0),
        (0.0, 1.0, 0.0),
        (0.0, 0.0, 1.0),
        (1.0, 0.0, 2.0),
        (1.0, 5e-324, 2.0),
        (5e-324, 1e308, 0.0),
        (1e308, 1e308, 1.0),
        (1.0, nan, 0.0),
        (1.0, inf, 0.0),
        (nan, 1.0, 2.0),
        (inf, 0.0, 2.0),
        (nan, inf, 1.0),
    ],
)
def test_loss_ratio(current: float, candidate: float, ratio: float) -> None:
    assert loss_ratio(current, candidate) == ratio


def test_a_fresh_arm_knows_only_its_width() -> None:
    arms = opened(2).arms
    assert score(arms, 0, (1.0, 0.5, 1.0, 0.0), alpha=2.0).mean == 0.0
    assert score(arms, 0, (1.0, 0.5, 1.0, 0.0), alpha=2.0).total == 2.0 * sqrt(2.25)


def test_one_update_by_hand() -> None:
    """x = (1, 1, 1, 0): A^-1 x = x / 4, so theta = r x / 4 and x' A^-1 x = 3 / 4."""
    x: Context = (1.0, 1.0, 1.0, 0.0)
    arms = update(opened(2).arms, 1, x, 0.8)
    known = score(arms, 1, x, alpha=1.0)
    assert known.mean == pytest.approx(0.6, abs=1e-15)
    assert known.width == pytest.approx(sqrt(0.75), abs=1e-15)
    assert known.total == known.mean + known.width
    assert score(arms, 1, (0.0, 0.0, 0.0, 1.0), alpha=1.0).width == 1.0
    assert score(arms, 0, x, alpha=1.0).mean == 0.0


@given(st.lists(st.tuples(CONTEXT, st.floats(-1, 1)), max_size=30), CONTEXT)
def test_scores_equal_the_dual_form_of_ridge_regression(
    history: list[tuple[Context, float]], x: Context
) -> None:
    """mean = x' X' (I + X X')^-1 r and width^2 = x'x - x' X' (I + X X')^-1 X x: no A in sight."""
    arms = opened(1).arms
    for context, r in history:
        arms = update(arms, 0, context, r)
    X = np.array([context for context, _ in history]).reshape(-1, 4)
    rewards = np.array([value for _, value in history])
    kx = X @ np.array(x)
    solve = np.linalg.inv(np.eye(len(X)) + X @ X.T)
    found = score(arms, 0, x, alpha=0.5)
    assert found.mean == pytest.approx(kx @ solve @ rewards, abs=1e-9)
    assert found.width**2 == pytest.approx(np.dot(x, x) - kx @ solve @ kx, abs=1e-9)


def test_initial_assignments_in_name_order() -> None:
    names = ["c", "a", "b"]
    assert initial_assignment(names, 2, "round-robin") == {"a": 0, "b": 1, "c": 0}
    assert initial_assignment(names, 2, "single") == {"a": 0, "b": 0, "c": 0}
    with pytest.raises(ValueError, match="at least one"):
        initial_assignment(names, 0, "single")


@pytest.mark.parametrize(
    ("rule", "servers", "clusters", "balance"),
    [("round-robin", 10, 10, 1.0), ("single", 10, 10, 1 - 9 / 10), ("round-robin", 4, 2, 0.75)],
)
def test_the_initial_assignment_counts_as_chosen(
    rule: str, servers: int, clusters: int, balance: float
) -> None:
    state = opened(servers, rule, clusters)
    assert {w.context for w in state.windows.values()} == {(1.0, balance, 1.0, 0.0)}
    fed = {m: Evaluation((1.0,) * clusters, 0.5) for m in state.windows}
    after, decisions = sweep(state, fed, 20, 100, Options())
    x = np.array([1.0, balance, 1.0, 0.0])
    members = sum(k == 0 for k in state.assignment.values())
    np.testing.assert_allclose(np.reshape(after.arms.A[0], (4, 4)), np.eye(4) + members * np.outer(x, x))
    np.testing.assert_allclose(after.arms.b[0], members * 0.5 * x)
    assert {d.reward for d in decisions} == {0.5}


def test_rounds_that_end_with_a_sweep() -> None:
    assert [t for t in range(101) if due(t, 100, 20)] == [20, 40, 60, 80]
    assert not due(90, 90, 20)


def test_the_context_stored_is_the_one_before_the_switch() -> None:
    """A server that moved rewards its new arm with stability 0, not with the 1 that it has by then."""
    state = opened(2, "single")
    losses = (2.0, 0.5)
    moved, _ = sweep(state, {"gw0": Evaluation(losses, 0.5)}, 20, 100, Options())
    assert moved.assignment == {"gw0": 1, "gw1": 0}
    x = (2.0, 1.0, 0.0, 0.2)
    assert moved.windows["gw0"].context == x
    later, _ = sweep(moved, {"gw0": Evaluation(losses, 0.75)}, 40, 100, Options())
    np.testing.assert_array_equal(np.reshape(later.arms.A[1], (4, 4)), np.eye(4) + np.outer(x, x))
    assert later.arms.b[1] == tuple(0.75 * feature for feature in x)


def test_live_counts_keep_servers_from_herding() -> None:
    state = opened(5, "single")
    spread, decisions = sweep(state, even(5), 20, 100, Options(alpha=4.0))
    # The last one shares: cluster 0, empty without it, is known by now and has the narrower width.
    assert list(spread.assignment.values()) == [1, 2, 3, 4, 1]
    assert decisions[1].contexts[1][1] == 1 - 1 / 5
    herd, _ = sweep(state, even(5), 20, 100, Options(alpha=4.0, live_counts=False))
    assert set(herd.assignment.values()) == {1}


def test_ties_keep_the_current_cluster() -> None:
    """With nothing learnt and alpha 0 all scores are 0."""
    state = opened(3)
    after, decisions = sweep(state, even(3, accuracy=0.0), 20, 100, Options(alpha=0.0))
    assert {s.total for d in decisions for s in d.scores} == {0.0}
    assert after.assignment == state.assignment


def test_a_server_without_evaluation_stays_and_its_window_stays_open() -> None:
    state = opened(3)
    fed = even(3)
    missing = fed.pop("gw1")
    after, decisions = sweep(state, fed, 20, 100, Options())
    assert after.windows["gw1"] == state.windows["gw1"]
    assert after.arms.A[1] == state.arms.A[1]
    assert (decisions[1].scores, decisions[1].reward) == ((), None)
    # It still counts in |C_1| for the others.
    assert decisions[0].contexts[1][1] == 1 - 1 / 3
    later, _ = sweep(after, {"gw1": missing}, 40, 100, Options())
    assert later.arms == update(after.arms, 1, state.windows["gw1"].context, 0.5)


def test_nobody_evaluates() -> None:
    state = opened(3)
    after, decisions = sweep(state, {}, 20, 100, Options())
    assert after == state
    assert [d.chosen for d in decisions] == [0, 1, 2]


def test_accuracy_change_rewards_from_the_second_window_on() -> None:
    options = Options(reward="accuracy-change", alpha=0.0)
    first, decisions = sweep(opened(2), even(2, accuracy=0.5), 20, 100, options)
    assert first.arms == opened(2).arms
    assert decisions[0].reward is None
    second, decisions = sweep(first, even(2, accuracy=0.25), 40, 100, options)
    assert decisions[0].reward == -0.25
    assert second.arms.b[0] == tuple(-0.25 * feature for feature in first.windows["gw0"].context)


def test_shared_arms_learn_from_every_cluster() -> None:
    state = start({"a": 0, "b": 1}, 2, "shared")
    fed = {"a": Evaluation((1.0, 1.0), 0.5), "b": Evaluation((1.0, 1.0), 1.0)}
    after, _ = sweep(state, fed, 20, 100, Options(arms="shared"))
    assert len(after.arms.A) == 1
    assert after.arms.b == ((1.5, 1.5, 1.5, 0.0),)
    assert score(after.arms, 0, (1.0, 0.0, 0.0, 0.0), 1.0) == score(after.arms, 1, (1.0, 0.0, 0.0, 0.0), 1.0)


def test_a_server_that_joins_later() -> None:
    state = join(opened(3), "new", 1, progress=0.5)
    assert state.assignment == {"gw0": 0, "gw1": 1, "gw2": 2, "new": 1}
    assert state.windows["new"].context == (1.0, 0.75, 1.0, 0.5)
    with pytest.raises(ValueError, match="new"):
        join(state, "new", 1, progress=0.5)


@settings(max_examples=60)
@given(
    st.data(), st.integers(1, 5), st.integers(1, 4), st.booleans(), st.sampled_from(["disjoint", "shared"])
)
def test_a_history_agrees_with_a_plain_numpy_linucb(
    data: st.DataObject, servers: int, clusters: int, live: bool, kind: str
) -> None:
    """Three sweeps, replayed with inverses and loops; the order of dictionaries changes no bit."""
    names = [f"gw{i}" for i in range(servers)]
    options = Options(arms="shared" if kind == "shared" else "disjoint", live_counts=live, alpha=0.7)
    state = start(initial_assignment(names, clusters, "round-robin"), clusters, options.arms)
    arm = [0 if kind == "shared" else k for k in range(clusters)]
    A, b = [np.eye(4) for _ in range(clusters)], [np.zeros(4) for _ in range(clusters)]
    stored = {m: np.array(state.windows[m].context) for m in names}
    pi = state.assignment
    for t in (20, 40, 60):
        fed = {
            m: Evaluation(tuple(data.draw(st.lists(LOSS, min_size=clusters, max_size=clusters))), accuracy)
            for m in data.draw(st.sets(st.sampled_from(names)).map(sorted))
            for accuracy in [data.draw(st.floats(0, 1))]
        }
        shuffled = Clustering(state.arms, dict(reversed(state.windows.items())))
        again = sweep(shuffled, dict(reversed(fed.items())), t, 80, options)
        state, decisions = sweep(state, fed, t, 80, options)
        assert msgspec.msgpack.encode(again) == msgspec.msgpack.encode((state, decisions))

        for m in fed:
            A[arm[pi[m]]] += np.outer(stored[m], stored[m])
            b[arm[pi[m]]] += fed[m].accuracy * stored[m]
        counted = dict(pi)
        for decision in decisions:
            m = decision.server
            if m not in fed:
                assert decision.chosen == pi[m]
                continue
            totals = []
            for k in range(clusters):
                others = sum(counted[o] == k for o in names if o != m)
                ratio = loss_ratio(fed[m].losses[pi[m]], fed[m].losses[k])
                x = np.array([ratio, 1 - others / servers, float(k == pi[m]), t / 80])
                inverse = np.linalg.inv(A[arm[k]])
                totals.append(inverse @ b[arm[k]] @ x + 0.7 * np.sqrt(x @ inverse @ x))
                np.testing.assert_allclose(decision.contexts[k], x, atol=1e-12)
                assert decision.scores[k].total == pytest.approx(totals[k], abs=1e-9)
            assert totals[decision.chosen] >= max(totals) - 1e-9
            stored[m] = np.array(decision.contexts[decision.chosen])
            if live:
                counted[m] = decision.chosen
        pi = {**pi, **{d.server: d.chosen for d in decisions}}
        assert state.assignment == pi


def test_state_goes_through_messagepack_to_the_bit() -> None:
    state, _ = sweep(opened(3), even(3, loss=0.3, accuracy=1 / 3), 20, 100, Options())
    data = msgspec.msgpack.encode(state)
    assert msgspec.msgpack.decode(data, type=Clustering) == state
    assert msgspec.msgpack.encode(msgspec.msgpack.decode(data, type=Clustering)) == data


def test_what_cannot_be_is_refused() -> None:
    state = opened(2)
    with pytest.raises(ValueError, match="stranger"):
        sweep(state, {"stranger": Evaluation((1.0, 1.0), 0.5)}, 20, 100, Options())
    with pytest.raises(ValueError, match="3 clusters"):
        sweep(state, {"gw0": Evaluation((1.0, 1.0, 1.0), 0.5)}, 20, 100, Options())
    with pytest.raises(ValueError, match="cluster 2"):
        score(state.arms, 2, (1.0, 1.0, 1.0, 0.0), 1.0)
    with pytest.raises(ValueError, match="cluster 5"):
        start({"a": 5}, 2)
    with pytest.raises(ValueError, match="nan"):
        update(state.arms, 0, (1.0, 1.0, 1.0, 0.0), nan)
    for accuracy in (nan, -0.1, 1.1):
        with pytest.raises(ValueError, match="accuracy"):
            Evaluation((1.0, 1.0), accuracy)
    with pytest.raises(ValueError, match="alpha"):
        Options(alpha=inf)
    for broken in (
        {"A": [[1.0] * 16], "b": [[0.0] * 4], "clusters": 2},
        {"A": [[1.0] * 15], "b": [[0.0] * 4], "clusters": 1},
        {"A": [[inf] * 16], "b": [[0.0] * 4], "clusters": 1},
        {"A": [], "b": [], "clusters": 0},
    ):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(broken), type=Arms)
