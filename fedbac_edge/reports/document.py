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


@dataclass(frozen=True)
class Picture:
    """A PNG under a file name of its own."""

    name: str
    alt: str
    caption: str
    png: bytes


Block = Heading | Paragraph | Remarks | Table | Picture
