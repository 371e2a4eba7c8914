"""Where a running campaign is shown: a terminal with a progress bar, plain lines, or JSON lines."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Protocol

import click

from fedbac_edge.commands import rounds
from fedbac_edge.protocol.messages import RoundSummary


class View(Protocol):
    """What whoever follows a campaign may say."""

    def note(self, text: str) -> None:
        """A sentence worth keeping."""

    def doing(self, text: str) -> None:
        """What goes on now; replaced by the next one, and not shown where lines are kept."""

    def summary(self, summary: RoundSummary) -> None:
        """A round or an evaluation has ended."""


class PlainView:
    """One line per round, for logs and pipes."""

    def __init__(self, err: bool = False) -> None:
        self._err = err
        self._headed = False

    def note(self, text: str) -> None:
        """See View."""
        click.echo(text, err=self._err)

    def doing(self, text: str) -> None:
        """Nothing."""

    def summary(self, summary: RoundSummary) -> None:
        """See View."""
        if not self._headed:
            click.echo(rounds.header(), err=self._err)
            self._headed = True
        click.echo(rounds.line(summary), err=self._err)


class JsonView:
    """One JSON object per line: {"event": "round" | "note", ...}."""

    def note(self, text: str) -> None:
        """See View."""
        self._say({"event": "note", "text": text})

    def doing(self, text: str) -> None:
        """Nothing."""

    def summary(self, summary: RoundSummary) -> None:
        """See View."""
        self._say({"event": "round", **rounds.as_json(summary)})

    def _say(self, fields: dict[str, Any]) -> None:
        click.echo(json.dumps(fields, ensure_ascii=False))


class TerminalView:
    """Rows above a progress bar that stays at the bottom."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(highlight=False)
        self._progress = Progress(
            TextColumn("rounds"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=total)
        self._headed = False

    def note(self, text: str) -> None:
        """See View."""
        self._print(text)

    def doing(self, text: str) -> None:
        """See View."""
        self._progress.update(self._task, description=text)

    def summary(self, summary: RoundSummary) -> None:
        """See View."""
        if not self._headed:
            self._print(rounds.header(), style="bold")
            self._headed = True
        self._print(rounds.line(summary), style="" if summary.phase == "train" else "cyan")
        self._progress.update(self._task, completed=summary.round)

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
