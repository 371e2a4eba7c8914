"""Does the broker still hold what this process keeps retained there? Asked after each reconnect.

"Session present" proves little: a broker may come back with an older memory, or a cluster may answer from a
node that has none of it. So the owner reads its specification and its manifests back. They go out after the
chunks that they stand for, so a broker that has today's manifest has today's chunks, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedbac_edge.node.effects import CLOCK_GRAIN_S, Effect, Subscribe, Unsubscribe

CHECK_S = 20.0
"""What has not come so long after the last delivery is not there. One packet at 10 KB/s takes 12 s."""


class MemoryCheck:
    """One check at a time; a new connection begins a new one."""

    def __init__(self) -> None:
        self._awaited: dict[str, bytes] = {}
        """Topic -> what must be retained there, of what has not come yet."""
        self._by = 0.0

    def begin(self, expected: Mapping[str, bytes], listens: Collection[str], now: float) -> list[Effect]:
        """Ask for every topic of `expected` afresh; `listens` are the filters that stay anyway."""
        effects = self._leave(set(self._awaited) - set(expected), listens)
        self._awaited, self._by = dict(expected), now + CHECK_S
        for topic in sorted(expected):
            effects += [Unsubscribe(topic), Subscribe(topic)]
        return effects

    def heard(
        self, topic: str, payload: bytes, listens: Collection[str], now: float
    ) -> tuple[bool, list[Effect]]:
        """A delivery came: is it an older message than ours? And what to stop asking for."""
        if self._awaited:
            self._by = now + CHECK_S
        expected = self._awaited.get(topic)
        if expected is None or not payload:
            return False, []
        del self._awaited[topic]
        return payload != expected, self._leave([topic], listens)

    def due(self) -> list[float]:
        """When `overdue` has something to say."""
        return [self._by] if self._awaited else []

    def overdue(self, listens: Collection[str], now: float) -> tuple[list[str], list[Effect]]:
        """Topics on which nothing is retained, and what to stop asking for."""
        if not self._awaited or self._by > now + CLOCK_GRAIN_S:
            return [], []
        missing, self._awaited = sorted(self._awaited), {}
        return missing, self._leave(missing, listens)

    @staticmethod
    def _leave(topics: Collection[str], listens: Collection[str]) -> list[Effect]:
        return [Unsubscribe(topic) for topic in sorted(topics) if topic not in listens]
