"""`fedbac backup` and `fedbac restore`: the cloud's state, copied while it runs and put back."""

from __future__ import annotations

import os
from pathlib import Path

import click

from fedbac_edge.commands.failures import explained
from fedbac_edge.commands.options import FILE


@click.command()
@click.option("--state", type=FILE, required=True, help="The cloud's state folder.")
@click.option(
    "--to",
    type=click.Path(),  # not a Path, which forgets the slash at the end
    default=".",
    help="A new file, or a folder, where the name says federation and round; with / at the end it is a "
    "folder, which is made if need be.  [default: here]",
)
def backup(state: Path, to: str) -> None:
    """Copy the cloud's state into one file, while the cloud runs or not. The copy is checked.

    \b
    Example:
      fedbac backup --state runs/photos --to /media/backups/

    Exit code 2 when there is no such state, or the copy would replace a file.
    """
    with explained():
        from fedbac_edge.node import backups

        made = backups.make(state, Path(to), folder=to.endswith(("/", os.sep)))
        click.echo(f"{made.path}: federation {made.federation} after round {made.round}")
        key = _key(state)
        if key.is_file():
            click.echo(f"not in it: {key}, which signs the releases; keep a copy of it in another place")


@click.command()
@click.argument("file", type=FILE)
@click.option("--state", type=FILE, required=True, help="The cloud's state folder.")
def restore(file: Path, state: Path) -> None:
    """Put a backup in the place of the cloud's state, and move the former state aside.

    Stop the cloud first, and start it as always afterwards. It goes on from the round of the backup as a
    new generation of its instance: gateways, devices that train and devices that serve follow it.

    \b
    Example:
      fedbac restore /media/backups/photos-round-21.sqlite --state runs/photos

    Exit code 2 when the file is damaged or is no backup, or when the cloud still runs.
    """
    with explained():
        from fedbac_edge.node import backups

        found, aside = backups.restore(file, state)
        if aside is not None:
            click.echo(f"the state that was there is now {aside}")
        click.echo(f"restored {found.federation} after round {found.round}; now start: fedbac cloud run")
        if not _key(state).is_file():
            click.echo(
                f"if the cloud had its release key at {_key(state)}, put that back too: devices that serve "
                "trust no other"
            )


def _key(state: Path) -> Path:
    from fedbac_edge.commands.releasing import KEY_FILE

    return state / KEY_FILE
