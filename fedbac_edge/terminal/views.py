"""Where a running campaign is shown: a terminal with a progress bar, plain lines, or JSON lines."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import click

from fedbac_edge.protocol.messages import RoundSummary
from fedbac_edge.terminal import narrow, rounds

if TYPE_CHECKING:
    from rich.console import Console


class View(Protocol):
    """What a program that follows a campaign may say."""

    def note(self, text: str) -> None:
        """A sentence worth keeping."""

    def doing(self, text: str) -> None:
        """What goes on now; replaced by the next one, and not shown where lines are kept."""

    def summary(self, summary: RoundSummary, wall: float) -> None:
        """A round or an evaluation has ended, at `wall` (seconds since 1970)."""

    def campaign(self, number: int, before: int) -> None:
        """Campaign `number` goes on; `before`: rounds of the earlier ones, for rounds are counted on."""


class PlainView:
    """One line per round, for logs and pipes."""

    def __init__(self, err: bool = False) -> None:
        self._err = err
        # The width of a log's lines is unknown.
        self._table = rounds.RoundTable(None if err else narrow.terminal_width())

    def note(self, text: str) -> None:
        """See View."""
        click.echo(text, err=self._err)

    def doing(self, text: str) -> None:
        """Nothing."""

    def summary(self, summary: RoundSummary, wall: float) -> None:
        """See View."""
        for line in self._table.lines(summary, wall):
            click.echo(line, err=self._err)

    def campaign(self, number: int, before: int) -> None:
        """Nothing: rows have the number of their round."""


class JsonView:
    """One JSON object per line: {"event": "round" | "note", ...}."""

    def note(self, text: str) -> None:
        """See View."""
        self._say({"event": "note", "text": text})

    def doing(self, text: str) -> None:
        """Nothing."""

    def summary(self, summary: RoundSummary, wall: float) -> None:
        """See View."""
        self._say({"event": "round", "wall": wall, **rounds.as_json(summary)})

    def campaign(self, number: int, before: int) -> None:
        """Nothing: rows have the number of their round."""

    def _say(self, fields: dict[str, Any]) -> None:
        click.echo(json.dumps(fields, ensure_ascii=False))


class TerminalView:
    """Rows above a progress bar that stays at the bottom."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = console or Console(highlight=False)
        self._before = 0
        self._progress = Progress(
            TextColumn("{task.fields[what]}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=total, what="rounds")
        self._table = rounds.RoundTable(None)

    def note(self, text: str) -> None:
        """See View."""
        self._print(text)

    def doing(self, text: str) -> None:
        """See View."""
        self._progress.update(self._task, description=text)

    def summary(self, summary: RoundSummary, wall: float) -> None:
        """See View."""
        lines = self._table.lines(summary, wall, self._console.width)
        for line in lines:
            self._print(line, style="" if summary.phase == "train" else "cyan")
        self._progress.update(self._task, completed=summary.round - self._before)

    def campaign(self, number: int, before: int) -> None:
        """See View."""
        self._before = before
        what = "rounds" if number == 1 else f"rounds of campaign {number}"
        self._progress.update(self._task, what=what)

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the bar up."""
        with self._progress:
            yield


@contextlib.contextmanager
def showing(total: int, as_json: bool = False) -> Iterator[View]:
    """The view that fits where the output goes; `total` rounds make a full bar."""
    import sys

    if as_json:
        yield JsonView()
    elif sys.stdout.isatty():
        view = TerminalView(total)
        with view.shown():
            yield view
    else:
        yield PlainView()
