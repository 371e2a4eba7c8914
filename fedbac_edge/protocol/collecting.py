"""Collecting answers: each that was asked for counts once or is refused; the last or the deadline ends it.

    begun --ask--> waiting for N --count | refuse | decline--> waiting for fewer --last | deadline--> ended

A gateway collects updates and scores from its devices, the cloud from its gateways, by these rules alone.
What is collected lies in one value; the functions return the next one and touch nothing else.

A round may take twice the 90th percentile of past rounds, within configured bounds. A deadline travels as a
duration, and each tier leaves the one above time to close: a dead device costs its own update and not its
gateway's. What a round took is the time until the last update that counted, so a device that is gone for
good does not draw out the rounds of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from fedbac_edge.protocol.events import Action, Log, Settle

Key = tuple[str, int]
"""(federation's instance, round): what is counted once per kind and name, whatever the link repeats."""
DEADLINE = "deadline"
"""The timer that ends the collecting."""
GONE = "gone "
"""The timers after which one that has vanished is waited for no longer: this, and its name."""
HISTORY = 20
"""So many rounds' times are remembered."""
SHARE = 0.9
"""A tier passes this share of its own deadline down."""
FIRST_FACTOR = 10.0
"""The first round knows nothing: ten times the lower bound (models load, caches are cold)."""
PATIENCE = 3
"""So many void rounds in a row tell that what past rounds took says nothing about the next one."""


class Collecting(msgspec.Struct, frozen=True, kw_only=True):
    """Who was asked in the open round or evaluation, and how far it is. Names are in the order of asking."""

    asked: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    """Of `asked`, those from whom nothing final has come."""
    counted: dict[str, Key] = {}
    """Kind and name -> the last answer that counted, this time or earlier; said again, a receipt again."""
    refused: dict[str, str] = {}
    """Of `asked`, whose answer does not count -> why."""
    deadline: float | None = None
    """When it ends, in the machine's time; None: nothing is being collected."""
    gone: dict[str, float] = {}
    """Of `waiting`, those that have vanished -> when they are waited for no longer."""


def begin(before: Collecting, deadline: float, asked: tuple[str, ...] = ()) -> Collecting:
    """A new round or evaluation; what has counted earlier is remembered."""
    return Collecting(asked=asked, waiting=asked, counted=before.counted, deadline=deadline)


def ask(now: Collecting, names: tuple[str, ...]) -> Collecting:
    """All of `names` are asked, in a round that has begun."""
    return replace(now, asked=names, waiting=names)


def has_counted(now: Collecting, kind: str, name: str, key: Key) -> bool:
    """True for an answer that counted before and comes again."""
    return now.counted.get(f"{kind} {name}") == key


def count(now: Collecting, kind: str, name: str, key: Key) -> Collecting:
    """The answer of `name` counts."""
    return _without(replace(now, counted={**now.counted, f"{kind} {name}": key}), name)


def refuse(now: Collecting, name: str, reason: str) -> Collecting:
    """The answer of `name`, which was asked, does not count."""
    return _without(replace(now, refused={**now.refused, name: reason}), name)


def hold(now: Collecting, name: str) -> Collecting:
    """The answer of `name` is here; whether it counts is decided at the end."""
    return _without(now, name)


def decline(now: Collecting, name: str) -> Collecting:
    """`name` will not answer, and the round need not wait for it."""
    return _without(now, name)


def _without(now: Collecting, name: str) -> Collecting:
    return replace(
        now,
        waiting=tuple(other for other in now.waiting if other != name),
        gone={other: until for other, until in now.gone.items() if other != name},
    )


def seen(now: Collecting, name: str, online: bool, until: float) -> Collecting:
    """What is heard of `name`: back in time, or vanished; then it is waited for until `until` at most."""
    if online or name not in now.waiting:
        return replace(now, gone={other: end for other, end in now.gone.items() if other != name})
    return now if name in now.gone else replace(now, gone={**now.gone, name: until})


def close_when_done(collected: Collecting, now: float) -> Collecting:
    """All answered: the deadline is `now`, as an event of its own, once this one's blobs are stored."""
    return collected if collected.waiting else replace(collected, deadline=now)


def fired(now: Collecting) -> Collecting:
    """The deadline's timer has gone off."""
    return replace(now, deadline=None)


def end(now: Collecting) -> Collecting:
    """Stop waiting for those that have not answered."""
    return replace(now, waiting=(), deadline=None, gone={})


def timers(now: Collecting) -> dict[str, float]:
    """The deadline, while there is one, and when each that has vanished is given up."""
    given_up = {GONE + name: until for name, until in now.gone.items()}
    return given_up if now.deadline is None else {**given_up, DEADLINE: now.deadline}


def task_key(name: str) -> str:
    """Under which the task for `name` stands in the outbox until it is answered."""
    return f"task:{name}"


def let_go(now: Collecting, round: int) -> list[Action]:
    """Drop the tasks of those that have not answered, and say so in the ledger."""
    dropped: list[Action] = [Settle(task_key(name)) for name in now.waiting]
    return [*dropped, *(Log("silent", name, round) for name in now.waiting)]


def adaptive(past: Sequence[float], lower: float, upper: float, voids: int = 0) -> float:
    """Seconds for the next round, from the seconds of past ones that counted.

    A void round is no measure of how long a round takes. But a fleet that has become slower than its deadline
    brings only void rounds: after PATIENCE `voids` in a row a round gets the time of a first one.
    """
    if not past or voids >= PATIENCE:
        return min(upper, max(FIRST_FACTOR * lower, adaptive(past, lower, upper) if past else 0.0))
    ordered = sorted(past)
    ninetieth = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return min(upper, max(lower, 2.0 * ninetieth))


def share(seconds: float) -> float:
    """What is passed down of a deadline."""
    return SHARE * seconds


def from_older(state: Any) -> Any:
    """A stored state, decoded, as it is today: what is collected once lay among its other fields."""
    if not isinstance(state, dict) or "collecting" in state or "waiting" not in state:
        return state
    timers = dict(state.get("timers", {}))
    collecting = {
        **{name: state[name] for name in ("asked", "waiting", "counted", "refused") if name in state},
        "deadline": timers.pop(DEADLINE, None),
    }
    return {**state, "collecting": collecting, "timers": timers}
