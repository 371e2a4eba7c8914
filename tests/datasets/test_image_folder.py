"""Folders of pictures: labels by folder name, pictures as they are."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedbac_edge.datasets.samples import DataError, Samples
from fedbac_edge.datasets.sources import load

CLASSES = ["cat", "dog", "émeu"]
PIXELS = np.random.default_rng(3).integers(0, 256, (8, 10, 3), dtype=np.uint8)


def save(path: Path, pixels: np.ndarray = PIXELS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def read(folder: Path, *, channels: int = 3, resize: bool = False, allow_unlabelled: bool = False) -> Samples:
    shape = (channels, 8, 10)
    return load(folder, classes=CLASSES, input_shape=shape, resize=resize, allow_unlabelled=allow_unlabelled)


def refusal(folder: Path, *, resize: bool = False) -> str:
    with pytest.raises(DataError) as caught:
        read(folder, resize=resize)
    return str(caught.value)


def test_lossless_pictures_come_back_exactly_in_name_order(tmp_path: Path) -> None:
    for number, name in enumerate(("dog/b.png", "dog/a.bmp", "cat/z.PPM")):
        save(tmp_path / name, PIXELS + number)
    samples = read(tmp_path)
    assert samples.y.tolist() == [0, 1, 1]
    assert np.array_equal(samples.x, np.stack([PIXELS + 2, PIXELS + 1, PIXELS]))
    assert samples.x.flags.writeable


def test_devices_that_lack_different_classes_agree_on_labels(tmp_path: Path) -> None:
    """Field report 23. Numbering the folders by the alphabet would call both of these 0."""
    save(tmp_path / "one" / "dog" / "1.png")
    save(tmp_path / "two" / "cat" / "1.png")
    assert read(tmp_path / "one").y.tolist() == [1]
    assert read(tmp_path / "two").y.tolist() == [0]


def test_a_decomposed_accent_is_the_same_class(tmp_path: Path) -> None:
    save(tmp_path / "e\u0301meu" / "1.png")
    assert read(tmp_path).y.tolist() == [2]


def test_colour_becomes_gray_and_gray_becomes_colour(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "1.png", np.full((8, 10, 3), (255, 0, 0), dtype=np.uint8))
    save(tmp_path / "cat" / "2.png", PIXELS[..., 0])
    gray, colour = read(tmp_path, channels=1), read(tmp_path)
    assert gray.x.shape == (2, 8, 10, 1)
    assert set(gray.x[0].ravel().tolist()) == {76}  # ITU-R 601-2: 0.299 of 255
    assert np.array_equal(gray.x[1, ..., 0], PIXELS[..., 0])
    assert np.array_equal(colour.x[1], np.repeat(PIXELS[..., :1], 3, axis=2))


def test_palette_and_alpha_are_converted(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    flat = Image.new("RGB", (10, 8), (10, 200, 30))
    flat.convert("P", palette=Image.Palette.ADAPTIVE).save(tmp_path / "cat" / "1.gif")
    flat.convert("RGBA").save(tmp_path / "cat" / "2.png")
    assert {tuple(pixel) for pixel in read(tmp_path).x.reshape(-1, 3).tolist()} == {(10, 200, 30)}


def test_a_turned_photograph_is_set_upright(tmp_path: Path) -> None:
    upright = Image.fromarray(PIXELS)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise
    (tmp_path / "cat").mkdir()
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "cat" / "1.png", exif=exif)
    assert np.array_equal(read(tmp_path).x[0], PIXELS)


def test_another_size_is_refused_with_both_sizes_or_scaled_on_request(tmp_path: Path) -> None:
    path = save(tmp_path / "cat" / "1.png", np.full((16, 5, 3), 77, dtype=np.uint8))
    message = refusal(tmp_path)
    assert str(path) in message
    assert "5x16 pixels, the federation's images have 10x8" in message
    assert "--resize" in message
    scaled = read(tmp_path, resize=True)
    assert scaled.x.shape == (1, 8, 10, 3)
    assert set(scaled.x.ravel().tolist()) == {77}


def test_swapped_sides_are_another_size(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "1.png", PIXELS.transpose(1, 0, 2))
    assert "8x10 pixels, the federation's images have 10x8" in refusal(tmp_path)


def test_an_unknown_class_is_named_with_the_known_ones(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "1.png")
    save(tmp_path / "wolf" / "1.png")
    message = refusal(tmp_path)
    assert str(tmp_path / "wolf") in message
    assert "the folder 'wolf' is not one of the federation's classes: 'cat', 'dog', 'émeu'" in message


def test_near_misses_get_a_hint(tmp_path: Path) -> None:
    save(tmp_path / "a" / "Cat" / "1.png")
    assert "Rename it to 'cat'" in refusal(tmp_path / "a")
    save(tmp_path / "b" / "train" / "dog" / "1.png")
    assert f"give --data {tmp_path / 'b' / 'train'}" in refusal(tmp_path / "b")


def test_empty_folders_are_refused_with_an_example(tmp_path: Path) -> None:
    assert "no pictures in it" in refusal(tmp_path)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("nothing yet")
    message = refusal(tmp_path)
    assert "no pictures in it" in message
    assert "for example photos/cat/001.png" in message


def test_nothing_is_left_out_silently(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "1.png")
    save(tmp_path / "cat" / "monday" / "2.png")
    assert "a folder inside a class folder" in refusal(tmp_path)
    (tmp_path / "cat" / "monday").rename(tmp_path / "dog")
    (tmp_path / "dog" / "3.HEIC").write_bytes(b"x")
    assert "1 of the kind .heic, which cannot be read: convert" in read(tmp_path).passed_over.sentence()


def test_system_files_are_passed_over(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "1.png")
    (tmp_path / "cat" / "._1.png").write_bytes(b"resource fork")
    (tmp_path / "cat" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / ".thumbnails").mkdir()
    assert len(read(tmp_path)) == 1


def test_loose_pictures_are_unlabelled_where_that_is_allowed(tmp_path: Path) -> None:
    save(tmp_path / "2.png")
    save(tmp_path / "dog" / "1.png")
    assert "2.png lies outside any class folder" in refusal(tmp_path)
    assert read(tmp_path, allow_unlabelled=True).y.tolist() == [-1, 1]


def test_a_folder_of_unlabelled_pictures_where_that_is_allowed(tmp_path: Path) -> None:
    for name in ("unlabelled/1.png", "unlabelled/2.png", "dog/1.png"):
        save(tmp_path / name)
    assert "pictures without a label are of no use here" in refusal(tmp_path)
    assert read(tmp_path, allow_unlabelled=True).y.tolist() == [1, -1, -1]
    save(tmp_path / "unlabelled" / "more" / "3.png")
    with pytest.raises(DataError, match="a folder inside a class folder"):
        read(tmp_path, allow_unlabelled=True)


def test_a_truncated_picture_is_named(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (8, 10, 3), dtype=np.uint8)
    for name in ("1.png", "2.jpg"):
        path = save(tmp_path / name / "cat" / name, noise)
        path.write_bytes(path.read_bytes()[:-60])
        message = refusal(tmp_path / name)
        assert str(path) in message
        assert "cannot be decoded" in message


def test_a_text_called_png_is_named(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_text("<html>not found</html>")
    assert "cannot be decoded" in refusal(tmp_path)


def test_sixteen_bit_gray_is_refused_rather_than_clipped(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "1.png", np.full((8, 10), 40_000, dtype=np.uint16))
    assert "more than 8 bits a channel" in refusal(tmp_path)


@pytest.mark.parametrize("side", [9_000, 60_000])
def test_a_decompression_bomb_is_refused_by_its_header(tmp_path: Path, side: int) -> None:
    """A picture of 81 million or 3.6 thousand million pixels in some hundred bytes: no pixel is decoded."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    content += chunk(b"IDAT", zlib.compress(bytes(4096))) + chunk(b"IEND", b"")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(content)
    assert "more than 64,000,000 pixels: not decoded" in refusal(tmp_path, resize=True)


def test_two_channels_cannot_come_from_pictures(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 or 3 channels, 2 are asked for"):
        load(save(tmp_path / "cat" / "1.png").parent.parent, classes=CLASSES, input_shape=(2, 8, 10))


def test_colour_pictures_that_a_gray_federation_gets_are_counted(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / "cat" / f"{number}.png")
    save(tmp_path / "dog" / "1.png", PIXELS[..., 0])
    assert read(tmp_path, channels=1).turned_gray == 3
    assert read(tmp_path, channels=3).turned_gray == 0
