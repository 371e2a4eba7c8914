"""The table of rounds on terminals of any width: no line is longer, nothing is said twice."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from fedbac_edge.commands.cloud import Follow
from fedbac_edge.lab.fleet.world import World
from fedbac_edge.lab.trials import trials
from fedbac_edge.node import assemble
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.messages import RoundSummary, SiteSummary
from fedbac_edge.terminal.rounds import RoundTable, clock
from fedbac_edge.terminal.views import TerminalView

WALL = 1_790_000_000.0


def _summary(
    round: int = 1, phase: str = "train", names: tuple[str, str] = ("gw1", "gw2"), **more: object
) -> RoundSummary:
    asked = 3 if phase == "train" else 0
    sites = {
        name: SiteSummary(cluster=i, accuracy=0.5 + i / 4, asked=asked, answered=asked, **more)  # type: ignore[arg-type]
        for i, name in enumerate(names)
    }
    return RoundSummary(
        round=round,
        phase=phase,
        seconds=4.6,
        sites=sites,
        active_clusters=2,
        up_bytes=2_860_000,
        down_bytes=714_800,
    )


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 160])
@pytest.mark.parametrize("names", [("gw1", "gw2"), ("a-gateway-in-the-north", "a-gateway-in-the-south")])
def test_no_line_is_longer_than_the_terminal(width: int, names: tuple[str, str]) -> None:
    table = RoundTable(width)
    lines = [
        *table.lines(_summary(1, "train", names), WALL),
        *table.lines(_summary(3, "evaluate", names), WALL),
    ]
    assert max(map(len, lines)) <= width
    for told in ("50.0 %", "75.0 %", "62.5 %", names[0], clock(WALL)):
        assert any(told in line for line in lines), told


def test_all_columns_then_fewer_then_cards() -> None:
    def headings(width: int | None) -> str:
        return next((line for line in RoundTable(width).lines(_summary(), WALL) if "worst site" in line), "")

    assert "down" in headings(120)
    assert "refused" in headings(100)
    assert "up" not in headings(100).split()
    assert headings(80) == headings(60) == ""
    assert headings(None) == headings(120)


def test_what_a_train_row_scores_is_said_once() -> None:
    for width in (60, 120, None):
        table = RoundTable(width)
        said = " ".join(" ".join(table.lines(_summary(n), WALL)).replace("\n", " ") for n in (1, 2, 3))
        assert said.count("A train row scores the model that its round starts from") == 1
        assert "round 1: the untrained one" in said


def test_headings_come_again_only_when_the_columns_change() -> None:
    table = RoundTable(120)
    assert any("worst site" in line for line in table.lines(_summary(1), WALL))
    assert len(table.lines(_summary(2), WALL)) == 1
    assert len(table.lines(_summary(3), WALL, 100)) == 2, "the terminal has become smaller"
    assert len(table.lines(_summary(4), WALL, 100)) == 1


def test_what_was_refused_and_missed_is_told_at_every_width() -> None:
    for width in (60, 80, 100, 120):
        lines = RoundTable(width).lines(_summary(refused=2, void="too few answers"), WALL)
        text = " ".join(lines)
        assert "gw1: too few answers" in text, width
        assert "4 refused" in text or " 4 " in lines[-2] + lines[-1] + lines[-3], width
        assert max(map(len, lines)) <= width


def _screen(total: int) -> tuple[TerminalView, io.StringIO]:
    written = io.StringIO()
    return TerminalView(total, Console(file=written, force_terminal=True, width=80, highlight=False)), written


def test_the_bar_counts_within_a_campaign() -> None:
    """Round 476 of a fleet that goes on and on, with 12 rounds a campaign, is the 8th of campaign 40."""
    view, written = _screen(12)
    with view.shown():
        view.campaign(40, 468)
        view.summary(_summary(476), WALL)
    said = written.getvalue()
    assert "8/12" in said
    assert "rounds of campaign 40" in said
    assert "476/12" not in said


def test_a_fleet_that_goes_on_never_passes_its_full_bar() -> None:
    """Four campaigns of three rounds, followed as `cloud run --continue` follows them."""
    federation = trials.federation_of((1, 2, 3, "float32"))
    trial = trials.Trial(federation, World())
    trial.add_all(lambda name: Store(None))
    cloud = trial.world.processes["cloud"]
    cloud.make = lambda store: assemble.cloud(
        federation, trials.INSTANCE, store, lambda: trial.world.now, continuing=True
    )
    view, written = _screen(federation.rounds)
    follows: list[Follow] = []

    def seen() -> bool:
        if cloud.node is None:
            return False
        if not follows:
            follows.append(Follow(view, cloud.node, federation, lambda: "connected"))
        follows[0](cloud.node)
        return bool(trial.cloud and trial.cloud.campaign == 5)

    with view.shown():
        assert trial.world.run(seen)
    bars = {(int(done), int(total)) for done, total in re.findall(r"(\d+)/(\d+)", written.getvalue())}
    assert {total for _, total in bars if total == 3} == {3}
    assert all(done <= 3 for done, total in bars if total == 3)
    assert "rounds of campaign 4" in written.getvalue()


@pytest.mark.parametrize(
    ("width", "wanted"), [(60, ()), (70, ("sigma",)), (80, ("sigma", "sent")), (None, ("sent",))]
)
def test_the_table_of_a_simulation_fits_too(
    width: int | None,
    wanted: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from fedbac_edge.commands import simulate
    from fedbac_edge.lab import presets
    from fedbac_edge.terminal import narrow

    monkeypatch.setattr(narrow, "terminal_width", lambda: width)
    simulate._Lines().began(presets.preset("paper/fashion-mnist-0.1"), Path("runs/x"), 2)
    headings = capsys.readouterr().out.splitlines()[-1]
    assert width is None or len(headings) <= width
    assert {"round", "accuracy", "worst", "best", "devices", "seconds", *wanted} <= set(headings.split())
