"""Cluster assignment at the cloud by LinUCB (Fed-BAC, arXiv 2605.11815; features and order are ours).

For server m and cluster k the context x has d = 4 features, and with A_k = I + sum x x', b_k = sum r x over
the windows that arm k served, theta_k = A_k^-1 b_k, the score is

    theta_k . x  +  alpha * sqrt(x' A_k^-1 x).

Everything here is plain IEEE arithmetic in a fixed order (no BLAS, sums by `math.fsum`), so that one history
gives one assignment, to the bit, on every processor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from math import fsum, isfinite, sqrt
from typing import Literal

import msgspec

FEATURES = ("loss ratio", "cluster balance", "assignment stability", "training progress")
D = len(FEATURES)
Context = tuple[float, float, float, float]
ArmKind = Literal["disjoint", "shared"]
RewardKind = Literal["accuracy", "accuracy-change"]
Rule = Literal["round-robin", "single"]


class Options(msgspec.Struct, frozen=True):
    """What the reconstruction leaves open.

    `arms`: one per cluster, or one for all. `reward`: the served model's accuracy at the end of the window,
    or its change since the window began. `live_counts`: |C_k| follows the moves inside a sweep; without it
    servers that see equal arms herd onto one.
    """

    arms: ArmKind = "disjoint"
    reward: RewardKind = "accuracy"
    alpha: float = 1.0
    live_counts: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < float("inf"):
            raise ValueError(f"alpha is the width's weight, finite and from 0 on, not {self.alpha}")


class Arms(msgspec.Struct, frozen=True):
    """The ridge regressions: A of each arm (d*d numbers, row by row) and b of each arm (d numbers)."""

    A: tuple[tuple[float, ...], ...]
    b: tuple[tuple[float, ...], ...]
    clusters: int
    kind: ArmKind = "disjoint"

    def __post_init__(self) -> None:
        count = 1 if self.kind == "shared" else self.clusters
        if self.clusters < 1 or len(self.A) != count or len(self.b) != count:
            raise ValueError(f"{self.clusters} clusters with {self.kind} arms need {max(count, 1)} arm(s)")
        if any(len(a) != D * D for a in self.A) or any(len(b) != D for b in self.b):
            raise ValueError(f"an arm holds {D * D} numbers in A and {D} in b")
        if not all(isfinite(value) for row in (*self.A, *self.b) for value in row):
            raise ValueError("an arm holds a number that is not finite")


class Window(msgspec.Struct, frozen=True):
    """The cluster that serves a server now, and what was known when it was chosen.

    `context` is that of the chosen cluster before the switch; `accuracy` that of the served model then (None
    before the first evaluation).
    """

    cluster: int
    context: Context
    accuracy: float | None = None


class Clustering(msgspec.Struct, frozen=True):
    """All that the cloud keeps between sweeps; goes through MessagePack as it is."""

    arms: Arms
    windows: dict[str, Window]

    @property
    def assignment(self) -> dict[str, int]:
        """pi: server -> cluster, in name order."""
        return {server: self.windows[server].cluster for server in sorted(self.windows)}


class Evaluation(msgspec.Struct, frozen=True):
    """One server's evaluation data under every cluster.

    `losses[k]`: mean cross-entropy of h(.; G) + f(.; K_k); `accuracy` in [0, 1]: of the model served now.
    """

    losses: tuple[float, ...]
    accuracy: float

    def __post_init__(self) -> None:
        if not 0 <= self.accuracy <= 1:
            raise ValueError(f"an accuracy is between 0 and 1, not {self.accuracy}")


class Score(msgspec.Struct, frozen=True):
    """`total` = `mean` (theta . x) + alpha * `width` (sqrt(x' A^-1 x))."""

    mean: float
    width: float
    total: float


class Decision(msgspec.Struct, frozen=True):
    """Why a server is where it is: per cluster its context and score. For the ledger.

    Without evaluation there are no contexts and scores, and no reward (None) was given.
    """

    server: str
    previous: int
    chosen: int
    contexts: tuple[Context, ...] = ()
    scores: tuple[Score, ...] = ()
    reward: float | None = None


def due(round_number: int, rounds: int, every: int) -> bool:
    """Whether a sweep follows this round (counted from 1): every tau_re rounds, not after the last."""
    return 0 < round_number < rounds and round_number % every == 0


def initial_assignment(servers: Collection[str], clusters: int, rule: Rule) -> dict[str, int]:
    """Server -> cluster in name order: dealt out in turn, or everyone in cluster 0."""
    if clusters < 1:
        raise ValueError(f"there must be at least one cluster, not {clusters}")
    if rule not in ("round-robin", "single"):
        raise ValueError(f"no initial assignment is called {rule!r}; there are: round-robin, single")
    return {name: i % clusters if rule == "round-robin" else 0 for i, name in enumerate(sorted(servers))}


def start(assignment: Mapping[str, int], clusters: int, kind: ArmKind = "disjoint") -> Clustering:
    """A_k = I, b_k = 0, and the initial assignment as if chosen with the context (1, balance, 1, 0)."""
    for server, k in sorted(assignment.items()):
        if not 0 <= k < clusters:
            raise ValueError(f"{server} is assigned to cluster {k}; there are {clusters}, counted from 0")
    count = 1 if kind == "shared" else clusters
    identity = tuple(1.0 if i == j else 0.0 for i in range(D) for j in range(D))
    sizes = Counter(assignment.values())
    windows = {
        server: Window(
            assignment[server], (1.0, balance(sizes[assignment[server]] - 1, len(assignment)), 1.0, 0.0)
        )
        for server in sorted(assignment)
    }
    return Clustering(Arms((identity,) * count, ((0.0,) * D,) * count, clusters, kind), windows)


def join(state: Clustering, server: str, cluster: int, progress: float) -> Clustering:
    """`state` with a server that came later, on `cluster`, as if chosen in (1, balance, 1, progress)."""
    if server in state.windows or not 0 <= cluster < state.arms.clusters:
        raise ValueError(f"{server} cannot join cluster {cluster}: it is here already, or there is none such")
    others = Counter(state.assignment.values())[cluster]
    window = Window(cluster, (1.0, balance(others, len(state.windows) + 1), 1.0, progress))
    return Clustering(state.arms, {**state.windows, server: window})


def loss_ratio(current: float, candidate: float) -> float:
    """clip(L[m, pi(m)] / L[m, k], 0, 2): above 1 the candidate fits the server better.

    Equal losses give 1, zeros included. A loss that is not finite (a diverged network) is worse than any
    other: 0 for such a candidate, 2 for any finite one against a current loss like that, 1 between two.
    """
    if not (isfinite(current) and isfinite(candidate)):
        return 1.0 + isfinite(candidate) - isfinite(current)
    current, candidate = max(current, 0.0), max(candidate, 0.0)
    if current == candidate:
        return 1.0
    return 2.0 if current >= 2.0 * candidate else current / candidate


def balance(others: int, servers: int) -> float:
    """1 - |C_k without m| / M: 1 for a cluster without other servers."""
    return 1.0 - others / servers


def score(arms: Arms, cluster: int, x: Context, alpha: float) -> Score:
    """The upper confidence bound of `cluster` in the context `x`."""
    arm = _arm(arms, cluster)
    factor = _cholesky(arms.A[arm])
    # With A = L L', u = L^-1 x and v = L^-1 b: theta . x = u . v, x' A^-1 x = |u|^2, never below zero.
    u, v = _forward(factor, x), _forward(factor, arms.b[arm])
    mean, width = fsum(p * q for p, q in zip(u, v, strict=True)), sqrt(fsum(p * p for p in u))
    return Score(mean, width, mean + alpha * width)


def update(arms: Arms, cluster: int, x: Context, reward: float) -> Arms:
    """A += x x', b += r x for the arm of `cluster`. Raises ValueError for a reward that is not finite."""
    if not isfinite(reward):
        raise ValueError(f"a reward must be finite, not {reward}")
    arm = _arm(arms, cluster)
    A, b = list(arms.A), list(arms.b)
    A[arm] = tuple(a + x[i // D] * x[i % D] for i, a in enumerate(A[arm]))
    b[arm] = tuple(value + reward * feature for value, feature in zip(b[arm], x, strict=True))
    return Arms(tuple(A), tuple(b), arms.clusters, arms.kind)


def sweep(
    state: Clustering,
    evaluations: Mapping[str, Evaluation],
    round_number: int,
    rounds: int,
    options: Options,
) -> tuple[Clustering, tuple[Decision, ...]]:
    """Reward the elapsed windows, then reassign the servers one after another in name order.

    First every evaluated server rewards the arm that served it, with the context stored when that arm was
    chosen; so each choice knows all that the window taught. Then each takes its largest score over all
    clusters, active or not; ties keep the current cluster, or take the first of the others. A server
    without evaluation keeps its cluster and its open window, updates no arm, and still counts in |C_k|.
    With the reward "accuracy-change" a first window, which has nothing to compare with, updates no arm.

    Returns the new state and a Decision per server, in name order. Nothing but pi changes: no network is
    copied or reset. Raises ValueError for an unknown server or losses that do not fit the clusters.
    """
    clusters, windows = state.arms.clusters, dict(sorted(state.windows.items()))
    for server in sorted(evaluations):
        if server not in windows:
            raise ValueError(f"{server} sent an evaluation but is not a server of this federation")
        if (found := len(evaluations[server].losses)) != clusters:
            raise ValueError(f"{server} evaluated {found} clusters; there are {clusters}")

    arms, rewards = state.arms, dict[str, float]()
    for server in sorted(evaluations):
        window, accuracy = windows[server], evaluations[server].accuracy
        if options.reward == "accuracy":
            rewards[server] = accuracy
        elif window.accuracy is not None:
            rewards[server] = accuracy - window.accuracy
        if server in rewards:
            arms = update(arms, window.cluster, window.context, rewards[server])

    sizes = Counter(state.assignment.values())
    decisions = []
    for server in sorted(windows):
        current = windows[server].cluster
        evaluation = evaluations.get(server)
        if evaluation is None:
            decisions.append(Decision(server, current, current))
            continue
        contexts = tuple(
            (
                loss_ratio(evaluation.losses[current], evaluation.losses[k]),
                balance(sizes[k] - (k == current), len(windows)),
                1.0 if k == current else 0.0,
                round_number / rounds,
            )
            for k in range(clusters)
        )
        scores = tuple(score(arms, k, contexts[k], options.alpha) for k in range(clusters))
        chosen = max(range(clusters), key=lambda k: (scores[k].total, k == current, -k))
        windows[server] = Window(chosen, contexts[chosen], evaluation.accuracy)
        decisions.append(Decision(server, current, chosen, contexts, scores, rewards.get(server)))
        if options.live_counts:
            sizes[current] -= 1
            sizes[chosen] += 1
    return Clustering(arms, windows), tuple(decisions)


def _arm(arms: Arms, cluster: int) -> int:
    if not 0 <= cluster < arms.clusters:
        raise ValueError(f"there is no cluster {cluster}; there are {arms.clusters}, counted from 0")
    return 0 if arms.kind == "shared" else cluster


def _cholesky(A: tuple[float, ...]) -> list[list[float]]:
    """The lower triangle L with A = L L', row by row; A is the identity plus squares, so it exists."""
    L: list[list[float]] = []
    for i in range(D):
        row: list[float] = []
        for j in range(i):
            rest = fsum([A[i * D + j], *(-row[k] * L[j][k] for k in range(j))])
            row.append(rest / L[j][j])
        row.append(sqrt(fsum([A[i * D + i], *(-value * value for value in row)])))
        L.append(row)
    return L


def _forward(L: list[list[float]], y: tuple[float, ...]) -> list[float]:
    """L^-1 y."""
    solved: list[float] = []
    for i in range(D):
        rest = fsum([y[i], *(-L[i][k] * solved[k] for k in range(i))])
        solved.append(rest / L[i][i])
    return solved
