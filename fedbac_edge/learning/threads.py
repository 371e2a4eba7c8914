"""How many threads torch may use, for the length of one piece of work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run the block with `count` torch threads, then put the former number back.

    The number is the process's own, and some sums are ordered by it: results repeat bit for bit only under
    the same count.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
