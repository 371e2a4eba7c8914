"""The `infer` command on real files, folders, arrays and a directory that fills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
from PIL import Image

from export import graph
from export.infer import arrivals, infer
from export.served import ServedModel
from export.session import Session

Images = npt.NDArray[np.uint8]


@pytest.fixture(scope="module")
def model(trained: ServedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return graph.write(graph.build(trained), tmp_path_factory.mktemp("model") / "model.onnx")


@pytest.fixture
def folder(test_images: Images, tmp_path: Path) -> Path:
    """Five images, one in a folder below, and a file that is no image by its name."""
    (tmp_path / "photos" / "more").mkdir(parents=True)
    for index, name in enumerate(("a.png", "b.png", "c.png", "d.png", "more/e.png")):
        Image.fromarray(test_images[index, ..., 0]).save(tmp_path / "photos" / name)
    (tmp_path / "photos" / "notes.txt").write_text("not an image")
    return tmp_path / "photos"


def test_folder_in_json(model: Path, folder: Path, test_images: Images) -> None:
    done = CliRunner().invoke(infer, ["--model", str(model), "--json", "--top", "3", str(folder)])
    assert done.exit_code == 0, done.output
    answers = [json.loads(row) for row in done.stdout.splitlines()]
    assert [Path(a["file"]).name for a in answers] == ["a.png", "b.png", "c.png", "d.png", "e.png"]
    expected = Session(model).predict(test_images[:5])
    assert [a["label"] for a in answers] == [p.label for p in expected]
    assert np.allclose([a["logits"] for a in answers], [p.logits for p in expected], atol=1e-5)
    assert [len(a["top"]) for a in answers] == [3] * 5
    assert answers[0]["top"][0]["label"] == answers[0]["label"]


def test_plain_line(model: Path, folder: Path) -> None:
    done = CliRunner().invoke(infer, ["--model", str(model), "--top", "2", str(folder / "a.png")])
    assert done.exit_code == 0
    (row,) = done.stdout.splitlines()
    assert row.startswith(f"{folder / 'a.png'}: ")
    assert row.count(" %") == 2


def test_arrays(model: Path, tmp_path: Path, test_images: Images) -> None:
    np.save(tmp_path / "many.npy", test_images[:100])
    done = CliRunner().invoke(infer, ["--model", str(model), "--json", str(tmp_path / "many.npy")])
    answers = [json.loads(row) for row in done.stdout.splitlines()]
    assert len(answers) == 100
    assert answers[70]["file"].endswith("many.npy[70]")
    assert [a["label"] for a in answers] == [p.label for p in Session(model).predict(test_images[:100])]


def test_bad_files_do_not_stop_the_others(model: Path, folder: Path) -> None:
    (folder / "b.png").write_bytes(b"broken")
    np.save(folder / "c.npy", np.zeros((3, 3)))
    objects = np.array([{"a": 1}], dtype=object)
    np.save(folder / "d.npy", objects, allow_pickle=True)
    done = CliRunner().invoke(infer, ["--model", str(model), "--json", str(folder)])
    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == 4
    note, *refused = [json.loads(row) for row in done.stderr.splitlines()]
    assert note["note"].endswith("1 passed over: 1 no picture by its name (notes.txt)")
    assert [Path(r["file"]).name for r in refused] == ["b.png", "c.npy", "d.npy"]
    assert all(r["error"] for r in refused)


def test_bad_model_and_bad_usage(model: Path, folder: Path) -> None:
    wrong = CliRunner().invoke(infer, ["--model", str(folder / "a.png"), str(folder)])
    assert wrong.exit_code == 2
    assert f"{folder / 'a.png'}: these bytes are not an ONNX model" in wrong.stderr
    assert CliRunner().invoke(infer, ["--model", str(model)]).exit_code == 2


def test_a_folder_without_images_is_said(model: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    done = CliRunner().invoke(infer, ["--model", str(model), str(tmp_path)])
    assert done.stdout == ""
    assert f"{tmp_path}: no image in this folder" in done.stderr


def test_what_a_folder_of_pictures_is(model: Path, folder: Path, tmp_path: Path) -> None:
    """A linked folder counts; what a network drive leaves does not; what is left out is said."""
    (folder / "more").rename(tmp_path / "elsewhere")
    (folder / "more").symlink_to(tmp_path / "elsewhere")
    (folder / "up").symlink_to("..")
    picture = (folder / "a.png").read_bytes()
    for name in ("@eaDir/a.png/THUMB.png", ".thumbnails/1.png", "._1.png", "b.heic"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(picture)
    done = CliRunner().invoke(infer, ["--model", str(model), "--json", str(folder)])
    assert done.exit_code == 0, done.output
    names = [Path(json.loads(row)["file"]).name for row in done.stdout.splitlines()]
    assert names == ["a.png", "b.png", "c.png", "d.png", "e.png"]
    assert "1 of the kind .heic, which cannot be read" in done.stderr
    assert "3 hidden or made by a system" in done.stderr


def test_another_size_names_the_option_that_scales(model: Path, tmp_path: Path) -> None:
    Image.new("RGB", (50, 40)).save(tmp_path / "large.png")
    done = CliRunner().invoke(infer, ["--model", str(model), str(tmp_path / "large.png")])
    assert done.exit_code == 1
    assert "takes 28x28 pixels, this has 50x40 (width x height); --fit scales it" in done.stderr
    fitted = CliRunner().invoke(infer, ["--model", str(model), "--fit", str(tmp_path / "large.png")])
    assert fitted.exit_code == 0


def test_arrivals_waits_for_files_to_stop_growing(tmp_path: Path) -> None:
    stop = threading.Event()
    (tmp_path / ".hidden.png").write_bytes(b"x")
    growing = tmp_path / "growing.png"
    growing.write_bytes(b"x")
    seen: list[tuple[str, int]] = []
    following = arrivals(tmp_path, stop.is_set, interval=0.05)

    def grow() -> None:
        for size in range(2, 30):
            growing.write_bytes(b"x" * size)
            time.sleep(0.01)

    writer = threading.Thread(target=grow)
    writer.start()
    path = next(following)
    seen.append((path.name, path.stat().st_size))
    writer.join()
    if seen[0][1] < 29:  # a pause of the writer looked like the end: the change must be answered too
        path = next(following)
        seen.append((path.name, path.stat().st_size))
    stop.set()
    assert list(following) == []
    assert seen[-1] == ("growing.png", 29)


def test_watch_until_interrupted(model: Path, folder: Path, test_images: Images, tmp_path: Path) -> None:
    command = "from export.infer import infer; infer()"
    arguments = ["--model", str(model), "--json", "--watch", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-c", command, *arguments], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        first = [json.loads(process.stdout.readline()) for _ in range(4)]
        assert [Path(a["file"]).name for a in first] == ["a.png", "b.png", "c.png", "d.png"]
        Image.fromarray(test_images[9, ..., 0]).save(tmp_path / "new.png")
        (tmp_path / "new.png").rename(folder / "new.png")
        answer = json.loads(process.stdout.readline())
        assert answer["file"] == str(folder / "new.png")
        assert answer["label"] == Session(model).predict(test_images[9])[0].label
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
