"""What happens when standard output or standard error cannot be written.

The disk may be full, the reader may have gone, or there was none from the start.

    closed from the start   what is said goes nowhere; no file that is opened later gets its number
    standard error          nothing can be done about it, so the process goes on
    standard output         a command that is there for its output ends with a sentence and code 1;
                            a process that has other work, which says so by `not_needed`, goes on
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer

_OUT, _ERR = 1, 2


class Unwritable(OSError):
    """Standard output cannot be written; a sentence."""


def prepare() -> None:
    """Make the three streams what the module says; called once, before anything is said."""
    for number in (0, _OUT, _ERR):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, so this one
    sys.stdout = _text(_Descriptor(_OUT, may_fail=False), sys.stdout)
    sys.stderr = _text(_Descriptor(_ERR, may_fail=True), sys.stderr)


def not_needed() -> None:
    """This process has other work than its lines: it goes on without them."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Descriptor):
        raw.may_fail = True


class _Descriptor(io.FileIO):
    """One of the streams; with `may_fail` what cannot be written is dropped."""

    def __init__(self, number: int, *, may_fail: bool) -> None:
        super().__init__(number, "wb", closefd=False)
        self.may_fail = may_fail

    def write(self, data: Buffer, /) -> int:
        """See RawIOBase.write. Raises Unwritable, and BrokenPipeError when the reader has gone."""
        size = memoryview(data).nbytes
        try:
            written = super().write(data)
        except OSError as error:
            if self.may_fail:
                return size
            self.may_fail = True  # what is left in the buffers is not tried again at the end
            if isinstance(error, BrokenPipeError):
                raise
            raise Unwritable(f"standard output cannot be written: {error.strerror}") from error
        return size if written is None else written


def _text(raw: _Descriptor, before: TextIO | None) -> TextIO:
    """A text stream as Python made it, over `raw`; what its encoding lacks is written as \\x.."""
    errors = getattr(before, "errors", None)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=getattr(before, "encoding", None) or "utf-8",
        errors="backslashreplace" if errors in (None, "strict") else errors,
        line_buffering=True,
        write_through=bool(getattr(before, "write_through", False)),
    )
