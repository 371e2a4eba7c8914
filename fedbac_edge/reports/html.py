"""One HTML file with everything in it: it can be mailed and opened without a network."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape

from fedbac_edge.reports.document import Block, Heading, Paragraph, Picture, Remarks, Table

STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 72rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1.05rem; margin-top: 2rem; }
figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto; }
figcaption, caption { color: #444; font-size: .9rem; text-align: left; padding: .3rem 0; }
th:first-child, td:first-child { min-width: 11rem; }
.scroll { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top;
  font-variant-numeric: tabular-nums; }
th { border-bottom: 2px solid #888; } th.word, td.word { text-align: left; }
tbody tr:nth-child(even) { background: #f6f6f6; }
img { background: #fff; }
@media (max-width: 45rem) {
  body { margin: 1rem auto; }
  figure img { max-width: none; width: 100%; }
  h1, h2, h3, td { overflow-wrap: anywhere; }
  table, tbody, tr, td, caption { display: block; width: 100%; }
  thead { display: none; }
  tr { border-bottom: 2px solid #888; padding: .4rem 0; }
  td, td.word { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .1rem .5rem;
    text-align: right; box-sizing: border-box; }
  td:first-child { font-weight: bold; }
  td::before { content: attr(data-label); font-weight: normal; color: #444; text-align: left; flex: 0 0 40%; }
}
@media print { body { max-width: none; } figure, tr { break-inside: avoid; } }
.remarks { background: #fff4d6; border-left: 4px solid #E69F00; padding: .5rem 1rem .5rem 2rem; }
"""


def html(title: str, blocks: Iterable[Block]) -> str:
    """The whole page."""
    body = "\n".join(_block(block) for block in blocks)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{escape(block.text)}</h{block.level}>"
    if isinstance(block, Paragraph):
        return f"<p>{escape(block.text)}</p>"
    if isinstance(block, Remarks):
        return '<ul class="remarks">' + "".join(f"<li>{escape(item)}</li>" for item in block.items) + "</ul>"
    if isinstance(block, Picture):
        return _picture(block)
    return _table(block)


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode("ascii")
    return (
        f'<figure><img alt="{escape(picture.alt)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    def cells(tag: str, row: tuple[str, ...]) -> str:
        """A cell says its heading too: on a narrow screen a row is a card."""
        found = []
        for i, (cell, heading) in enumerate(zip(row, table.header, strict=True)):
            kind = ' class="word"' if i == 0 or i in table.words else ""
            label = f' data-label="{escape(heading)}"' if tag == "td" else ""
            found.append(f"<{tag}{kind}{label}>{escape(cell)}</{tag}>")
        return "".join(found)

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in table.rows)
    return (
        f'<div class="scroll"><table><caption>{escape(table.caption)}</caption>\n'
        f"<thead><tr>{cells('th', table.header)}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )
