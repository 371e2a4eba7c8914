"""The one way from a picture's file or bytes to pixels, for training and for answering alike.

Whatever trains on a picture and whatever answers for it must see the same pixels, so `join`, `init`, `infer`
and `serve` all decode here. The rules for each mode and format are a table in docs/operations.md.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

SUFFIXES = frozenset(
    {".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".dib", ".gif", ".webp", ".tif", ".tiff"}
    | {".ppm", ".pgm", ".pbm", ".pnm"}
)
"""File names that are read as pictures, in any case of letters."""

FORMATS = ("PNG", "JPEG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM")
"""The only Pillow decoders that are tried: none of them starts another program, as that of EPS does."""

MAX_PIXELS = 64_000_000
"""A picture with more pixels is refused by its header, before it is decoded."""

_GRAY = frozenset({"1", "L", "LA", "La"})
"""Pillow's modes without colour."""
_TRANSPARENT = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_DEEP = ("I", "F")
"""Pillow's modes with more than 8 bits begin so."""
_ORIENTATION = 0x0112
_TIFF_WIDTH, _TIFF_HEIGHT = 256, 257
_TURNED = 5
"""From this orientation on a picture is turned by a quarter: width and height change places."""
_MAGIC = (
    *(b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM", b"GIF87a", b"GIF89a", b"RIFF", b"II*\0", b"MM\0*"),
    *(b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"),
)


class PictureError(ValueError):
    """A picture that is not used. `what` is wrong with it; `remedy` is what a person can do."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}. {remedy}")
        self.what, self.remedy = what, remedy


class Unreadable(PictureError):
    """The file is damaged, not whole yet, or of a kind that is not read."""


class OtherSize(PictureError):
    """A good picture of another size than asked for; `size` is its (width, height) when upright."""

    def __init__(self, size: tuple[int, int], wanted: tuple[int, int]) -> None:
        super().__init__(
            f"{size[0]}x{size[1]} pixels, expected {wanted[0]}x{wanted[1]} (width x height)",
            "Scale the picture, or let it be scaled",
        )
        self.size, self.wanted = size, wanted


class WrongChannels(PictureError):
    """No picture can have so many channels."""


@dataclass(frozen=True, eq=False)
class Picture:
    """`pixels`: uint8 (height, width, channels). `colour`: the file holds a colour picture."""

    pixels: npt.NDArray[np.uint8]
    colour: bool


@dataclass(frozen=True)
class Header:
    """(width, height) when upright, and whether the file holds a colour picture."""

    size: tuple[int, int]
    colour: bool


def decode(source: Path | bytes, input_shape: tuple[int, int, int], *, resize: bool = False) -> Picture:
    """The picture in a file or in bytes, for a model of (channels, height, width).

    It is set upright by its EXIF orientation; what is transparent becomes white; colours become gray for one
    channel, gray becomes RGB for three; of an animation the first frame counts. Another size is refused, or
    scaled with `resize` (bilinear, the aspect ratio is not kept). All of it is decided by the header first.
    Raises WrongChannels, OtherSize, and Unreadable for everything else, ModuleNotFoundError without Pillow.
    """
    channels, height, width = input_shape
    if channels not in (1, 3):
        raise WrongChannels(
            f"pictures have 1 or 3 channels, {channels} are asked for", "Give an array instead: .npz or .npy"
        )
    Image = _pillow()
    with _opened(source) as image:
        try:
            found = _header(image)
            if found.size != (width, height) and not resize:
                raise OtherSize(found.size, (width, height))
            upright = _upright(image, Image)
            if upright.mode in _TRANSPARENT or "transparency" in image.info:
                seen = upright.convert("RGBA")
                white = Image.new("RGBA", seen.size, (255, 255, 255, 255))
                upright = Image.alpha_composite(white, seen)
            plain = upright.convert("L" if channels == 1 else "RGB")
            if plain.size != (width, height):
                plain = plain.resize((width, height), Image.Resampling.BILINEAR)
            return Picture(np.asarray(plain, np.uint8).reshape(height, width, channels), found.colour)
        except PictureError:
            raise
        except Exception as error:  # decoders raise SyntaxError, struct.error, OSError and more on damage
            raise _damaged(error) from error


def header(source: Path | bytes) -> Header:
    """Size and colour; no pixel is decoded. Raises Unreadable, ModuleNotFoundError without Pillow."""
    with _opened(source) as image:
        try:
            return _header(image)
        except PictureError:
            raise
        except Exception as error:
            raise _damaged(error) from error


def is_picture(data: bytes) -> bool:
    """True for bytes that begin as a file of one of the FORMATS does."""
    return data.startswith(_MAGIC)


def _pillow() -> ModuleType:
    from PIL import Image

    return Image


def _opened(source: Path | bytes) -> PillowImage:
    """The file, its header read. A pipe or a device is not even opened: it might never answer."""
    Image = _pillow()
    try:
        if not isinstance(source, bytes) and not stat.S_ISREG(os.stat(source).st_mode):
            raise Unreadable("not a regular file", "Give a picture file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is lower
            opened: PillowImage = Image.open(
                io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS
            )
            return opened
    except PictureError:
        raise
    except Image.DecompressionBombError as error:
        raise _too_large() from error
    except Image.UnidentifiedImageError as error:
        raise Unreadable(
            f"cannot be decoded: not a picture of a kind that is read here ({', '.join(FORMATS)})",
            "Convert it to .png or .jpg, or move it out of the data",
        ) from error
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror or error}", "Check the file") from error
    except Exception as error:
        raise _damaged(error) from error


def _header(image: Any) -> Header:
    if image.width * image.height > MAX_PIXELS:
        raise _too_large()
    if image.mode.startswith(_DEEP):
        raise Unreadable(f"more than 8 bits a channel (mode {image.mode})", "Save it as an 8-bit picture")
    size = image.size
    if image.format == "TIFF":  # whose size Pillow may have turned already, from some version on
        size = image.tag_v2[_TIFF_WIDTH], image.tag_v2[_TIFF_HEIGHT]
    turned = _orientation(image) >= _TURNED
    return Header(size[::-1] if turned else size, not _is_gray(image))


def _is_gray(image: PillowImage) -> bool:
    if image.mode in ("P", "PA"):
        colours = np.asarray(image.getpalette("RGB") or [], np.uint8).reshape(-1, 3)
        return bool((colours == colours[:, :1]).all())
    return image.mode in _GRAY


def _orientation(image: PillowImage) -> int:
    """1 to 8; what is missing, damaged or a text that is no number counts as upright, as viewers do."""
    try:
        value: Any = image.getexif().get(_ORIENTATION, 1)
        number = int(value[0] if isinstance(value, tuple) else value)
    except Exception:  # the EXIF block is parsed lazily, and raises what its parser meets
        return 1
    return number if 1 <= number <= 8 else 1


def _upright(image: PillowImage, Image: ModuleType) -> PillowImage:
    """EXIF 2.32, tag 274: what has to be done so that row 0 is on top and column 0 on the left."""
    turn = Image.Transpose
    steps = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }
    image.load()  # of a TIFF it does the turning itself, and takes the tag away
    step = steps.get(_orientation(image))
    return image if step is None else image.transpose(step)


def _too_large() -> Unreadable:
    return Unreadable(
        f"more than {MAX_PIXELS:,} pixels: not decoded", "Scale it down, or move it out of the data"
    )


def _damaged(error: Exception) -> Unreadable:
    return Unreadable(
        f"cannot be decoded: {error}", "Copy it again from where it came from, or move it out of the data"
    )
