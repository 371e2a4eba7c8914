"""Who this device is: a name made once, kept in its state directory, held by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from broker.topics import BadName, check_name
from fedbac_edge.node import damage
from fedbac_edge.node.store import StoreFailed


class IdentityError(ValueError):
    """The state directory is another device's, is in use or damaged; the message says what to do."""


@contextlib.contextmanager
def held(state: Path, name: str | None, lock_file: str = "lock") -> Iterator[str]:
    """The device's name, while `state` is locked against a second agent of the same kind.

    A new directory gets `name`, or a random one ("dev-" and eight hex digits); a known one keeps its own.
    Raises IdentityError when `name` is not the stored one, when another agent runs here, or when the
    directory cannot be used; BadName.
    """
    if name is not None:
        check_name(name, "device")
    try:
        state.mkdir(parents=True, exist_ok=True)
        lock = os.open(state / lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        _say_disk_trouble(error, state)
        raise IdentityError(
            f"the state directory {state} cannot be used ({error.strerror}); choose another with --state"
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise IdentityError(
                f"another agent runs on {state}; for a second device on this machine give --name or --state"
            ) from None
        yield _name(state, name)
    finally:
        os.close(lock)


def _name(state: Path, wanted: str | None) -> str:
    path = state / "identity"
    try:
        stored = check_name(path.read_text("utf-8").strip(), "device")
    except FileNotFoundError:
        chosen = wanted or f"dev-{secrets.token_hex(4)}"
        # An agent of another kind may have been faster: then its name counts.
        return chosen if _write(path, chosen) else _name(state, wanted)
    except (BadName, OSError, UnicodeDecodeError) as error:
        raise IdentityError(
            f"{path} holds no device's name ({error}); write the name into it, or delete it for a new one"
        ) from error
    if wanted is not None and wanted != stored:
        raise IdentityError(
            f"{state} belongs to device {stored}, not to {wanted}: use --name {stored}, or another --state"
        )
    return stored


def _write(path: Path, name: str) -> bool:
    """All or nothing, and on the disk when this returns: a name that was used is never lost.

    False: there is one already, and it stays.
    """
    new = path.with_name("identity.new")
    try:
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)  # held for a moment: another kind of agent may start too
            if path.exists():
                return False
            with open(new, "w", encoding="utf-8") as file:
                file.write(name + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        _say_disk_trouble(error, path)
        raise IdentityError(f"{path} cannot be written ({error.strerror}); choose another --state") from error
    return True


def _say_disk_trouble(error: OSError, path: Path) -> None:
    """A full disk passes: another --state would be the wrong advice. Raises StoreFailed."""
    if damage.is_disk_trouble(error):
        raise StoreFailed(
            f"{path} cannot be written ({error.strerror}); make room or mend the disk, then start again"
        ) from error
