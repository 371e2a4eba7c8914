"""CONTRIBUTING.md says where to look first: what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

from fedbac_edge.lab.flat.study import METHODS

ROOT = Path(__file__).parent.parent


def test_each_file_of_the_table_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "you look for" not in line]
    assert len(rows) == 5
    for row in rows:
        paths = re.findall(r"`([\w/]+/(?:\w+\.py)?)`", row)
        assert paths, row
        for path in paths:
            assert (ROOT / path).exists(), path


def test_a_method_is_a_file_with_its_name() -> None:
    for name in METHODS:
        assert (ROOT / "fedbac_edge" / "lab" / "flat" / f"{name}.py").is_file()
