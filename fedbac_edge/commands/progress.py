"""How far a run is, on a terminal: a bar for its rounds, and one for what goes on in a round that lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LASTS_S = 2.0
"""A round is looked into from this age on."""


class Bars(Progress):
    """Use it as a context; lines go above the bars through `say`, and the bars are gone at the end."""

    def __init__(
        self,
        rounds: int,
        inside: str = "",
        console: Console | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`inside` names what is counted in a round, where that is told."""
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console or Console(highlight=False),
            transient=True,
            speed_estimate_period=600.0,
            get_time=clock,
        )
        self._rounds = self.add_task("rounds", total=rounds)
        self._inside = self.add_task(inside, start=False, visible=False)

    def say(self, text: str) -> None:
        """A line above the bars."""
        self.console.print(text, markup=False, soft_wrap=True)

    def ended(self, round: int) -> None:
        """This round is over. A run that goes on begins at a later one, which says nothing of its speed."""
        self.update(self._inside, visible=False)
        if round > 1 and not self.tasks[self._rounds].completed:
            self.reset(self._rounds, completed=round)
        else:
            self.update(self._rounds, completed=round)

    def went_on(self, done: int, total: int) -> None:
        """`done` of `total` in the round that goes on; 0 as it begins."""
        if done:
            self.update(self._inside, completed=done)
        else:
            self.reset(self._inside, total=total, visible=True)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars that are of interest now."""
        rounds, inside = self.tasks[:1], self.tasks[1:]  # of neither while they are being made
        lasting = [task for task in inside if task.visible and (task.elapsed or 0.0) >= LASTS_S]
        yield self.make_tasks_table([*rounds, *lasting])
