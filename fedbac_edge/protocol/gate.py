"""The gate: what an update must be before it counts, at gateways and at the cloud alike.

Refused by name: another round, somebody not asked, another base, wrong roles or shapes, numbers that are not
finite, no samples, and a step far longer than what the others take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import median

from fedbac_edge.parts import PartError, Schema, distance, is_finite, unpack
from fedbac_edge.protocol.messages import Parts, Score

NORM_FACTOR = 10.0
NORM_HISTORY = 200
NORM_MINIMUM = 20


class Refused(ValueError):
    """The update does not count; the message is the reason that its sender is told."""


def check_base(base: Mapping[str, str], task: Parts) -> None:
    """The update must start from the parts of the task: role -> hash."""
    wrong = sorted(role for role in {*base, *task} if role not in task or base.get(role) != task[role].hash)
    if wrong:
        raise Refused(f"trained from another base: {', '.join(wrong)}")


def check_parts(
    parts: Mapping[str, bytes],
    base: Mapping[str, bytes],
    schema: Schema,
    norms: Sequence[float],
    use_norms: bool,
) -> float:
    """Roles, schema, finiteness and length of the step; returns the step's norm over all roles.

    `parts` and `base` are role -> canonical bytes; `norms` are those of the updates accepted before.
    """
    if set(parts) != set(base):
        raise Refused(
            f"expected the roles {', '.join(sorted(base))}, found {', '.join(sorted(parts)) or 'none'}"
        )
    squares = 0.0
    for role in sorted(parts):
        try:
            part = unpack(parts[role], schema)
        except PartError as error:
            raise Refused(f"{role}: {error}"[:400]) from error
        if not is_finite(part):
            raise Refused(f"{role}: holds a number that is not finite")
        squares += distance(part, unpack(base[role], schema)) ** 2
    norm = float(squares**0.5)
    if use_norms and len(norms) >= NORM_MINIMUM and norm > NORM_FACTOR * median(norms):
        raise Refused(
            f"a step of length {norm:.3g}, over {NORM_FACTOR:g} times the median of {median(norms):.3g}"
        )
    return norm


def check_score(score: Score | None) -> None:
    """A score that can be summed: finite loss, no more right answers than samples."""
    if score is not None and not (isfinite(score.loss) and score.correct <= score.count):
        raise Refused(f"a score that cannot be: {score.correct} of {score.count} right, loss {score.loss}")
