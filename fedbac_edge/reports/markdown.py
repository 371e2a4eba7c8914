"""Markdown with tables, the pictures as files beside it."""

from __future__ import annotations

from collections.abc import Iterable

from fedbac_edge.reports.document import Block, Heading, Paragraph, Picture, Remarks, Table


def markdown(blocks: Iterable[Block]) -> str:
    """The whole page; pictures are named relative to it."""
    return "\n\n".join(_block(block) for block in blocks) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {_text(block.text)}"
    if isinstance(block, Paragraph):
        return _text(block.text)
    if isinstance(block, Remarks):
        return "\n".join(f"- {_text(item)}" for item in block.items)
    if isinstance(block, Picture):
        return f"![{_text(block.alt)}]({block.name})\n\n{_text(block.caption)}"
    return _table(block)


def _table(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rule = ["---" if i == 0 or i in table.words else "---:" for i in range(len(table.header))]
    rows = [line(_text(cell) for cell in row) for row in (table.header, *table.rows)]
    return "\n".join([f"{_text(table.caption)}:", "", rows[0], line(rule), *rows[1:]])


def _text(text: str) -> str:
    """What Markdown would read as its own is escaped."""
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}")
    return text
