"""`python -m fedbac_edge`: the same as `fedbac`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbac_edge.host import entry

if TYPE_CHECKING:
    import click


def main() -> None:
    """Entry point of the console script."""
    entry.run(_load, "fedbac")


def _load() -> click.Command:
    from fedbac_edge.cli import cli

    return cli


if __name__ == "__main__":
    main()
