"""One rule for what a folder of pictures is, with what cameras, drives and desktops leave in it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from export.infer import SUFFIXES as INFERRED
from fedbac_edge.datasets import image_folder, picture_files
from fedbac_edge.datasets.picture_files import PassedOver
from fedbac_edge.datasets.samples import DataError, Samples
from fedbac_edge.datasets.sources import load
from fedbac_edge.datasets.survey import survey

CLASSES = ["cat", "dog"]


def save(path: Path, value: int = 90, side: int = 20) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side), value, np.uint8)).save(path)
    return path


def read(folder: Path, *, strict: bool = False, unlabelled: bool = False) -> Samples:
    return load(folder, classes=CLASSES, input_shape=(1, 20, 20), strict=strict, allow_unlabelled=unlabelled)


def inferred(folder: Path) -> list[str]:
    return [str(p.relative_to(folder)) for p in picture_files.walk(folder, PassedOver(), suffixes=INFERRED)]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two pictures of each class."""
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
        save(tmp_path / "photos" / name)
    return tmp_path / "photos"


JUNK = (
    *("System Volume Information/IndexerVolumeGuid", "$RECYCLE.BIN/S-1-5/$R1.png", "lost+found/#12.png"),
    *("@eaDir/cat/SYNOPHOTO_THUMB_M.png", "cat/@eaDir/1.png/SYNOPHOTO_THUMB_XL.jpg", "__MACOSX/cat/._1.png"),
    *(".Trash-1000/files/1.png", ".thumbnails/normal/1.png", "cat/._1.png", "cat/.DS_Store", "Thumbs.db"),
    *("desktop.ini", "dog/Thumbs.db", "LOST.DIR/9.jpg", "#recycle/cat/1.png", "cat/ehthumbs.db"),
)


@pytest.mark.parametrize("name", JUNK)
def test_what_systems_leave_is_nobodys_picture(photos: Path, name: str) -> None:
    (photos / name).parent.mkdir(parents=True, exist_ok=True)
    (photos / name).write_bytes((photos / "cat" / "1.png").read_bytes())
    samples = read(photos)
    assert samples.y.tolist() == [0, 0, 1, 1]
    assert "1 hidden or made by a system" in samples.passed_over.sentence()
    assert len(read(photos, strict=True)) == 4, "none of it is somebody's"
    assert survey(photos).classes == ("cat", "dog")
    assert inferred(photos) == ["cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"]


def test_links_that_lead_nowhere_or_round_in_a_circle(photos: Path) -> None:
    (photos / "cat" / "broken.png").symlink_to("gone.png")
    (photos / "cat" / "itself.png").symlink_to("itself.png")
    (photos / "cat" / "up").symlink_to("..")
    (photos / "dog" / "here").symlink_to(".")
    (photos / "round").symlink_to(".")
    samples = read(photos)
    assert samples.y.tolist() == [0, 0, 1, 1]
    assert samples.passed_over.reasons.keys() == {"a broken link", "a link to a folder that it lies in"}
    assert samples.passed_over.count == 5
    assert survey(photos).classes == ("cat", "dog")
    assert inferred(photos) == ["cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"]
    with pytest.raises(DataError, match=r"broken\.png: a broken link"):
        read(photos, strict=True)


def test_linked_folders_and_files_are_followed(photos: Path) -> None:
    (photos / "dog").rename(photos.parent / "elsewhere")
    (photos / "dog").symlink_to(photos.parent / "elsewhere")
    (photos / "cat" / "3.png").symlink_to("1.png")
    assert read(photos).y.tolist() == [0, 0, 0, 1, 1]
    assert survey(photos).classes == ("cat", "dog")
    assert inferred(photos) == ["cat/1.png", "cat/2.png", "cat/3.png", "dog/1.png", "dog/2.png"]


def test_many_links_to_one_folder_are_walked_once(tmp_path: Path) -> None:
    """Each of 30 folders links twice to the next: a walk by names alone would take 2^30 steps."""
    for number in range(30):
        (tmp_path / "photos" / str(number)).mkdir(parents=True)
        for name in ("a", "b"):
            (tmp_path / "photos" / str(number) / name).symlink_to(f"../{number + 1}")
    save(tmp_path / "photos" / "30" / "1.png")
    assert inferred(tmp_path / "photos") == ["0/" + "a/" * 30 + "1.png"]


