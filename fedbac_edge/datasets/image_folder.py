"""A folder of pictures: DIR/<class name>/*.png, *.jpg, ...

Folder names are looked up in the federation's class list; an unknown one is an error and a missing one is
fine, so that devices which lack different classes agree on every label. Pictures that nobody has labelled lie
in DIR/unlabelled/, or in DIR itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets.labels import listing, position
from fedbac_edge.datasets.limits import refuse_oversize
from fedbac_edge.datasets.samples import UNLABELLED, DataError, Samples

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
"""File names that are read as pictures, in any case of letters."""

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""The only Pillow decoders that are tried on a file."""

MAX_PIXELS = 64_000_000
"""A picture with more pixels is refused by its header, before it is decoded."""

# Pictures too, and nobody wants them left out without a word.
_UNREADABLE = frozenset({".heic", ".heif", ".avif", ".dng", ".nef", ".cr2", ".arw", ".svg", ".jxl"})
_GRAY = frozenset({"1", "L", "LA", "La"})
"""Pillow's modes without colour."""
UNLABELLED_FOLDERS = ("unlabelled", "unlabeled")
"""Folders of pictures without a label, unless a class of the federation has this name."""
_ORIENTATION = 0x0112
"""EXIF tag: 5 and more are turned by a quarter."""
_LAYOUT = "Put pictures into one folder per class, for example photos/{}/001.png"


def read(
    folder: Path,
    classes: Sequence[str],
    input_shape: tuple[int, int, int],
    *,
    resize: bool = False,
    allow_unlabelled: bool = False,
) -> Samples:
    """All pictures of a folder, classes and files in the order of their names.

    `input_shape` is the federation's (C, H, W): pictures are converted to gray or RGB; a picture of another
    size is refused, or scaled to H x W (the aspect ratio is not kept) with `resize`. Pictures directly in
    `folder`, and those in its folder "unlabelled", are unlabelled, where that is allowed. Files that are no
    pictures are passed over.
    Raises DataError naming the folder or file.
    """
    found = pictures(folder, classes, allow_unlabelled)
    channels, height, width = input_shape
    refuse_oversize(folder, len(found) * channels * height * width)
    x = np.empty((len(found), height, width, channels), dtype=np.uint8)
    turned_gray = 0
    for index, (path, _) in enumerate(found):
        x[index], colour = _decode(path, input_shape, resize)
        turned_gray += colour and channels == 1
    return Samples(x, np.array([label for _, label in found], dtype=np.int64), turned_gray)


def decode(path: Path, input_shape: tuple[int, int, int], *, resize: bool = False) -> npt.NDArray[np.uint8]:
    """One picture as uint8 (H, W, C), upright by its EXIF orientation; of an animation the first frame.

    The size is checked in the header, before pixels are decoded. Raises DataError naming the file.
    """
    return _decode(path, input_shape, resize)[0]


