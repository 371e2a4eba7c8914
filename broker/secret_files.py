"""Files with secrets: written whole or not at all, and never readable by others, not even for a moment."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

SECRET = 0o600
PUBLIC = 0o644


def write(path: Path, data: bytes, mode: int = SECRET) -> None:
    """Replace `path` in one step; its folders are made as needed, for the owner alone."""
    make_folder(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:64]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(handle, mode)
            _keep_owner(handle, path)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def make_folder(path: Path) -> None:
    """Make `path` with all folders above it that are missing, each for the owner alone."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def _keep_owner(handle: int, path: Path) -> None:
    """A file of the broker's own user keeps this owner when root replaces it."""
    with contextlib.suppress(OSError):
        before = path.stat()
        os.fchown(handle, before.st_uid, before.st_gid)
