"""What belongs to a folder of pictures, and what lies in it by chance: one rule for every command.

Cameras, network drives and desktops leave files and folders of their own among pictures. They are passed
over, and so is whatever cannot be a picture; all of it is counted, so that a person can be told.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedbac_edge.datasets.picture import SUFFIXES
from fedbac_edge.datasets.shown import shown

SYSTEM_NAMES = frozenset(
    {"@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "system volume information"}
    | {"$recycle.bin", "recycler", "recycled", "lost+found", "lost.dir", "__macosx", "found.000"}
    | {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "network trash folder", "temporary items"}
)
"""Files and folders that systems make by themselves, in lower case."""

UNREADABLE = frozenset({".heic", ".heif", ".hif", ".avif", ".jxl", ".svg", ".psd", ".jp2"}) | frozenset(
    {".dng", ".nef", ".cr2", ".cr3", ".arw", ".orf", ".rw2", ".raf"}
)
"""Pictures too, of kinds that are not decoded here."""

SYSTEM = "hidden or made by a system"
OTHER_KIND = "no picture by its name"
EMPTY = "a folder without pictures"
CIRCLE = "a link to a folder that it lies in"
HARMLESS = frozenset({SYSTEM, OTHER_KIND, EMPTY, CIRCLE})
"""Reasons that say nothing about the user's pictures."""

Identity = tuple[int, int]


@dataclass
class PassedOver:
    """What was left out: reason -> (how many, the first of them)."""

    reasons: dict[str, tuple[int, Path]] = field(default_factory=dict)

    def add(self, reason: str, path: Path) -> None:
        """Count one."""
        count, first = self.reasons.get(reason, (0, path))
        self.reasons[reason] = (count + 1, first)

    def merge(self, other: PassedOver) -> None:
        """Count what another one counted."""
        for reason, (count, first) in other.reasons.items():
            before, kept = self.reasons.get(reason, (0, first))
            self.reasons[reason] = (before + count, kept)

    @property
    def count(self) -> int:
        """How many in all."""
        return sum(count for count, _ in self.reasons.values())

    @property
    def pictures(self) -> Mapping[str, tuple[int, Path]]:
        """Those that may be the user's pictures, and are missing now."""
        return {reason: found for reason, found in self.reasons.items() if reason not in HARMLESS}

    def sentence(self) -> str:
        """ "5 passed over: 3 hidden or made by a system (@eaDir), 2 damaged (b.jpg)"; "" for none."""
        listed = ", ".join(
            f"{count:,} {reason} ({shown(first.name)})" for reason, (count, first) in self.reasons.items()
        )
        return f"{self.count:,} passed over: {listed}" if listed else ""


@dataclass(frozen=True)
class Contents:
    """One folder's own folders and files that are pictures by their names, sorted by name."""

    folders: tuple[Path, ...]
    files: tuple[Path, ...]


def contents(
    folder: Path,
    passed: PassedOver,
    above: Iterable[Identity] = (),
    *,
    suffixes: frozenset[str] = SUFFIXES,
) -> Contents:
    """Look into `folder`; what does not count is added to `passed`.

    Links are followed, but not to `folder` itself or to one of those `above` it (device and inode). Raises
    OSError where the folder cannot be listed.
    """
    around = {*above, identity(folder)}
    folders, files = [], []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if is_system(path.name):
            passed.add(SYSTEM, path)
            continue
        try:
            status = path.stat()
        except PermissionError:
            passed.add("not allowed to be read", path)
            continue
        except OSError:  # it leads nowhere, or round in a circle, or is gone again
            passed.add("a broken link", path)
            continue
        if stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) in around:
                passed.add(CIRCLE, path)
            else:
                folders.append(path)
        elif reason := _no_picture(path, status.st_mode, suffixes):
            passed.add(reason, path)
        else:
            files.append(path)
    return Contents(tuple(folders), tuple(files))


def walk(folder: Path, passed: PassedOver, *, suffixes: frozenset[str] = SUFFIXES) -> Iterator[Path]:
    """Every picture in `folder` and below, those of a folder before those of its folders; each folder once.

    A folder that cannot be listed is passed over too.
    """
    seen: set[Identity] = set()
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        try:
            if (here := identity(place)) in seen:
                continue
            seen.add(here)
            found = contents(place, passed, suffixes=suffixes)
        except OSError:
            passed.add("not allowed to be read", place)
            continue
        yield from found.files
        waiting.extend(reversed(found.folders))


def identity(path: Path) -> Identity:
    """What tells two folders apart, whatever links lead to them. Raises OSError."""
    status = path.stat()
    return status.st_dev, status.st_ino


def is_system(name: str) -> bool:
    """True for hidden names and those that systems leave."""
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


def _no_picture(path: Path, mode: int, suffixes: frozenset[str]) -> str:
    """Why this is not a picture by its name and kind; "" when it is one."""
    suffix = path.suffix.lower()
    if suffix in UNREADABLE:
        return f"of the kind {suffix}, which cannot be read: convert to .jpg or .png"
    if suffix not in suffixes:
        return OTHER_KIND
    return "" if stat.S_ISREG(mode) else "no regular file"


def fingerprint(place: Path) -> str:
    """Changes when a file at `place` is added, removed, renamed or written; nothing is opened.

    Of a folder: its files and those of its folders, as far as `contents` lists folders. Of a file: itself and
    what lies beside it under a similar name, as an IDX file's labels do. "" where nothing can be listed.
    """
    from hashlib import blake2b

    digest = blake2b(digest_size=16)
    try:
        if not place.is_dir():
            stem = place.name[:4]
            for beside in sorted(place.parent.iterdir(), key=lambda path: path.name):
                if beside.name.startswith(stem):
                    digest.update(_stamp(beside))
            return digest.hexdigest()
        inner = contents(place, PassedOver()).folders
        for directory in (place, *inner):
            with os.scandir(directory) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name):
                    if not is_system(entry.name):
                        digest.update(os.fsencode(directory.name) + b"\0" + _stamp(Path(entry.path)))
    except OSError:
        return ""
    return digest.hexdigest()


def _stamp(path: Path) -> bytes:
    try:
        status = path.stat()
    except OSError:
        return os.fsencode(path.name) + b"\0gone\0"
    if stat.S_ISDIR(status.st_mode):  # its files say more than its times
        return os.fsencode(path.name) + b"\0folder\0"
    return os.fsencode(path.name) + f"\0{status.st_size} {status.st_mtime_ns} {status.st_ino}\0".encode()
