"""A report on disk: report.html, and report.md with its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedbac_edge.reports.document import Block, Heading, Picture
from fedbac_edge.reports.html import html
from fedbac_edge.reports.markdown import markdown
from fedbac_edge.simulation.run import write_whole


def write(folder: Path, blocks: Sequence[Block]) -> list[Path]:
    """Write all files, each whole or not at all, and name them; those of an earlier report are replaced.

    Other files in the folder stay. Raises OSError.
    """
    title = next((block.text for block in blocks if isinstance(block, Heading)), "")
    files = {"report.html": html(title, blocks).encode(), "report.md": markdown(blocks).encode()}
    files |= {block.name: block.png for block in blocks if isinstance(block, Picture)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_whole(folder / name, data)
    return [folder / name for name in files]
