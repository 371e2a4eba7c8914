"""One decoder: a picture's pixels are the same for whoever trains on it and for whoever answers for it."""

from __future__ import annotations

import io
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from device_agent import questions
from export.session import InputError, Session, read_image
from fedbac_edge.datasets import picture
from fedbac_edge.datasets.samples import DataError
from fedbac_edge.datasets.sources import load
from fedbac_edge.datasets.survey import survey

Pixels = npt.NDArray[np.uint8]
WIDTH, HEIGHT = 20, 18
COLOUR = (10, 200, 30)
GRAY = 124  # ITU-R 601-2 of COLOUR
WHITE = (255, 255, 255)
LOSSY = 3


def model(channels: int) -> Session:
    """What `read_image` and `serve` ask of a model: its shape."""
    return cast(Session, SimpleNamespace(input_shape=(channels, HEIGHT, WIDTH)))


def encoded(image: Image.Image, kind: str, **how: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def flat(mode: str) -> Image.Image:
    return Image.new("RGB", (WIDTH, HEIGHT), COLOUR).convert(mode)


def clear(mode: str) -> Image.Image:
    """Wholly transparent, with black below."""
    image = Image.new(mode, (WIDTH, HEIGHT))
    assert image.getchannel("A").getextrema() == (0, 0)
    return image


def palette_with_a_hole() -> bytes:
    image = Image.new("P", (WIDTH, HEIGHT), 0)
    image.putpalette([*(0, 0, 0), *COLOUR])
    return encoded(image, "PNG", transparency=0)


def animation() -> bytes:
    frames = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in (COLOUR, (200, 0, 0))]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])


