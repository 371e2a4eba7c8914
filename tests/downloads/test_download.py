"""Fetching over real HTTP: whole or not there, through cuts, refusals, lies and full disks."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from fedbac_edge.datasets.download import DownloadError, fetch
from fedbac_edge.datasets.official import File

DATA = np.random.default_rng(7).bytes(1_000_000)


class Faults(Protocol):
    folder: Path
    url: str
    ranges: bool
    cut_after: list[int]
    answers: list[int]
    retry_after: str
    piece: int
    pause_s: float
    lie: int
    shift: int
    asked: list[tuple[str, str]]


class Notes:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.done: list[int] = []
        self.waits: list[float] = []

    def at(self, done: int) -> None:
        self.done.append(done)

    def note(self, text: str) -> None:
        self.said.append(text)


def file(data: bytes = DATA, name: str = "images.bin") -> File:
    return File(name, len(data), hashlib.sha256(data).hexdigest())


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def target(tmp_path: Path, server: Faults) -> Path:
    (server.folder / "images.bin").write_bytes(DATA)
    return tmp_path / "here" / "images.bin"


def get(
    server: Faults, target: Path, notes: Notes, *more: str, retries: int = 2, timeout_s: float = 20
) -> bool:
    urls = [f"{server.url}/images.bin", *more]
    return fetch(file(), urls, target, notes, retries=retries, timeout_s=timeout_s, sleep=notes.waits.append)


def ranges(server: Faults) -> list[str]:
    return [asked for _, asked in server.asked]


def alone(target: Path) -> bool:
    return [path.name for path in target.parent.iterdir()] == [target.name]


def test_a_file_comes_whole_and_only_once(server: Faults, target: Path, notes: Notes) -> None:
    assert get(server, target, notes)
    assert target.read_bytes() == DATA
    assert alone(target)
    assert notes.done[0] == 0
    assert notes.done[-1] == len(DATA)
    assert not get(server, target, notes)
    assert len(server.asked) == 1


def test_a_cut_connection_goes_on_where_it_was(server: Faults, target: Path, notes: Notes) -> None:
    server.cut_after = [300_000, 200_000]
    assert get(server, target, notes, retries=0)
    assert target.read_bytes() == DATA
    assert ranges(server) == ["", "bytes=300000-", "bytes=500000-"]
    assert notes.done == sorted(notes.done)


def test_a_server_without_range_begins_anew(server: Faults, target: Path, notes: Notes) -> None:
    server.ranges, server.cut_after = False, [300_000]
    assert get(server, target, notes)
    assert target.read_bytes() == DATA
    assert any("from the beginning" in said for said in notes.said)


def test_a_later_call_goes_on_with_what_an_earlier_one_left(
    server: Faults, target: Path, notes: Notes
) -> None:
    server.cut_after = [400_000, 0, 0, 0]
    with pytest.raises(DownloadError, match=r"400,000 of 1,000,000 bytes are kept; the same command goes on"):
        get(server, target, notes)
    assert not target.exists()
    assert target.with_name("images.bin.part").read_bytes() == DATA[:400_000]
    assert notes.waits == [1.0, 1.0, 2.0]
    server.asked.clear()
    assert get(server, target, notes)
    assert target.read_bytes() == DATA
    assert ranges(server) == ["bytes=400000-"]


@pytest.mark.parametrize("left", [b"x" * 400_000, b"x" * len(DATA), b"x" * (len(DATA) + 1)])
def test_a_rest_that_does_not_belong_to_it_is_thrown_away(
    server: Faults, target: Path, notes: Notes, left: bytes
) -> None:
    target.parent.mkdir()
    target.with_name("images.bin.part").write_bytes(left)
    assert get(server, target, notes)
    assert target.read_bytes() == DATA
    assert alone(target)


def test_wrong_bytes_are_refused_and_not_kept(server: Faults, target: Path, notes: Notes) -> None:
    (server.folder / "images.bin").write_bytes(DATA[:-1] + b"?")
    with pytest.raises(DownloadError, match=f"SHA-256 is .*, expected {file().sha256}"):
        get(server, target, notes)
    assert list(target.parent.iterdir()) == []
    (server.folder / "good.bin").write_bytes(DATA)
    assert get(server, target, notes, f"{server.url}/good.bin")
    assert target.read_bytes() == DATA


@pytest.mark.parametrize("lie", [1, -1])
def test_another_length_is_refused_before_anything_is_written(
    server: Faults, target: Path, notes: Notes, lie: int
) -> None:
    server.lie = lie
    with pytest.raises(DownloadError, match=f"has {len(DATA) + lie:,} bytes, the official file 1,000,000"):
        get(server, target, notes)
    assert notes.done == [0]
    server.lie, server.cut_after = 0, [500_000, 0, 0, 0]
    with pytest.raises(DownloadError, match="kept"):
        get(server, target, notes)
    server.lie = lie
    with pytest.raises(DownloadError, match="the official file"):
        get(server, target, notes)


def test_an_answer_from_another_place_is_not_appended(server: Faults, target: Path, notes: Notes) -> None:
    server.cut_after, server.shift = [300_000], 5
    with pytest.raises(DownloadError, match="went on at byte"):
        get(server, target, notes, retries=0)
    server.shift = 0
    assert get(server, target, notes)
    assert target.read_bytes() == DATA


def test_passing_refusals_are_waited_for_as_the_server_asks(
    server: Faults, target: Path, notes: Notes
) -> None:
    server.answers, server.retry_after = [503, 429], "7"
    assert get(server, target, notes)
    assert notes.waits == [7.0, 7.0]
    assert "answered 503 Service Unavailable; again in 7 s" in notes.said[0]


def test_other_refusals_are_final_unless_there_is_another_address(
    server: Faults, target: Path, notes: Notes
) -> None:
    server.answers = [403]
    with pytest.raises(DownloadError, match=r"answered 403 Forbidden\. Check the network"):
        get(server, target, notes)
    assert notes.waits == []
    server.answers = [404]
    assert get(server, target, notes, f"{server.url}/images.bin")


def test_only_http(target: Path, notes: Notes, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(DATA)
    for scheme in (f"file://{secret}", f"ftp://127.0.0.1{secret}"):
        with pytest.raises(DownloadError):
            fetch(file(), [scheme], target, notes, retries=0, sleep=notes.waits.append)
    assert not target.exists()


def test_a_silent_server(target: Path, notes: Notes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}/images.bin"
        with pytest.raises(DownloadError, match=r"said nothing for 0\.1 s|timed out"):
            fetch(file(), [url], target, notes, retries=1, timeout_s=0.1, sleep=notes.waits.append)
    assert notes.waits == [1.0]


def test_a_server_that_falls_silent_in_the_middle(server: Faults, target: Path, notes: Notes) -> None:
    server.pause_s, server.piece = 60.0, 300_000
    urls = [f"{server.url}/images.bin"]
    with pytest.raises(DownloadError, match="300,000 of 1,000,000 bytes are kept"):
        fetch(
            file(), urls, target, notes, retries=0, timeout_s=0.2, sleep=lambda _: server.answers.append(503)
        )
    assert "said nothing for 0.2 s; again in 1 s" in notes.said[0]


def test_nobody_there(target: Path, notes: Notes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(
        DownloadError, match=rf"no connection to 127.0.0.1:{port}: .*refused.*--from URL.*by hand"
    ):
        fetch(file(), [f"http://127.0.0.1:{port}/x"], target, notes, retries=2, sleep=notes.waits.append)
    assert notes.waits == [1.0, 2.0]
    assert list(target.parent.iterdir()) == []


def test_a_file_of_somebody_else_stays(server: Faults, target: Path, notes: Notes) -> None:
    target.parent.mkdir()
    target.write_bytes(b"precious")
    with pytest.raises(DownloadError, match="is not the official file"):
        get(server, target, notes)
    assert target.read_bytes() == b"precious"
    assert server.asked == []


def test_two_at_once(server: Faults, target: Path, notes: Notes) -> None:
    target.parent.mkdir()
    with target.with_name("images.bin.part").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another process is fetching it"):
            get(server, target, notes)


def test_no_room_is_said_before_anything_is_written(server: Faults, target: Path, notes: Notes) -> None:
    free = shutil.disk_usage(server.folder).free
    huge = File("images.bin", free + (1 << 30), "0" * 64)
    with pytest.raises(
        DownloadError, match=r"MB free, .* MB are needed\. Make room, or give another --to DIR"
    ):
        fetch(huge, [server.url], target, notes)
    assert server.asked == []
    assert list(target.parent.iterdir()) == []


def test_a_disk_that_fills_up_keeps_what_has_come(server: Faults, target: Path) -> None:
    """A limit of file size stands in for the full disk: the kernel refuses the write in the same place."""
    program = f"""
import resource, signal
from pathlib import Path
from fedbac_edge.datasets.download import fetch
from fedbac_edge.datasets.official import File
class View:
    def at(self, done): pass
    def note(self, text): pass
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
file = File("images.bin", {len(DATA)}, "{file().sha256}")
fetch(file, ["{server.url}/images.bin"], Path("{target}"), View())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot be written: File too large" in done.stderr.splitlines()[-1]
    assert target.with_name("images.bin.part").read_bytes() == DATA[:500_000]


def test_a_folder_that_may_not_be_written(server: Faults, target: Path, notes: Notes) -> None:
    target.parent.write_bytes(b"a file where the folder should be")
    with pytest.raises(DownloadError, match="cannot be written"):
        get(server, target, notes)
