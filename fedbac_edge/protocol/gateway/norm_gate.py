"""The gate on lengths: how far one update may move a model, and what is refused for going too far.

A step is measured in typical steps. Typical is the median of the last ones, or that of the round where enough
have answered, whichever is larger.

    up to FACTOR typical steps         counts as it is
    up to REFUSED                      counts as FACTOR typical steps: it is shortened
    up to REFUSED * WIDENING ^ r       counts as one typical step
    longer                             is refused; r, its sender's refusals in a row, grows by one

So no device is locked out: a step of k typical ones is refused at most log(k / REFUSED) / log(WIDENING) + 1
times in a row. No update moves a model by more than FACTOR typical steps. At most half of a round is refused.
What is refused is remembered too, at FACTOR typical steps, so the median follows when most steps have grown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Protocol, TypeVar

Steps = Mapping[str, float]
"""Group of roles that always travel together -> the length of the step."""

FACTOR = 10.0
REFUSED = 30.0
WIDENING = 1.5
ENOUGH = 3
"""From so many answers on a round has a median of its own."""
MINIMUM = 20
"""So many lengths must be known before anything is judged."""
HISTORY = 200
OFTEN = 3
"""Refusals in a row from which on people are told."""
TOLD_MOST = 20
REFUSALS_MOST = 1000
"""Counted no further: no finite step needs so many."""


class Judged(Protocol):
    """An update that is here, at a gateway or at the cloud."""

    parts: dict[str, str]
    steps: dict[str, float]
    suspect: bool
    shortened: dict[str, float]


class Remembers(Protocol):
    """A tier's state: the lengths of the last steps by group, and refusals in a row by sender."""

    norms: dict[str, list[float]]
    refusals: dict[str, int]


J = TypeVar("J", bound=Judged)


@dataclass(frozen=True)
class Verdict:
    """On the updates of a round that went beyond the bound."""

    refused: Mapping[str, str]
    """Sender -> why."""
    shortened: Mapping[str, Mapping[str, float]]
    """Sender that counts -> group -> the factor in (0, 1] that its step is multiplied by."""
    norms: dict[str, list[float]]
    refusals: dict[str, int]


def is_suspect(norms: Mapping[str, list[float]], steps: Steps) -> bool:
    """True for a step that is far longer than the last ones: it is judged when its round closes."""
    return any(step > FACTOR * _typical(norms.get(group, ()), ()) for group, step in steps.items())


def admit(state: Remembers, sender: str, steps: Steps) -> None:
    """A step that is not suspect counts: remember its length, and forget the sender's refusals."""
    state.norms = remembered(state.norms, steps)
    state.refusals = {name: times for name, times in state.refusals.items() if name != sender}


def close(
    state: Remembers, answers: dict[str, J], groups: Mapping[str, str], needed: int = 1
) -> tuple[list[str], dict[str, str]]:
    """A round ends: (senders whose long steps count, sender -> why it is refused).

    What is refused leaves `answers`; what is shortened is marked there. `groups` is role -> group; at least
    `needed` answers stay, or the round would not count.
    """
    suspects = [name for name, answer in sorted(answers.items()) if answer.suspect]
    if not suspects:
        return [], {}
    steps = {name: answer.steps for name, answer in answers.items() if answer.steps}
    verdict = judge(state.norms, state.refusals, steps, suspects, needed)
    state.norms, state.refusals = verdict.norms, verdict.refusals
    for name in verdict.refused:
        del answers[name]
    for name, factors in verdict.shortened.items():
        by_role = {role: factors[groups[role]] for role in answers[name].parts}
        answers[name].shortened = {role: factor for role, factor in by_role.items() if factor < 1.0}
    return list(verdict.shortened), dict(verdict.refused)


def judge(
    norms: Mapping[str, list[float]],
    refusals: Mapping[str, int],
    answers: Mapping[str, Steps],
    suspects: Iterable[str],
    needed: int = 1,
) -> Verdict:
    """The verdict on `suspects` among all `answers` of a round; `norms` has what is not suspect already."""
    judged = {name: answers[name] for name in suspects}
    groups = sorted({group for steps in judged.values() for group in steps})
    typical = {
        group: _typical(norms.get(group, ()), [steps[group] for steps in answers.values() if group in steps])
        for group in groups
    }
    excess = {name: max(step / typical[g] for g, step in steps.items()) for name, steps in judged.items()}
    times = {name: min(REFUSALS_MOST, refusals.get(name, 0)) for name in judged}
    beyond = [name for name in judged if excess[name] > REFUSED * WIDENING ** times[name]]
    allowed = max(0, min(len(answers) // 2, len(answers) - needed))
    refused = sorted(beyond, key=lambda name: (-excess[name], name))[:allowed]
    factors, known = dict[str, dict[str, float]](), dict(norms)
    for name, steps in judged.items():
        known = remembered(known, {g: _factor(step, typical[g], FACTOR) * step for g, step in steps.items()})
        most = FACTOR if excess[name] <= REFUSED else 1.0
        factors[name] = {group: _factor(step, typical[group], most) for group, step in steps.items()}
    why = "a step of {:.3g} times the usual length; {} refused in a row"
    return Verdict(
        refused={name: why.format(excess[name], times[name] + 1) for name in refused},
        shortened={name: factors[name] for name in judged if name not in refused},
        norms=known,
        refusals={
            **{name: past for name, past in refusals.items() if name not in judged},
            **{name: times[name] + 1 for name in refused},
        },
    )


def again_and_again(state: Remembers) -> list[tuple[str, int]]:
    """(sender, refusals in a row) of the worst ones, for people."""
    worst = sorted(state.refusals.items(), key=lambda one: (-one[1], one[0]))
    return [(name, times) for name, times in worst if times >= OFTEN][:TOLD_MOST]


def remembered(norms: Mapping[str, list[float]], steps: Steps) -> dict[str, list[float]]:
    """The lengths with those of one more update."""
    fresh = {group: [*norms.get(group, []), step][-HISTORY:] for group, step in steps.items()}
    return {**norms, **fresh}


def length(steps: Steps) -> float:
    """Of the whole step, over all groups."""
    return float(sum(step**2 for step in steps.values()) ** 0.5)


def _typical(known: Iterable[float], round: Iterable[float]) -> float:
    """The larger of both medians; infinite while there is none, or where most steps have no length."""
    past, now = list(known), list(round)
    if len(past) < MINIMUM:
        return inf
    return max(median(past), median(now) if len(now) >= ENOUGH else 0.0) or inf


def _factor(step: float, typical: float, most: float) -> float:
    """What a step is multiplied by to have at most `most` times the typical length."""
    return min(1.0, most * typical / step) if step else 1.0
