"""Opens whatever a person points at: finds out what kind of data it is, reads it, and checks it.

Only the field's own formats are read; see the reader of each for its layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Literal

import numpy as np

from fedbac_edge.datasets import cifar, idx, image_folder, npz, picture, picture_files, set_apart, svhn
from fedbac_edge.datasets.samples import UNLABELLED, DataError, Samples

KINDS = (
    "a folder of pictures (photos/<class name>/*.png), an .npz file with x and y, an IDX pair "
    "(train-images-idx3-ubyte.gz with its labels beside it), CIFAR-10's or CIFAR-100's binary version, or "
    "SVHN's .mat"
)
_EXAMPLE = f"Give {KINDS}, for example --data photos/"
Split = Literal["train", "test"]


def load(
    path: str | PathLike[str],
    *,
    classes: Sequence[str],
    input_shape: tuple[int, int, int],
    split: Split = "train",
    resize: bool = False,
    allow_unlabelled: bool = False,
    strict: bool = False,
) -> Samples:
    """Read the data at `path` for a federation with these `classes` and this `input_shape` (C, H, W).

    `split` chooses where a folder or an archive holds both a training and a test set; a single file is read
    as it is. `resize` scales pictures of another size. Without `allow_unlabelled` every sample needs a label.
    `strict` refuses a folder of which a picture cannot be used, instead of passing the picture over.
    Raises DataError, and nothing else, when the data cannot be used.
    """
    place = Path(path)
    try:
        if not place.exists():
            raise DataError(place, "there is no such file or folder", _EXAMPLE)
        samples = _read(place, classes, input_shape, split, resize, allow_unlabelled, strict)
    except OSError as error:
        raise DataError(place, f"cannot be read: {error}", "Check the path and its permissions") from error
    except MemoryError as error:
        raise DataError(
            place, "too large for this machine's memory", "Give this device fewer samples"
        ) from error
    check(samples, classes, input_shape, place, allow_unlabelled=allow_unlabelled)
    return samples


def load_test(
    path: Path,
    train: Samples,
    *,
    classes: Sequence[str],
    input_shape: tuple[int, int, int],
    resize: bool = False,
) -> tuple[Samples, Samples]:
    """(to train on, to test on) of the data at `path`, of which `train` was loaded before.

    Of a folder of pictures a fifth is set apart for the test (`set_apart`). Raises DataError.
    """
    try:
        if _is_picture_folder(path):
            return set_apart.for_test(train, path)
    except OSError as error:
        raise DataError(path, f"cannot be read: {error}", "Check the path and its permissions") from error
    return train, load(path, classes=classes, input_shape=input_shape, split="test", resize=resize)


def check(
    samples: Samples,
    classes: Sequence[str],
    input_shape: tuple[int, int, int],
    where: str | PathLike[str],
    *,
    allow_unlabelled: bool = False,
) -> None:
    """Hold samples to the federation: types, lengths, image size, channels, label range. Raises DataError."""
    x, y = samples.x, samples.y
    if x.dtype != np.uint8 or x.ndim != 4 or y.dtype != np.int64 or y.ndim != 1:
        raise DataError(
            where,
            f"x is {x.dtype} {x.shape} and y {y.dtype} {y.shape}",
            "Expected uint8 (samples, height, width, channels) and int64 (samples,)",
        )
    if len(x) != len(y):
        raise DataError(where, f"{len(x):,} images, but {len(y):,} labels", "Both need the same number")
    if not len(x):
        raise DataError(where, "no samples in it", _EXAMPLE)
    channels, height, width = input_shape
    if x.shape[1:] != (height, width, channels):
        raise DataError(where, _mismatch(x.shape[1:], input_shape), _shape_remedy(x.shape[1:], input_shape))
    lowest = UNLABELLED if allow_unlabelled else 0
    wrong = np.flatnonzero((y < lowest) | (y >= len(classes)))
    if len(wrong):
        first, label, most = int(wrong[0]), int(y[wrong[0]]), len(classes) - 1
        if label == UNLABELLED:
            raise DataError(
                where, f"sample {first} has no label (-1)", "This federation needs a label for every sample"
            )
        raise DataError(
            where,
            f"sample {first} has the label {label}, the federation's {len(classes)} classes are 0 to {most}",
            "Number the labels by the federation's class list, beginning with 0",
        )


def _mismatch(found: tuple[int, ...], input_shape: tuple[int, int, int]) -> str:
    channels, height, width = input_shape
    if found[:2] == (height, width):
        return f"images with {found[2]} channel(s), the federation's have {channels}"
    return (
        f"images of {found[1]}x{found[0]} pixels with {found[2]} channel(s), the federation's have "
        f"{width}x{height} with {channels}"
    )


def _shape_remedy(found: tuple[int, ...], input_shape: tuple[int, int, int]) -> str:
    if found == input_shape:
        return "Channels come last: try x.transpose(0, 2, 3, 1)"
    return "Convert the images, or join a federation made for images like these"


def _read(
    path: Path,
    classes: Sequence[str],
    input_shape: tuple[int, int, int],
    split: Split,
    resize: bool,
    allow_unlabelled: bool,
    strict: bool,
) -> Samples:
    if path.is_dir():
        images = _idx_images(path, split)
        if images is not None:
            return _read_idx(images, allow_unlabelled)
        if cifar.is_folder(path):
            return cifar.read(path, classes, split)
        if (path / f"{split}_32x32.mat").is_file():
            return svhn.read(path / f"{split}_32x32.mat", classes)
        archives = sorted(path.glob("*.npz"))
        if archives and not picture_files.is_system(archives[0].name):
            raise DataError(path, "a folder with .npz files", f"Give the file itself: --data {archives[0]}")
        return image_folder.read(
            path, classes, input_shape, resize=resize, allow_unlabelled=allow_unlabelled, strict=strict
        )
    if not path.is_file():
        raise DataError(path, "neither a file nor a folder", _EXAMPLE)
    name = path.name.lower()
    if path.stat().st_size == 0:
        raise DataError(path, "an empty file", _EXAMPLE)
    if name.endswith(".npz"):
        return npz.read(path, allow_unlabelled=allow_unlabelled)
    if name.endswith(".mat"):
        return svhn.read(path, classes)
    if name.endswith((".tar.gz", ".tgz", ".tar")):
        return cifar.read(path, classes, split)
    if path.suffix.lower() in picture.SUFFIXES:
        raise DataError(
            path, "a single picture", "Give the folder of the class folders, for example --data photos/"
        )
    if "idx" in name or "images" in name or "labels" in name:
        return _read_idx(path, allow_unlabelled)
    raise DataError(path, "a kind of file that is not known here", _EXAMPLE)


def _is_picture_folder(path: Path) -> bool:
    """A folder that `_read` hands to `image_folder`."""
    if not path.is_dir() or _idx_images(path, "train") is not None or cifar.is_folder(path):
        return False
    return not (path / "train_32x32.mat").is_file()


def _idx_images(folder: Path, split: Split) -> Path | None:
    """The images' file of an IDX pair in `folder`, of the wanted split; None when there is no IDX file."""
    found = sorted(path for path in folder.glob("*images*idx3*") if path.is_file())
    prefixes = ("train",) if split == "train" else ("t10k", "test")
    chosen = [path for path in found if path.name.startswith(prefixes)]
    if chosen:
        return chosen[0]
    if found and split == "test":
        # Training images must never pass for a test set.
        raise DataError(
            folder, "no IDX test images (t10k-images-idx3-ubyte)", "Add the test pair to the folder"
        )
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise DataError(
            folder, f"several IDX image files: {names}", f"Choose one, for example --data {found[0]}"
        )
    return found[0] if found else None


def _read_idx(images: Path, allow_unlabelled: bool) -> Samples:
    labels = idx.labels_beside(images) if "images" in images.name else None
    if labels is None and "images" in images.name and not allow_unlabelled:
        expected = images.name.replace("images", "labels").replace("idx3", "idx1")
        raise DataError(
            images, f"no labels beside it: {expected} is missing", f"Put {expected} into {images.parent}"
        )
    return idx.read(images, labels)
