"""A store whose process dies at a chosen write: in the middle of a transaction, before its commit, after it.

Every call that writes is a point, and so is every commit. The transactions are those of the real store:
what a death leaves behind is what SQLite leaves behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from fedbac_edge.lab.fleet.faults import Died
from fedbac_edge.node.store import Store

Kind = Literal["write", "before commit", "after commit"]


class DyingStore(Store):
    """Counts the write points of all lives of a process; at `deaths` the present life ends with Died."""

    def __init__(
        self,
        path: Path | None = None,
        deaths: frozenset[int] = frozenset(),
        die: Callable[[str], None] | None = None,
    ) -> None:
        """`deaths` are numbers of points, from 1 on. `die` is what happens there (default: raise Died)."""
        super().__init__(path)
        self.deaths = deaths
        self.points: list[Kind] = []
        """The kinds of the points passed so far."""
        self._die = die

    def _point(self, kind: Kind) -> None:
        self.points.append(kind)
        if len(self.points) in self.deaths:
            where = f"point {len(self.points)}, {kind}"
            if self._die is not None:
                self._die(where)
            raise Died(where)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """See Store; a point before the commit and one after it."""
        with super().transaction():
            yield
            self._point("before commit")
        self._point("after commit")

    def write(self, key: str, value: bytes) -> None:
        """See Store."""
        super().write(key, value)
        self._point("write")

    def keep_blob(self, hash: str, data: bytes) -> None:
        """See Store."""
        super().keep_blob(hash, data)
        self._point("write")

    def collect_blobs(self, kept: set[str]) -> int:
        """See Store."""
        count = super().collect_blobs(kept)
        self._point("write")
        return count

    def post(self, topic: str, payload: bytes | None, **how: Any) -> int:
        """See Store."""
        row = super().post(topic, payload, **how)
        self._point("write")
        return row

    def remove(self, id: int) -> None:
        """See Store."""
        super().remove(id)
        self._point("write")

    def own(self, topic: str, payload: bytes | None, blob: str = "", kind: str = "message") -> None:
        """See Store."""
        super().own(topic, payload, blob, kind)
        self._point("write")

    def disown(self, topic: str) -> None:
        """See Store."""
        super().disown(topic)
        self._point("write")

    def spool(
        self, topic: str, transfer: str, index: int, count: int, size: int, now: float, data: bytes
    ) -> bool:
        """See Store."""
        complete = super().spool(topic, transfer, index, count, size, now, data)
        self._point("write")
        return complete

    def unspool(self, topic: str, transfer: str, count: int, size: int) -> list[bytes]:
        """See Store."""
        pieces = super().unspool(topic, transfer, count, size)
        self._point("write")
        return pieces

    def drop_spool(self, topic: str) -> None:
        """See Store."""
        super().drop_spool(topic)
        self._point("write")

    def log(self, wall: float, round: int, kind: str, subject: str, detail: Mapping[str, Any]) -> None:
        """See Store."""
        super().log(wall, round, kind, subject, detail)
        self._point("write")
