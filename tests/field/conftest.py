"""What tests of the field share."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def record(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Says a figure on the terminal, whatever is captured: long campaigns tell how much they did."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n    {text}", flush=True)

    return say
