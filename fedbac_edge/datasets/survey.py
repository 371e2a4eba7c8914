"""What a federation for a user's own data would have to say: classes, image size, mean and deviation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets import image_folder, npz, picture, picture_files
from fedbac_edge.datasets.picture_files import PassedOver
from fedbac_edge.datasets.samples import UNLABELLED, DataError

SMALLEST, LARGEST = 16, 64
"""Pictures with sides in between are taken as they are; lenet is for small ones."""
SCALED = 32
"""Height and width to which others are scaled."""
MOST = 500
"""So many pictures, evenly spread, tell mean and deviation well enough."""


@dataclass(frozen=True)
class Survey:
    """`input`: (channels, height, width). `mean`, `std`: per channel, of pixels scaled to 0..1.

    `scaled`: the pictures have other sizes, so a device must be allowed to resize them.
    `passed_over`: what lies there and is not among them.
    """

    classes: tuple[str, ...]
    input: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scaled: bool = False
    passed_over: PassedOver = field(default_factory=PassedOver)


def survey(place: Path, size: tuple[int, int] | None = None) -> Survey:
    """Look at a folder of class folders, or at an .npz file with x and y. Raises DataError.

    `size`: the (width, height) to which the pictures of a folder are scaled; without it they keep theirs, if
    it is one and a small one.
    """
    if place.is_dir():
        return _folder(place, size)
    if place.is_file() and place.suffix.lower() == ".npz":
        return _archive(place)
    raise DataError(
        place,
        "not a folder of pictures and not an .npz file"
        if place.exists()
        else "there is no such folder or file",
        "Give a folder such as photos/ with a folder for each class in it, or an .npz file with x and y",
    )


def _folder(place: Path, size: tuple[int, int] | None) -> Survey:
    passed = PassedOver()
    top = picture_files.contents(place, PassedOver())
    folders = [directory for directory in top.folders if image_folder.has_pictures(directory)]
    classes = tuple(d.name for d in folders if d.name.lower() not in image_folder.UNLABELLED_FOLDERS)
    if not classes and folders:
        raise DataError(
            place,
            f"only pictures without a label, in {folders[0].name}",
            "Its classes must be known: give data that have some labels, or edit [model] by hand",
        )
    found = image_folder.find(place, classes, allow_unlabelled=bool(classes))
    passed.merge(found.passed)
    headers = _headers([path for path, _ in found.pictures], passed)
    sizes = {header.size for header in headers.values()}
    channels = 3 if any(header.colour for header in headers.values()) else 1
    width, height = next(iter(sizes))
    if size is not None:
        scaled = sizes != {size}
        width, height = size
    else:
        scaled = len(sizes) > 1 or not all(SMALLEST <= side <= LARGEST for side in (width, height))
        width, height = (SCALED, SCALED) if scaled else (width, height)
    shape = (channels, height, width)
    pixels = _pixels(_spread(list(headers)), shape, passed)
    return Survey(classes, shape, *_moments(pixels), scaled, passed)


def _headers(paths: Sequence[Path], passed: PassedOver) -> dict[Path, picture.Header]:
    """The headers that can be read, in order. Raises DataError when none can."""
    headers: dict[Path, picture.Header] = {}
    first: DataError | None = None
    for path in paths:
        try:
            headers[path] = picture.header(path)
        except ModuleNotFoundError as error:
            raise image_folder.no_pillow(path) from error
        except picture.PictureError as error:
            first = first or image_folder.refusal(path, error)
            passed.add(image_folder.DAMAGED, path)
    if not headers and first is not None:
        raise first
    return headers


def _pixels(paths: Sequence[Path], shape: tuple[int, int, int], passed: PassedOver) -> npt.NDArray[np.uint8]:
    """Those that can be decoded: uint8 (N, H, W, C). Raises DataError when none can."""
    decoded: list[npt.NDArray[np.uint8]] = []
    first: DataError | None = None
    for path in paths:
        try:
            decoded.append(picture.decode(path, shape, resize=True).pixels)
        except picture.PictureError as error:
            first = first or image_folder.refusal(path, error)
            passed.add(image_folder.DAMAGED, path)
    if not decoded and first is not None:
        raise first
    return np.stack(decoded)


def _archive(place: Path) -> Survey:
    samples = npz.read(place, allow_unlabelled=True)
    if not len(samples):
        raise DataError(place, "no samples in it", "Give a file with some")
    if int(samples.y.min()) < UNLABELLED:
        raise DataError(place, f"the label {int(samples.y.min())}", "Number the classes from 0")
    if int(samples.y.max()) < 0:
        raise DataError(place, "no labels in it, so no classes", "Give data of which some have labels")
    count, (height, width, channels) = int(samples.y.max()) + 1, samples.x.shape[1:]
    if count > len(samples):
        raise DataError(
            place, f"{count} classes by its labels, but {len(samples)} samples", "Number them from 0"
        )
    chosen = samples.x[np.linspace(0, len(samples) - 1, min(MOST, len(samples))).astype(int)]
    return Survey(tuple(map(str, range(count))), (channels, height, width), *_moments(chosen))


def _spread(paths: Sequence[Path]) -> list[Path]:
    return [paths[int(i)] for i in np.linspace(0, len(paths) - 1, min(MOST, len(paths)))]


def _moments(pixels: npt.NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation per channel of uint8 (N, H, W, C), scaled to 0..1; where nothing varies, 0.5."""
    scaled = pixels.astype(np.float64) / 255
    mean, std = scaled.mean((0, 1, 2)), scaled.std((0, 1, 2))
    return (
        tuple(round(float(value), 4) for value in mean),
        tuple(round(float(value), 4) if value >= 1e-3 else 0.5 for value in std),
    )
