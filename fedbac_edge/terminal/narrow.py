"""Tables on terminals of any width: columns that do not fit are left out, the least important first."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

ALWAYS = 9
GAP = " "


@dataclass(frozen=True)
class Column:
    """Cells are aligned at the right of `width` characters; columns of the lowest `keep` go first."""

    name: str
    width: int
    keep: int = ALWAYS


def terminal_width() -> int | None:
    """Characters in a line of the terminal, None where output goes to a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitting(columns: Sequence[Column], room: int | None, gap: str = GAP) -> tuple[Column, ...] | None:
    """The columns that `room` characters hold; None when not even those fit that are always there."""
    left = tuple(columns)
    while room is not None and sum(c.width for c in left) + len(gap) * (len(left) - 1) > room:
        lowest = min(column.keep for column in left)
        if lowest == ALWAYS:
            return None
        left = tuple(column for column in left if column.keep != lowest)
    return left


def row(cells: Mapping[str, str], layout: Iterable[Column], gap: str = GAP) -> str:
    """The cells of a layout's columns in one line."""
    return gap.join(f"{cells[column.name]:>{column.width}}" for column in layout)


def packed(pieces: Iterable[str], room: int | None, gap: str) -> list[str]:
    """As many pieces on a line as fit; none is cut."""
    lines: list[str] = []
    for piece in pieces:
        if lines and (room is None or len(lines[-1]) + len(gap) + len(piece) <= room):
            lines[-1] += gap + piece
        else:
            lines.append(piece)
    return lines
