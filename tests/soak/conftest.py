"""How long campaigns are, and how they say what they did."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest


@pytest.fixture
def record(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Says a figure on the terminal, whatever is captured."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n    {text}", flush=True)

    return say


@pytest.fixture
def seconds() -> float:
    """How long an open-ended campaign may take: FEDBAC_SOAK_SECONDS, else ten minutes."""
    return float(os.environ.get("FEDBAC_SOAK_SECONDS", "600"))


@pytest.fixture
def first_seed() -> int:
    """Where it begins to count seeds: FEDBAC_SOAK_SEED, else 0."""
    return int(os.environ.get("FEDBAC_SOAK_SEED", "0"))
