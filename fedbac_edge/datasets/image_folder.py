"""A folder of pictures: DIR/<class name>/*.png, *.jpg, ...

Folder names are looked up in the federation's class list; an unknown one is an error and a missing one is
fine, so that devices which lack different classes agree on every label. Pictures that nobody has labelled lie
in DIR/unlabelled/, or in DIR itself. `picture_files` says what counts, `picture` decodes it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbac_edge.datasets import picture, picture_files
from fedbac_edge.datasets.labels import listing, position
from fedbac_edge.datasets.limits import refuse_oversize
from fedbac_edge.datasets.picture_files import EMPTY, PassedOver
from fedbac_edge.datasets.samples import UNLABELLED, DataError, Samples

UNLABELLED_FOLDERS = ("unlabelled", "unlabeled")
"""Folders of pictures without a label, unless a class of the federation has this name."""
SETTLED_S = 3.0
"""A file that was written less than so long ago may not be whole yet: it is read again."""
_LAYOUT = "Put pictures into one folder per class, for example photos/{}/001.png"
DAMAGED, OTHER_SIZE = "not readable as a picture", "of another size"
"""Why a file is passed over that is a picture by its name."""


@dataclass(frozen=True)
class Found:
    """Pictures with their labels, folders and files sorted by name; loose ones, without a label, first."""

    pictures: tuple[tuple[Path, int], ...]
    passed: PassedOver


def read(
    folder: Path,
    classes: Sequence[str],
    input_shape: tuple[int, int, int],
    *,
    resize: bool = False,
    allow_unlabelled: bool = False,
    strict: bool = False,
) -> Samples:
    """All pictures of a folder, classes and files in the order of their names.

    `input_shape` is the federation's (C, H, W): pictures are converted to gray or RGB, and scaled to H x W
    (the aspect ratio is not kept) with `resize`. Pictures directly in `folder`, and those in its folder
    "unlabelled", are unlabelled, where that is allowed. What cannot be read, or has another size, is passed
    over and counted, but for `strict`; when it is most of all, the folder is refused. A file that was written
    in the last seconds is given time to become whole.
    Raises DataError naming the folder or file.
    """
    found = find(folder, classes, allow_unlabelled)
    if strict:
        _refuse_missing(found.passed)
    channels, height, width = input_shape
    refuse_oversize(folder, len(found.pictures) * channels * height * width)
    x = np.empty((len(found.pictures), height, width, channels), dtype=np.uint8)
    labels: list[int] = []
    turned_gray = 0
    failures: dict[Path, picture.PictureError] = {}
    for path, label in found.pictures:
        try:
            decoded = _decode_settled(path, input_shape, resize)
        except picture.WrongChannels as error:
            raise DataError(folder, error.what, error.remedy) from error
        except picture.PictureError as error:
            if strict:
                raise refusal(path, error) from error
            failures[path] = error
            continue
        x[len(labels)] = decoded.pixels
        labels.append(label)
        turned_gray += decoded.colour and channels == 1
    _refuse_mostly(failures, len(labels))
    for path, failed in failures.items():
        found.passed.add(OTHER_SIZE if isinstance(failed, picture.OtherSize) else DAMAGED, path)
    return Samples(x[: len(labels)], np.array(labels, dtype=np.int64), turned_gray, found.passed)


def find(folder: Path, classes: Sequence[str], allow_unlabelled: bool = False) -> Found:
    """Each picture with its label; nothing is opened.

    Raises DataError for a folder that is no class and holds pictures, and when there are none at all.
    """
    example = _LAYOUT.format(classes[0] if classes else "CLASS")
    passed = PassedOver()
    top = picture_files.contents(folder, passed)
    if top.files and not allow_unlabelled:
        name = top.files[0].name
        raise DataError(folder, f"{name} lies outside any class folder, so it has no label", example)
    found = [(path, UNLABELLED) for path in top.files]
    for directory in top.folders:
        label = position(directory.name, classes)
        if label is None and directory.name.lower() in UNLABELLED_FOLDERS:
            if not allow_unlabelled:
                raise DataError(directory, "pictures without a label are of no use here", example)
            label = UNLABELLED
        if label is None:
            if not has_pictures(directory):
                passed.add(EMPTY, directory)
                continue
            raise _unknown_class(directory, classes)
        found += [(path, label) for path in pictures_of(directory, passed, folder)]
    if not found:
        what = f"no pictures in it ({', '.join(sorted(picture.SUFFIXES))})"
        raise DataError(folder, "; ".join(filter(None, (what, passed.sentence()))), example)
    return Found(tuple(found), passed)


def pictures_of(directory: Path, passed: PassedOver, folder: Path) -> tuple[Path, ...]:
    """The pictures of one class folder of `folder`. Raises DataError for a folder of pictures inside it."""
    try:
        inside = picture_files.contents(directory, passed, [picture_files.identity(folder)])
    except PermissionError:
        passed.add("not allowed to be read", directory)
        return ()
    for inner in inside.folders:
        if has_pictures(inner):
            raise DataError(
                inner,
                "a folder inside a class folder: its pictures would be left out",
                _LAYOUT.format(directory.name),
            )
        passed.add(EMPTY, inner)
    return inside.files


def has_pictures(directory: Path) -> bool:
    """True when a picture lies in `directory` or below."""
    return any(True for _ in picture_files.walk(directory, PassedOver()))


def refusal(path: Path, error: picture.PictureError) -> DataError:
    """A picture's fault as a fault of the data."""
    if isinstance(error, picture.OtherSize):
        (width, height), wanted = error.size, error.wanted
        return DataError(
            path,
            f"{width}x{height} pixels, the federation's images have {wanted[0]}x{wanted[1]} (width x height)",
            "Scale it, or let it be scaled with --resize",
        )
    return DataError(path, error.what, error.remedy)


