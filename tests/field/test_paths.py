"""Paths as people have them: bytes that are no text, folders of somebody else, files written on Windows."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from broker.mosquitto import MosquittoBroker
from device_agent import settings
from fedbac_edge.federation_file import reading
from tests.field.conftest import Fleet

AGENT = (sys.executable, "-m", "device_agent")
FEDBAC = (sys.executable, "-m", "fedbac_edge.cli")
NO_TEXT = os.fsdecode(b"caf\xe9")


def run(*command: str, at: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    known = {k: v for k, v in os.environ.items() if not k.startswith("FEDBAC_")}
    return subprocess.run(
        command,
        cwd=at,
        env={**known, **variables},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=120,
        check=False,
    )


def pictures(folder: Path) -> Path:
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(np.full((20, 20), 40 * number, np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    """A folder below one that this user may not enter."""
    inner = pictures(tmp_path / "locked" / "in")
    for name in ("a.toml", "ca.pem", "key.pub"):
        (inner / name).write_text("x")
    (tmp_path / "locked").chmod(0)
    yield inner
    (tmp_path / "locked").chmod(0o700)


def as_nobody_special() -> tuple[str, ...]:
    """What takes from root the right to enter every folder; nothing for other users."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed (Debian package util-linux)")
    return ("setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search")


@pytest.mark.parametrize(
    "arguments",
    [
        (*AGENT, "join", "--edge", "gw1", "--data", "{}"),
        (*AGENT, "join", "--edge", "gw1", "--data", ".", "--ca", "{}/ca.pem", "--broker", "mqtts://localhost"),
        (*AGENT, "join", "--edge", "gw1", "--data", ".", "--cert", "{}/ca.pem", "--key", "{}/ca.pem",
         "--broker", "mqtts://localhost"),
        (*AGENT, "join", "--edge", "gw1", "--data", ".", "--state", "{}/state"),
        (*AGENT, "serve", "--edge", "gw1", "--release-key", "{}/key.pub"),
        (*AGENT, "infer", "--model", "{}/model.onnx", "."),
        (*FEDBAC, "init", "--data", "{}"),
        (*FEDBAC, "cloud", "run", "--federation", "{}/a.toml"),
        (*FEDBAC, "doctor", "--ca", "{}/ca.pem", "--broker", "mqtts://localhost"),
        (*FEDBAC, "status", "--state", "{}/state"),
        (*FEDBAC, "partition", "--data", "{}", "--out", "shards"),
    ],
    ids=lambda arguments: " ".join(arguments[3:]),
)  # fmt: skip
def test_a_folder_that_may_not_be_entered_is_a_sentence(
    tmp_path: Path, locked: Path, arguments: tuple[str, ...]
) -> None:
    done = run(*as_nobody_special(), *(a.format(locked) for a in arguments), at=tmp_path)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 2
    assert str(locked) in done.stderr


def test_a_user_without_a_home_is_told_what_to_give(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\n"
        "def none(): raise RuntimeError('Could not determine home directory.')\n"
        "pathlib.Path.home = none\n"
        "import os; os.geteuid = lambda: 1234\n"
        "from device_agent.cli import main; main(sys.argv[1:])"
    )
    pictures(tmp_path / "photos")
    for command in (("join", "--edge", "gw1", "--data", "photos"), ("serve", "--edge", "gw1")):
        done = run(sys.executable, "-c", program, *command, at=tmp_path, XDG_STATE_HOME="")
        assert done.returncode == 2, done.stderr
        assert (
            "this user has no home folder to keep the device's identity in: give a folder with --state"
            in done.stderr
        )
    done = run(sys.executable, "-c", program, "infer", "photos", at=tmp_path, XDG_STATE_HOME="")
    assert done.returncode == 2
    assert "give a --model" in done.stderr


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_names_that_are_no_text(tmp_path: Path, locale: str) -> None:
    place = pictures(tmp_path / NO_TEXT)
    Image.new("L", (20, 20)).save(place / "cat" / os.fsdecode(b"\xff.png"))
    for arguments, code in (
        ((*FEDBAC, "init", "--data", NO_TEXT, "--out", f"{NO_TEXT}/f.toml"), 0),
        ((*FEDBAC, "partition", "--data", NO_TEXT, "--federation", f"{NO_TEXT}/f.toml", "--out", "x"), 2),
        ((*FEDBAC, "doctor", "--ca", f"{NO_TEXT}/none.pem", "--broker", "mqtts://localhost"), 2),
        ((*FEDBAC, "status", "--state", f"{NO_TEXT}/none"), 2),
        ((*FEDBAC, "export", "--state", f"{NO_TEXT}/none", "--out", f"{NO_TEXT}/models"), 2),
        ((*AGENT, "infer", "--model", f"{NO_TEXT}/f.toml", NO_TEXT), 2),
        ((*AGENT, "join", "--edge", "gw1", "--data", f"{NO_TEXT}/none"), 2),
    ):
        done = run(*arguments, at=tmp_path, LC_ALL=locale)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == code, (arguments, done.stderr)


def test_a_federation_in_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    """Cloud, gateway and agent as processes; among the pictures lies a pipe, which nobody opens."""
    place = tmp_path / NO_TEXT
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    with MosquittoBroker("127.0.0.1", port, tmp_path / "mosquitto"):
        place.mkdir()
        fleet = Fleet(place, f"mqtt://127.0.0.1:{port}")
        fleet.data = place / "photos"
        for name in ("a", "b"):
            (fleet.data / name).mkdir(parents=True)
            for number in range(12):
                picture = Image.fromarray(np.full((16, 16), 20 * number, np.uint8))
                picture.save(fleet.data / name / f"{number}.png")
        os.mkfifo(fleet.data / "a" / "pipe.png")
        try:
            for name in ("cloud", "gw1", "dev"):
                fleet.start(name)
            fleet.wait_until(lambda: fleet.counted() >= 2, "two rounds")
            assert "1 no regular file" in fleet.log("dev")
            assert "Traceback" not in "".join(map(fleet.log, fleet.processes))
        finally:
            for process in fleet.processes.values():
                process.kill()
                process.wait()


def test_answers_about_names_that_are_no_text(tmp_path: Path) -> None:
    """JSON stays JSON, and its reader gets the very name back."""
    from export.infer import line
    from export.session import Prediction

    prediction = Prediction("cat", 0, np.zeros(2, np.float32), ("cat", "dog"))
    program = (
        "import sys; from device_agent.voice import Voice; "
        "Voice(True).say('data', 'in ' + sys.argv[1], file=sys.argv[1])"
    )
    done = run(sys.executable, "-c", program, NO_TEXT, at=tmp_path, LC_ALL="C.UTF-8")
    assert json.loads(done.stdout)["file"] == "caf\\xe9"
    text = line(NO_TEXT, prediction, top=1, as_json=True)
    assert json.loads(text.encode("utf-8"))["file"] == NO_TEXT


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_files_written_by_any_editor(tmp_path: Path, mark: bytes, end: str) -> None:
    text = 'name = "orchard"\n[model]\nclasses = ["é", "b"]\ninput = [1, 16, 16]\n'
    (tmp_path / "federation.toml").write_bytes(mark + text.replace("\n", end).encode())
    assert reading.load(tmp_path / "federation.toml").model.classes == ("é", "b")
    (tmp_path / "agent.toml").write_bytes(mark + f'edge = "gw1"{end}name = "kitchen"{end}'.encode())
    assert settings.read_file(tmp_path / "agent.toml") == {"edge": "gw1", "name": "kitchen"}
