"""A report as blocks that any format can write: headings, paragraphs, tables, pictures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Heading:
    """`level` 1 is the page's own."""

    level: int
    text: str


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True)
class Remarks:
    """Sentences that a reader must not miss, as a list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Cells are plain text. The first column and those in `words` are text, the others figures."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: frozenset[int] = frozenset()


NONE = "-"
"""A cell about which there is nothing to say."""


def without_empty_columns(table: Table) -> Table:
    """The table without the columns in which no row has anything; the first one stays."""
    kept = [
        i
        for i in range(len(table.header))
        if i == 0 or not table.rows or any(row[i] != NONE for row in table.rows)
    ]
    return Table(
        table.caption,
        tuple(table.header[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in table.rows),
        frozenset(new for new, old in enumerate(kept) if old in table.words),
    )


@dataclass(frozen=True)
class Picture:
    """A PNG under a file name of its own."""

    name: str
    alt: str
    caption: str
    png: bytes


Block = Heading | Paragraph | Remarks | Table | Picture
