"""The page of results says what its CSV files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_summary_on_the_page_is_that_of_the_files() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "tables.py"), "summary"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "paper/fashion-mnist-0.1" in done.stdout
    page = (ROOT / "docs" / "results" / "fed-bac.md").read_text(encoding="utf-8")
    assert done.stdout in page, "put it there: python benchmarks/tables.py summary --write"
