"""`fedbac data`: the field's data sets, fetched from where their authors publish them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from fedbac_edge.commands.failures import Failed, explained
from fedbac_edge.commands.options import FILE, json_option

if TYPE_CHECKING:
    from fedbac_edge.datasets import official


@click.group()
def data() -> None:
    """Fetch the data sets on which the field compares its methods.

    \b
    Example:
      fedbac data list
      fedbac data get cifar10
      fedbac simulate paper/cifar10-0.5
    """


@data.command("list")
@json_option("One JSON object.")
def listing(as_json: bool) -> None:
    """List the data sets: their size, and where they are on this machine.

    \b
    Example:
      fedbac data list
    """
    from fedbac_edge.datasets import official

    places = {name: official.find(name) for name in official.DATA_SETS}
    if as_json:
        click.echo(
            json.dumps(
                {
                    name: {
                        "about": known.about,
                        "bytes": known.size,
                        "at": str(place) if (place := places[name]) else None,
                        "files": {file.name: file.sha256 for file in known.files},
                    }
                    for name, known in official.DATA_SETS.items()
                }
            )
        )
        return
    for name, known in official.DATA_SETS.items():
        click.echo(f"{name:14}{known.size / 1e6:>6.0f} MB  {known.about}")
        click.echo(f"{'':14}{places[name] or f'not here: fedbac data get {name}'}")


@data.command()
@click.argument("name")
@click.option("--to", type=FILE, metavar="DIR", help="Folder. [default: where `simulate` looks for it]")
@click.option("--from", "mirror", metavar="URL", help="A folder that holds the same files, over HTTP.")
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    help="Failed tries in a row before it gives up.",
)
def get(name: str, to: Path | None, mirror: str | None, retries: int) -> None:
    """Fetch the data set NAME, file by file, each held to the published size and SHA-256.

    If it is stopped or cut off, give the same command again: it goes on from there. Where a data set lies
    below: FEDBAC_DATASETS, or ~/.local/share/fedbac.

    \b
    Example:
      fedbac data get mnist
      fedbac data get cifar10 --to datasets
      fedbac data get svhn --from http://mirror.lan/svhn/
    """
    from fedbac_edge.datasets import official

    known = official.DATA_SETS.get(name)
    if known is None:
        raise click.UsageError(f"no data set is called {name!r}; there are {', '.join(official.DATA_SETS)}")
    if mirror is not None and not mirror.startswith(("http://", "https://")):
        raise click.UsageError(f"--from {mirror}: give an address that begins with http:// or https://")
    if to is None and (found := official.find(name)) is not None:
        click.echo(f"{name} is in {found}")
        return
    try:
        with explained(), _showing() as view:
            folder = to or official.home(name)
            _get(known, folder, [mirror] if mirror else known.sources, retries, view)
    except KeyboardInterrupt:
        raise Failed("stopped; what has come is kept, the same command goes on") from None
    click.echo(f"{name} is in {known.at(folder)}")


def _get(
    known: official.DataSet, folder: Path, sources: tuple[str, ...] | list[str], retries: int, view: _View
) -> None:
    from fedbac_edge.datasets import download

    for file in known.files:
        urls = [f"{source.rstrip('/')}/{file.name}" for source in sources]
        view.file(file)
        download.fetch(file, urls, folder / file.name, view, retries=retries)
        view.note(f"{file.name}: {file.size:,} bytes, SHA-256 as published")


class _View(Protocol):
    def file(self, file: official.File) -> None: ...

    def at(self, done: int) -> None: ...

    def note(self, text: str) -> None: ...


class _Lines:
    """Nothing but the notes."""

    def file(self, file: official.File) -> None:
        pass

    def at(self, done: int) -> None:
        pass

    def note(self, text: str) -> None:
        click.echo(text)


class _Terminal:
    """A bar with speed and time left; notes above it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._console = Console(highlight=False)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=self._console,
            transient=True,
        )
        self._task = self.progress.add_task("", total=None)

    def file(self, file: official.File) -> None:
        self.progress.reset(self._task, description=file.name, total=file.size)

    def at(self, done: int) -> None:
        self.progress.update(self._task, completed=done)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


@contextlib.contextmanager
def _showing() -> Iterator[_View]:
    import sys

    if sys.stdout.isatty():
        view = _Terminal()
        with view.progress:
            yield view
    else:
        yield _Lines()
