"""Where a process begins: signals, output and vector level are seen to before anything else is loaded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedbac_edge import output, signals

if TYPE_CHECKING:
    import click


def run(load: Callable[[], click.Command], name: str) -> None:
    """Run the command that `load` gives under this name, and exit with its code."""
    with signals.started_deaf():  # a signal waits, also for the process that `start_capped` may begin anew
        output.prepare()
        from fedbac_edge import vector_level

        vector_level.start_capped()
        signals.defer()
    command = load()
    try:
        command.main(prog_name=name)
    except output.Unwritable as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(1)
