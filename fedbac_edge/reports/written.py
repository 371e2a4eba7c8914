"""A report on disk: report.html, report.md with its pictures, and rounds.csv."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedbac_edge.lab.folder import write_whole
from fedbac_edge.reports.document import Block, Heading, Picture
from fedbac_edge.reports.html import html
from fedbac_edge.reports.markdown import markdown


def write(folder: Path, blocks: Sequence[Block], rounds: str) -> list[Path]:
    """Write all files, each whole or not at all, and name them; `rounds` is the CSV. Raises OSError.

    Those of an earlier report are replaced, its pictures that no longer belong are removed; other files stay.
    """
    title = next((block.text for block in blocks if isinstance(block, Heading)), "")
    files = {"report.html": html(title, blocks).encode(), "report.md": markdown(blocks).encode()}
    files["rounds.csv"] = rounds.encode()
    files |= {block.name: block.png for block in blocks if isinstance(block, Picture)}
    folder.mkdir(parents=True, exist_ok=True)
    outdated = _pictures(folder) - set(files)
    for name, data in files.items():
        write_whole(folder / name, data)
    for name in outdated:
        (folder / name).unlink(missing_ok=True)
    return [folder / name for name in files]


def _pictures(folder: Path) -> set[str]:
    """File names of the pictures in an earlier report; only such names as `page` gives."""
    try:
        text = (folder / "report.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return set()
    return set(re.findall(r"\]\(((?:accuracy|bytes|clusters|views)-[a-z0-9.-]+\.png)\)", text))
