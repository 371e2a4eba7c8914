"""Where a process begins: signals, output and vector level are seen to before anything else is loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedbac_edge.host import output, signals

if TYPE_CHECKING:
    import click


def run(load: Callable[[], click.Command], name: str) -> None:
    """Run the command that `load` gives under this name, and exit with its code.

    A path that this user may not look at can be that of any option, and is a sentence for all of them.
    """
    with signals.waiting():  # a signal waits, also for the process that `start_capped` may begin anew
        output.prepare()
        from fedbac_edge.host import vector_level

        vector_level.start_capped()
        signals.defer()
    command = load()
    try:
        command.main(prog_name=name)
    except output.Unwritable as error:
        _end(str(error), 1)
    except PermissionError as error:
        if error.filename is None:
            raise
        _end(f"{os.fsdecode(error.filename)}: {error.strerror}", 2)


def _end(sentence: str, code: int) -> None:
    print(f"Error: {sentence}", file=sys.stderr)
    sys.exit(code)