@pytest.mark.parametrize("command", ["read", "survey", "infer"])
def test_pipes_and_sockets_are_not_opened(photos: Path, command: str) -> None:
    """In a process of its own: reading from a pipe that nobody writes to takes for ever."""
    os.mkfifo(photos / "cat" / "f.png")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(photos / "dog" / "s.jpg"))
    program = {
        "read": "from fedbac_edge.datasets.sources import load\n"
        "print(load(p, classes=['cat', 'dog'], input_shape=(1, 20, 20)).passed_over.sentence())",
        "survey": "from fedbac_edge.datasets.survey import survey\nprint(survey(p).passed_over.sentence())",
        "infer": "from fedbac_edge.datasets import picture, picture_files\n"
        "passed = picture_files.PassedOver(); list(picture_files.walk(p, passed))\n"
        "try: picture.decode(p / 'cat' / 'f.png', (1, 20, 20))\n"
        "except picture.Unreadable: print(passed.sentence())",
    }[command]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, pathlib; p = pathlib.Path(sys.argv[1])\n{program}", str(photos)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "2 no regular file (f.png)" in done.stdout


def test_damaged_pictures_are_passed_over_and_counted(photos: Path) -> None:
    whole = save(photos / "cat" / "3.jpg")
    whole.write_bytes(whole.read_bytes()[:200])
    (photos / "cat" / "4.png").write_text("no picture")
    (photos / "dog" / "5.heic").write_bytes(b"x")
    (photos / "dog" / "notes.txt").write_text("x")
    save(photos / "dog" / "6.png", side=33)
    for path in photos.rglob("*"):
        os.utime(path, (1e9, 1e9))
    samples = read(photos)
    assert samples.y.tolist() == [0, 0, 1, 1]
    said = samples.passed_over.sentence()
    assert said.startswith("5 passed over: ")
    assert "2 not readable as a picture (3.jpg)" in said
    assert "1 of another size (6.png)" in said
    assert "1 of the kind .heic, which cannot be read: convert to .jpg or .png (5.heic)" in said
    assert "1 no picture by its name (notes.txt)" in said
    assert "2 not readable as a picture" in survey(photos).passed_over.sentence()
    for name in ("5.heic", "3.jpg", "4.png", "6.png"):
        with pytest.raises(DataError):
            read(photos, strict=True)
        next(photos.rglob(name)).unlink()
    assert len(read(photos, strict=True)) == 4, "a note is no picture"


def test_most_pictures_of_another_size_are_a_setting_and_not_an_accident(photos: Path) -> None:
    for number in range(5):
        save(photos / "cat" / f"large{number}.png", side=64)
    with pytest.raises(DataError, match=r"64x64 pixels, the federation's images have 20x20.*--resize"):
        read(photos)


def test_a_picture_that_is_still_being_written_is_waited_for(photos: Path) -> None:
    """The rest of the file comes a second later."""
    whole = save(photos / "dog" / "late.jpg", 200)
    data = whole.read_bytes()
    whole.write_bytes(data[:200])
    program = "import sys, time; time.sleep(1); open(sys.argv[1], 'wb').write(bytes.fromhex(sys.argv[2]))"
    with subprocess.Popen([sys.executable, "-c", program, str(whole), data.hex()]):
        began = time.monotonic()
        samples = read(photos)
        waited = time.monotonic() - began
    assert samples.y.tolist() == [0, 0, 1, 1, 1]
    assert waited < 10 * image_folder.SETTLED_S


def test_empty_folders_keep_nobody_out(photos: Path) -> None:
    (photos / "wolf").mkdir()
    (photos / "cat" / "monday").mkdir()
    (photos / "dog" / "monday").mkdir()
    (photos / "dog" / "monday" / "notes.txt").write_text("x")
    assert "3 a folder without pictures" in read(photos).passed_over.sentence()
    assert survey(photos).classes == ("cat", "dog")


@pytest.mark.parametrize("suffix", [".jfif", ".jpe", ".JPG", ".Png", ".apng"])
def test_every_usual_suffix_is_read(photos: Path, suffix: str) -> None:
    kind = "PNG" if "png" in suffix.lower() else "JPEG"
    Image.new("L", (20, 20), 3).save(photos / "cat" / f"x{suffix}", kind)
    assert len(read(photos)) == 5
    assert f"cat/x{suffix}" in inferred(photos)


def test_emoji_newlines_and_bytes_that_are_no_text(photos: Path) -> None:
    for name in ("🐈.png", "a\nb.png", os.fsdecode(b"caf\xe9.png")):
        save(photos / "cat" / name)
    assert len(read(photos)) == 7
    assert len(inferred(photos)) == 7


def test_macosx_is_not_advised(tmp_path: Path) -> None:
    (tmp_path / "__MACOSX" / "cat").mkdir(parents=True)
    save(tmp_path / "wolf" / "1.png")
    with pytest.raises(DataError, match="the folder 'wolf' is not one of") as caught:
        read(tmp_path)
    assert "MACOSX" not in str(caught.value)


def test_a_folder_that_may_not_be_read_is_said(photos: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    (photos / "cat").chmod(0)
    assert "1 not allowed to be read (cat)" in read(photos).passed_over.sentence()
