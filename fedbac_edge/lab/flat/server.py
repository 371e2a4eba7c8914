"""The server: rounds of drawing clients, sending, waiting, folding and measuring."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedbac_edge.lab.flat.hall import Hall
from fedbac_edge.lab.flat.jobs import Workers
from fedbac_edge.lab.flat.method import Answer, Bench, Holding, Method, State
from fedbac_edge.lab.flat.rows import Row, Score, size
from fedbac_edge.lab.flat.study import StudyError, StudyFailed
from fedbac_edge.parts.part import Part, is_finite

Watch = Callable[[int, int], None]
"""Told (answers that are there, answers of the whole round): when a round begins, and with each answer."""


def unwatched(done: int, total: int) -> None:
    """Nobody watches."""


def drawn(bench: Bench, method: Method, holdings: tuple[Holding, ...], count: int, round: int) -> list[int]:
    """The clients of a round, ascending: the first `count` that the method may draw, of one shuffle for all
    methods. Raises StudyError when there are none."""
    able = {holding.number for holding in holdings if method.draws(holding)}
    if not able:
        raise StudyError("no client has the data that this method learns from: give more --labels")
    order = bench.random("draw", round).permutation(len(holdings))
    return sorted([int(number) for number in order if number in able][:count])


@dataclass
class _Tally:
    """What the exchanges of a round have brought and cost so far."""

    held: dict[int, dict[str, Part]]
    """Client -> what it was sent in this round, keeps to the round's end, and is not sent again."""
    answers: list[Answer] = field(default_factory=list)
    down_bytes: int = 0

    def add(self, number: int, needed: Mapping[str, Part], answer: Answer) -> None:
        held = self.held[number]
        sent = {name: part for name, part in needed.items() if held.get(name) is not part}
        held.update(sent)
        self.down_bytes += size(sent)
        self.answers.append(answer)


def one_round(
    hall: Hall, workers: Workers, state: State, round: int, watch: Watch = unwatched
) -> tuple[State, Row]:
    """One round: (the server's new memory, its row). Raises StudyFailed when training diverges, PoolError."""
    began = time.perf_counter()
    method, bench, holdings = hall.method, hall.bench, hall.holdings
    numbers = drawn(bench, method, holdings, hall.study.selected, round)
    tally = _Tally(held={number: {} for number in numbers})
    exchanges = method.exchanges(round)
    total = len(exchanges) * len(numbers)
    watch(0, total)
    for index, exchange in enumerate(exchanges):
        needed = {number: exchange.download(bench, state, holdings[number], round) for number in numbers}
        futures = {number: workers.learn(number, needed[number], round, index) for number in numbers}
        found: dict[int, Answer] = {}
        for number, answer in workers.answers(futures):  # as they come: a failure is known at once
            found[number] = answer
            watch(index * len(numbers) + len(found), total)
        answers = {number: found[number] for number in numbers}
        _check_finite(answers, round)
        for number, answer in answers.items():
            tally.add(number, needed[number], answer)
        state = exchange.fold(bench, state, answers, round)
    views = method.views(state)
    named = {name for view in views.values() for name, _ in view}
    scored = workers.score({name: state[name] for name in sorted(named)}, views)
    scores = {name: Score(e.correct / e.count, e.loss_sum / e.count) for name, e in scored.items()}
    main = next(iter(views))
    samples = [sum(answer.weights.values()) for answer in tally.answers]
    return state, Row(
        round=round,
        view=main,
        accuracy=scores[main].accuracy,
        loss=scores[main].loss,
        views=scores,
        training_loss=sum(answer.loss * s for answer, s in zip(tally.answers, samples, strict=True))
        / max(sum(samples), 1),
        clients=tuple(numbers),
        steps=sum(answer.steps for answer in tally.answers),
        up_bytes=sum(size(answer.parts) for answer in tally.answers),
        down_bytes=tally.down_bytes,
        wall_s=time.perf_counter() - began,
    )


def _check_finite(answers: Mapping[int, Answer], round: int) -> None:
    for number, answer in answers.items():
        if not all(map(is_finite, answer.parts.values())):
            raise StudyFailed(
                f"training diverged at client {number} in round {round}: weights are no finite numbers; "
                "lower --learning-rate, or bound the gradient with --clip-norm"
            )


def rounds(
    hall: Hall,
    workers: Workers,
    state: State,
    first: int,
    keep: Callable[[State, Row], None],
    watch: Watch = unwatched,
) -> State:
    """All rounds from `first` on; `keep` gets each as it ends, `watch` is told what goes on inside."""
    for round in range(first, hall.study.rounds + 1):
        state, row = one_round(hall, workers, state, round, watch)
        keep(state, row)
    return state