def _decode_settled(path: Path, input_shape: tuple[int, int, int], resize: bool) -> picture.Picture:
    """The picture; one that cannot be read and was written just now is tried again when it has settled."""
    try:
        return _decode(path, input_shape, resize)
    except picture.Unreadable:
        try:
            age = time.time() - path.stat().st_mtime
        except OSError:  # gone meanwhile
            age = SETTLED_S
        if not 0 <= age < SETTLED_S:
            raise
        time.sleep(SETTLED_S - age)
        return _decode(path, input_shape, resize)


def _decode(path: Path, input_shape: tuple[int, int, int], resize: bool) -> picture.Picture:
    try:
        return picture.decode(path, input_shape, resize=resize)
    except ModuleNotFoundError as error:
        raise no_pillow(path) from error


def no_pillow(path: Path) -> DataError:
    """Pictures cannot be read on this machine."""
    return DataError(path, "reading pictures needs Pillow", "pip install pillow, or give an .npz file")


def _refuse_missing(passed: PassedOver) -> None:
    """With --strict: no file that may be a picture is left out."""
    for reason, (count, first) in passed.pictures.items():
        raise DataError(
            first, f"{reason} ({count:,} in all)", "Move it out of the data, or join without --strict"
        )


def _refuse_mostly(failures: dict[Path, picture.PictureError], kept: int) -> None:
    """Most pictures have another size, or not one can be read: that is no accident."""
    sizes = [path for path, error in failures.items() if isinstance(error, picture.OtherSize)]
    if len(sizes) > kept:
        raise refusal(sizes[0], failures[sizes[0]])
    if failures and not kept:
        path, error = next(iter(failures.items()))
        raise refusal(path, error)


def _unknown_class(directory: Path, classes: Sequence[str]) -> DataError:
    what = f"the folder {directory.name!r} is not one of the federation's classes: {listing(classes)}"
    near = [name for name in classes if name.casefold() == directory.name.casefold()]
    if (
        near
        and (directory.parent / near[0]).exists()
        and not (directory.parent / near[0]).samefile(directory)
    ):
        return DataError(directory, what, f"Move its pictures into {near[0]!r}, which is there already")
    if near:
        return DataError(directory, what, f"Rename it to {near[0]!r}")
    if _holds_classes(picture_files.contents(directory, PassedOver()).folders, classes):
        return DataError(directory, what, f"It holds class folders itself: give --data {directory}")
    return DataError(directory, what, "Rename the folder, or move it out of the data")


def _holds_classes(folders: Iterable[Path], classes: Sequence[str]) -> bool:
    return any(position(inner.name, classes) is not None for inner in folders)