def _decode(
    path: Path, input_shape: tuple[int, int, int], resize: bool
) -> tuple[npt.NDArray[np.uint8], bool]:
    """The pixels, and whether the file holds a colour picture."""
    Image, ImageOps = _pillow(path)
    channels, height, width = input_shape
    if channels not in (1, 3):
        raise DataError(
            path,
            f"pictures have 1 or 3 channels, the federation's have {channels}",
            "Give an .npz file instead",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(path, formats=FORMATS)
        with image:
            _check_header(path, image.size, image.mode, (width, height), resize)
            upright = ImageOps.exif_transpose(image)
            if upright.size != (width, height) and not resize:
                raise _other_size(path, upright.size, (width, height))
            plain = upright.convert("L" if channels == 1 else "RGB")
            if plain.size != (width, height):
                plain = plain.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.asarray(plain, dtype=np.uint8).reshape(height, width, channels)
            return pixels, upright.mode not in _GRAY
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(path) from error
    except Exception as error:  # decoders raise SyntaxError, struct.error, OSError and more on damaged files
        raise DataError(path, f"cannot be decoded: {error}", "Remove the picture or copy it again") from error


def _pillow(path: Path) -> tuple[ModuleType, ModuleType]:
    """Pillow's Image and ImageOps, wanted for `path`."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DataError(
            path, "reading pictures needs Pillow", "pip install pillow, or give an .npz file"
        ) from error
    return Image, ImageOps


def _check_header(
    path: Path, size: tuple[int, int], mode: str, wanted: tuple[int, int], resize: bool
) -> None:
    if size[0] * size[1] > MAX_PIXELS:
        raise _too_large(path)
    if not resize and sorted(size) != sorted(wanted):  # a turned picture changes sides once it is upright
        raise _other_size(path, size, wanted)
    if mode.startswith(("I", "F")):
        raise DataError(path, f"more than 8 bits a channel (mode {mode})", "Save it as an 8-bit picture")


def _other_size(path: Path, size: tuple[int, int], wanted: tuple[int, int]) -> DataError:
    return DataError(
        path,
        f"{size[0]}x{size[1]} pixels, the federation's images have {wanted[0]}x{wanted[1]} (width x height)",
        "Scale it, or let it be scaled with --resize",
    )


def _too_large(path: Path) -> DataError:
    return DataError(path, f"more than {MAX_PIXELS:,} pixels: not decoded", "Remove it or scale it down")


def header(path: Path) -> tuple[tuple[int, int], bool]:
    """((width, height) when upright, has it colour); nothing is decoded. Raises DataError."""
    Image, _ = _pillow(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # nothing is decoded here
            image = Image.open(path, formats=FORMATS)
        with image:
            turned = image.getexif().get(_ORIENTATION, 1) >= 5
            return (image.size[::-1] if turned else image.size), image.mode not in _GRAY
    except Exception as error:
        raise DataError(path, f"cannot be read: {error}", "Remove the picture or copy it again") from error


def pictures(folder: Path, classes: Sequence[str], allow_unlabelled: bool = False) -> list[tuple[Path, int]]:
    """Each picture with its label; folders sorted by name, files sorted by name, unlabelled ones first.

    Raises DataError for a folder that is no class, and when there are no pictures.
    """
    example = _LAYOUT.format(classes[0] if classes else "CLASS")
    entries = sorted(
        (path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda p: p.name
    )
    loose = [path for path in entries if path.is_file() and _is_picture(path)]
    if loose and not allow_unlabelled:
        raise DataError(folder, f"{loose[0].name} lies outside any class folder, so it has no label", example)
    found = [(path, UNLABELLED) for path in loose]
    for directory in (path for path in entries if path.is_dir()):
        label = position(directory.name, classes)
        if label is None and directory.name.lower() in UNLABELLED_FOLDERS:
            if not allow_unlabelled:
                raise DataError(directory, "pictures without a label are of no use here", example)
            label = UNLABELLED
        if label is None:
            raise _unknown_class(directory, classes)
        for path in sorted(directory.iterdir(), key=lambda p: p.name):
            if path.name.startswith("."):
                continue
            if path.is_dir():
                raise DataError(
                    path, "a folder inside a class folder: its pictures would be left out", example
                )
            if _is_picture(path):
                found.append((path, label))
    if not found:
        raise DataError(folder, f"no pictures in it ({', '.join(sorted(SUFFIXES))})", example)
    return found


def _is_picture(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix in _UNREADABLE:
        raise DataError(path, f"pictures of the kind {suffix} cannot be read", "Convert it to .png or .jpg")
    return suffix in SUFFIXES


def _unknown_class(directory: Path, classes: Sequence[str]) -> DataError:
    what = f"the folder {directory.name!r} is not one of the federation's classes: {listing(classes)}"
    near = [name for name in classes if name.casefold() == directory.name.casefold()]
    if near:
        return DataError(directory, what, f"Rename it to {near[0]!r}")
    if any(position(inner.name, classes) is not None for inner in directory.iterdir() if inner.is_dir()):
        return DataError(directory, what, f"It holds class folders itself: give --data {directory}")
    return DataError(directory, what, "Rename the folder, or move it out of the data")