def turned(orientation: int | str, kind: str = "PNG") -> bytes:
    """COLOUR on top and white below, saved as a camera on its side saves it."""
    upright = Image.new("RGB", (WIDTH, HEIGHT), COLOUR)
    upright.paste(WHITE, (0, HEIGHT // 2, WIDTH, HEIGHT))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = upright.transpose(Image.Transpose.ROTATE_90) if orientation == 6 else upright
    return encoded(stored, kind, exif=exif)


ACCEPTED: dict[str, tuple[str, bytes, tuple[int, int, int], int]] = {
    "1": ("PNG", encoded(Image.new("1", (WIDTH, HEIGHT), 1), "PNG"), WHITE, 255),
    "L": ("PNG", encoded(flat("L"), "PNG"), (GRAY, GRAY, GRAY), GRAY),
    "L in WebP": ("WEBP", encoded(flat("L"), "WEBP", lossless=True), (GRAY, GRAY, GRAY), GRAY),
    "L in GIF": ("GIF", encoded(flat("L"), "GIF"), (GRAY, GRAY, GRAY), GRAY),
    "LA, clear": ("PNG", encoded(clear("LA"), "PNG"), WHITE, 255),
    "P": ("GIF", encoded(flat("RGB"), "GIF"), COLOUR, GRAY),
    "P, clear": ("PNG", palette_with_a_hole(), WHITE, 255),
    "RGB": ("PNG", encoded(flat("RGB"), "PNG"), COLOUR, GRAY),
    "RGB in BMP": ("BMP", encoded(flat("RGB"), "BMP"), COLOUR, GRAY),
    "RGB in PPM": ("PPM", encoded(flat("RGB"), "PPM"), COLOUR, GRAY),
    "RGB in WebP": ("WEBP", encoded(flat("RGB"), "WEBP", lossless=True), COLOUR, GRAY),
    "RGBA": ("PNG", encoded(flat("RGBA"), "PNG"), COLOUR, GRAY),
    "RGBA, clear": ("PNG", encoded(clear("RGBA"), "PNG"), WHITE, 255),
    "RGBA, clear, in WebP": ("WEBP", encoded(clear("RGBA"), "WEBP", lossless=True), WHITE, 255),
    "CMYK": ("JPEG", encoded(flat("CMYK"), "JPEG", quality=100), COLOUR, GRAY),
    "CMYK in TIFF": ("TIFF", encoded(flat("CMYK"), "TIFF"), COLOUR, GRAY),
    "YCbCr": ("JPEG", encoded(flat("YCbCr"), "JPEG", quality=100), COLOUR, GRAY),
    "an animation": ("GIF", animation(), COLOUR, GRAY),
}
"""Name -> Pillow's format, the file, and the colour and gray that a model of three or one channels gets."""

REFUSED = {
    "I;16": (encoded(Image.new("I;16", (WIDTH, HEIGHT), 40_000), "PNG"), "more than 8 bits a channel"),
    "I": (encoded(Image.new("I", (WIDTH, HEIGHT), 40_000), "TIFF"), "more than 8 bits a channel"),
    "F": (encoded(Image.new("F", (WIDTH, HEIGHT), 0.5), "TIFF"), "more than 8 bits a channel"),
    "EPS": (encoded(flat("RGB"), "EPS"), "not a picture of a kind that is read here"),
    "cut off": (encoded(Image.effect_noise((WIDTH, HEIGHT), 90), "PNG")[:-60], "cannot be decoded"),
    "a web page": (b"<html>not found</html>", "not a picture of a kind that is read here"),
    "nothing": (b"", "not a picture of a kind that is read here"),
}


def trained_on(folder: Path, data: bytes, channels: int, *, resize: bool = False) -> Pixels:
    """What `join` trains on, where the file is one of two."""
    (folder / "cat").mkdir(parents=True)
    path = folder / "cat" / "1.png"  # the content counts, not the name
    path.write_bytes(data)
    os.utime(path, (1e9, 1e9))
    shape = (channels, HEIGHT, WIDTH)
    pixels: Pixels = load(folder, classes=["cat", "dog"], input_shape=shape, resize=resize).x[0]
    return pixels


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", ACCEPTED)
def test_all_commands_see_the_pixels_of_the_table(tmp_path: Path, name: str, channels: int) -> None:
    kind, data, colour, gray = ACCEPTED[name]
    assert Image.open(io.BytesIO(data)).format == kind
    trained = trained_on(tmp_path, data, channels)
    wanted = np.array(colour if channels == 3 else [gray], np.int64)
    assert np.abs(trained - wanted).max() <= (LOSSY if kind == "JPEG" else 0)
    inferred = read_image(tmp_path / "cat" / "1.png", model(channels))
    served = questions.read(data, model(channels)).pixels
    packed = questions.read(msgspec.msgpack.encode({"image": data}), model(channels)).pixels
    for pixels in (inferred, served, packed):
        assert pixels.shape == (HEIGHT, WIDTH, channels)
        assert np.array_equal(pixels, trained)


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("name", REFUSED)
def test_all_commands_refuse_what_the_table_refuses(tmp_path: Path, name: str, channels: int) -> None:
    data, sentence = REFUSED[name]
    with pytest.raises(DataError, match=sentence):
        trained_on(tmp_path, data, channels)
    with pytest.raises(InputError, match=sentence):
        read_image(tmp_path / "cat" / "1.png", model(channels))
    if picture.is_picture(data):
        with pytest.raises(InputError, match=sentence):
            questions.read(data, model(channels))


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_a_turned_photograph_is_upright_for_training_and_for_answers(tmp_path: Path, kind: str) -> None:
    data = turned(6, kind)
    trained = trained_on(tmp_path, data, 3)
    assert np.abs(trained[:8].astype(int) - COLOUR).max() < 25, "on top"
    assert trained[10:].min() > 230, "below"
    assert np.array_equal(read_image(tmp_path / "cat" / "1.png", model(3)), trained)
    assert np.array_equal(questions.read(data, model(3)).pixels, trained)


def test_each_orientation_is_undone() -> None:
    """Against Pillow's own transposition, which takes whole numbers only."""
    from PIL import ImageOps

    noise = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encoded(Image.fromarray(noise), "PNG", exif=exif)
        wanted = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
        height, width = wanted.shape[:2]
        assert np.array_equal(picture.decode(data, (3, height, width)).pixels, wanted), orientation
        assert picture.header(data).size == (width, height)


def text_orientation(text: bytes) -> bytes:
    """A JPEG whose EXIF block says its orientation in letters, as a phone's software once did."""
    entry = struct.pack("<HHI", 0x0112, 2, len(text)) + text.ljust(4, b"\0")
    block = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + entry + struct.pack("<I", 0)
    return encoded(Image.new("RGB", (WIDTH, HEIGHT), COLOUR), "JPEG", exif=block)


@pytest.mark.parametrize("text", [b"top\0", b"1\0", b"9\0", b"\xff\xfe\0"])
def test_a_text_in_the_orientation_refuses_no_picture(tmp_path: Path, text: bytes) -> None:
    data = text_orientation(text)
    assert isinstance(Image.open(io.BytesIO(data)).getexif()[0x0112], str), "the fault is there"
    trained = trained_on(tmp_path, data, 3)
    assert np.array_equal(read_image(tmp_path / "cat" / "1.png", model(3)), trained)


def test_sizes_are_one_limit_and_scaling_is_one_rule(tmp_path: Path) -> None:
    """Of 64 million pixels for all: `infer` stopped at 50."""
    noise = np.random.default_rng(2).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), "PNG")
    trained = trained_on(tmp_path / "a", data, 3, resize=True)
    assert np.array_equal(read_image(tmp_path / "a" / "cat" / "1.png", model(3), fit=True), trained)
    assert np.array_equal(questions.read(data, model(3), fit=True).pixels, trained)
    large = encoded(Image.new("1", (9000, 7000), 1), "PNG")
    assert read_image(large, model(1), fit=True).min() == 255
    for width in (9000, 60_000):
        bomb = bytearray(large)
        bomb[16:24] = struct.pack(">II", width, width)
        import zlib

        bomb[29:33] = struct.pack(">I", zlib.crc32(bytes(bomb[12:29])))
        with pytest.raises(picture.Unreadable, match="more than 64,000,000 pixels"):
            picture.decode(bytes(bomb), (1, HEIGHT, WIDTH), resize=True)


def test_init_counts_gray_palettes_as_gray(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.gif").write_bytes(encoded(flat("L"), "GIF"))
    seen = survey(tmp_path)
    assert seen.input == (1, HEIGHT, WIDTH)
    assert seen.mean == (round(GRAY / 255, 4),)


def test_no_program_is_started_for_a_picture(tmp_path: Path) -> None:
    """An EPS file called x.png started Ghostscript. A `gs` that leaves a trace would be found first."""
    trace = tmp_path / "started"
    fake = tmp_path / "bin" / "gs"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\ntouch {trace}\n")
    fake.chmod(0o755)
    (tmp_path / "x.png").write_bytes(REFUSED["EPS"][0])
    program = (
        "import sys, pathlib; from fedbac_edge.datasets import picture\n"
        "try: picture.decode(pathlib.Path(sys.argv[1]), (3, 18, 20))\n"
        "except picture.Unreadable as error: print(error)"
    )
    path = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "x.png")],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "not a picture of a kind that is read here" in done.stdout
    assert shutil.which("gs", path=path) == str(fake)
    assert not trace.exists()
