"""A bound on ledger lines that a stranger can cause: a flood of bad messages must not fill a disk."""

from __future__ import annotations

RESTRAINED = frozenset(
    {
        "unreadable",
        "refused",
        "publish refused",
        "published again",
        "unanswered",
        "foreign task",
        "foreign spec",
        "stale task",
        "declined",
        "unlisted",
    }
)
"""Kinds of lines that another process's messages cause, as many as it likes."""
LINES = 20
PERIOD_S = 600.0
"""So many lines of one kind about one subject in so many seconds; the rest is only counted."""
SUBJECTS = 1000
"""Subjects that are counted apart; beyond that the one unheard of for longest is forgotten."""


class Restraint:
    """Decides which lines are written. In memory only: a restart begins anew."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], tuple[float, int]] = {}
        """(kind, subject) -> (when its period began, lines since)."""

    def admit(self, kind: str, subject: str, now: float) -> int | None:
        """None: leave this line out. Else write it, and say how many were left out before it."""
        if kind not in RESTRAINED:
            return 0
        began, lines = self._counts.pop((kind, subject), (now, 0))
        omitted = 0
        if now - began >= PERIOD_S:
            began, lines, omitted = now, 0, max(0, lines - LINES)
        self._counts[kind, subject] = began, lines + 1
        if len(self._counts) > SUBJECTS:
            del self._counts[next(iter(self._counts))]
        return omitted if lines < LINES else None
