"""Bars on a terminal: the rounds, and inside a round once it has lasted a while."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedbac_edge.commands.progress import LASTS_S, Bars
from fedbac_edge.commands.semi import _Json, _Lines, _showing, _Terminal
from fedbac_edge.lab.flat.study import Study


class Screen:
    """Bars on a clock of their own; `text` is what stands on the terminal now."""

    def __init__(self) -> None:
        self.now = 100.0
        self.written = io.StringIO()
        console = Console(file=self.written, force_terminal=True, width=80, highlight=False)
        self.bars = Bars(60, "this round", console, clock=lambda: self.now)

    @property
    def text(self) -> str:
        written = io.StringIO()
        Console(file=written, width=80).print(self.bars.get_renderable())
        return written.getvalue()


def test_a_round_is_shown_from_inside_once_it_lasts() -> None:
    screen = Screen()
    screen.bars.went_on(0, 16)
    assert "0/60" in screen.text
    screen.now += LASTS_S - 0.1
    screen.bars.went_on(1, 16)
    assert "this round" not in screen.text
    screen.now += 0.2
    assert "this round" in screen.text, "without news"
    assert "1/16" in screen.text
    screen.bars.ended(1)
    assert "1/60" in screen.text
    assert "this round" not in screen.text
    screen.bars.went_on(0, 8)
    assert "this round" not in screen.text, "its own age counts"
    screen.now += LASTS_S
    assert "0/8" in screen.text


def test_the_time_left_is_that_of_the_rounds_that_this_process_has_done() -> None:
    """A run that goes on after round 49 has not done fifty rounds in its first ten seconds."""
    screen = Screen()
    screen.now += 10
    screen.bars.ended(50)
    assert "50/60" in screen.text
    assert "-:--:--" in screen.text
    for round in (51, 52, 53):
        screen.now += 10
        screen.bars.ended(round)
    assert "53/60 0:01:10 left" in " ".join(screen.text.split())


def test_lines_go_above_the_bars_as_they_are() -> None:
    screen = Screen()
    screen.bars.say("[gw1] 7 -> 3")
    assert screen.written.getvalue() == "[gw1] 7 -> 3\n"


@pytest.mark.parametrize(
    ("as_json", "terminal", "kind"),
    [(False, True, _Terminal), (True, True, _Json), (False, False, _Lines), (True, False, _Json)],
)
def test_only_a_person_at_a_terminal_gets_bars(
    as_json: bool, terminal: bool, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    with _showing(Study(method="fedavg"), as_json) as view:
        assert type(view) is kind
