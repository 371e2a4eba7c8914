"""`python -m device_agent`: the same as `fedbac-agent`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedbac_edge.host import entry

if TYPE_CHECKING:
    import click


def main() -> None:
    """Entry point of the console script."""
    entry.run(_load, "fedbac-agent")


def _load() -> click.Command:
    from device_agent.cli import main as agent

    return agent


if __name__ == "__main__":
    main()
