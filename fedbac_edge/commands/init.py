"""`fedbac init`: a federation.toml to begin from."""

from __future__ import annotations

from pathlib import Path

import click

from fedbac_edge.commands.failures import Misconfigured, explained
from fedbac_edge.commands.options import FILE

PRESET_NAMES = ("fleet", "demo", "paper-fashion-mnist", "paper-cifar10", "paper-svhn")


@click.command()
@click.option("--out", type=FILE, default=Path("federation.toml"), show_default=True, help="File to write.")
@click.option("--name", help="Name of the federation.  [default: the preset's name]")
@click.option(
    "--preset",
    type=click.Choice(PRESET_NAMES),
    default="fleet",
    show_default=True,
    help="Where to begin from.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def init(out: Path, name: str | None, preset: str, force: bool) -> None:
    """Write a federation.toml in which every setting is explained with its default.

    \b
    Example:
      fedbac init --out federation.toml --name orchard
    """
    with explained():
        from export.files import write_bytes
        from fedbac_edge import config
        from fedbac_edge.commands.federation_file import render
        from fedbac_edge.commands.presets import PRESETS

        if out.exists() and not (force and out.is_file()):
            remedy = (
                "give another --out, or --force to replace it" if out.is_file() else "give a file as --out"
            )
            raise Misconfigured(f"{out} is there already; {remedy}")
        if not out.parent.is_dir():
            raise Misconfigured(f"there is no folder {out.parent}")
        federation = config.check(PRESETS[preset](preset if name is None else name))
        write_bytes(render(federation).encode(), out)
    click.echo(f"wrote {out}: {federation.name}, {federation.rounds} rounds")
    click.echo(f"next: fedbac cloud run --federation {out}")
