"""The server: rounds of drawing clients, sending, waiting, folding and measuring."""

from __future__ import annotations

import time
from collections.abc import Callable

from fedbac_edge.parts import is_finite
from fedbac_edge.semi.hall import Hall
from fedbac_edge.semi.method import Bench, Holding, Method, State
from fedbac_edge.semi.rows import Row, Score, size
from fedbac_edge.semi.study import StudyError, StudyFailed
from fedbac_edge.semi.workers import Workers, done


def drawn(bench: Bench, method: Method, holdings: tuple[Holding, ...], count: int, round: int) -> list[int]:
    """The clients of a round, ascending: the first `count` that the method may draw, of one shuffle for all
    methods. Raises StudyError when there are none."""
    able = {holding.number for holding in holdings if method.draws(holding)}
    if not able:
        raise StudyError("no client has the data that this method learns from: give more --labels")
    order = bench.random("draw", round).permutation(len(holdings))
    return sorted([int(number) for number in order if number in able][:count])


def exchange(hall: Hall, workers: Workers, state: State, round: int) -> tuple[State, Row]:
    """One round: (the server's new memory, its row). Raises StudyFailed when training diverges."""
    began = time.perf_counter()
    method, bench, holdings = hall.method, hall.bench, hall.holdings
    numbers = drawn(bench, method, holdings, hall.study.selected, round)
    sent = {number: method.download(bench, state, holdings[number], round) for number in numbers}
    # The longest work first; the order of answers is that of the numbers whatever happens.
    heavy = sorted(numbers, key=lambda n: -(holdings[n].labelled + holdings[n].unlabelled))
    futures = {number: workers.learn(number, sent[number], round) for number in heavy}
    answers = {number: done(futures[number]) for number in numbers}
    for number, answer in answers.items():
        if not all(map(is_finite, answer.parts.values())):
            raise StudyFailed(
                f"training diverged at client {number} in round {round}: weights are no finite numbers; "
                "lower --learning-rate, or bound the gradient with --clip-norm"
            )
    state = method.fold(bench, state, answers, round)
    views = method.views(state)
    named = {name for view in views.values() for name, _ in view}
    found = workers.score({name: state[name] for name in sorted(named)}, views)
    scores = {name: Score(e.correct / e.count, e.loss_sum / e.count) for name, e in found.items()}
    main = next(iter(views))
    samples = [sum(answers[n].weights.values()) for n in numbers]
    return state, Row(
        round=round,
        view=main,
        accuracy=scores[main].accuracy,
        loss=scores[main].loss,
        views=scores,
        training_loss=sum(answers[n].loss * s for n, s in zip(numbers, samples, strict=True))
        / max(sum(samples), 1),
        clients=tuple(numbers),
        steps=sum(answer.steps for answer in answers.values()),
        up_bytes=sum(size(answer.parts) for answer in answers.values()),
        down_bytes=sum(size(parts) for parts in sent.values()),
        wall_s=time.perf_counter() - began,
    )


def rounds(
    hall: Hall,
    workers: Workers,
    state: State,
    first: int,
    keep: Callable[[State, Row], None],
) -> State:
    """All rounds from `first` on; `keep` gets each as it ends."""
    for round in range(first, hall.study.rounds + 1):
        state, row = exchange(hall, workers, state, round)
        keep(state, row)
    return state
