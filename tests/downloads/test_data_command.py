"""`fedbac data` as a person meets it: fetched, found again by the other commands, stopped, gone on with."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
from click.testing import CliRunner

from fedbac_edge.cli import cli
from fedbac_edge.datasets import fashion, official, sources
from fedbac_edge.datasets.official import DATA_SETS, DataSet, File
from fedbac_edge.settings.pictures import MODELS

CIFAR = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "cifar-10-binary.tar.gz"


class Faults(Protocol):
    folder: Path
    url: str
    piece: int
    pause_s: float
    asked: list[tuple[str, str]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDBAC_DATASETS", str(tmp_path / "datasets"))
    monkeypatch.delenv("FEDBAC_FASHION_MNIST", raising=False)
    return tmp_path / "datasets"


def served(server: Faults, files: dict[str, bytes]) -> DataSet:
    """A catalogue entry for small files of this test's own."""
    for name, data in files.items():
        (server.folder / name).write_bytes(data)
    described = [File(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()]
    return DataSet("for a test", (f"{server.url}/",), tuple(described))


def test_get_list_and_where_the_others_look(
    server: Faults, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [file.name for file in DATA_SETS["mnist"].files]
    monkeypatch.setitem(DATA_SETS, "mnist", served(server, {name: name.encode() for name in names}))
    runner = CliRunner()
    missing = runner.invoke(cli, ["simulate", "paper/mnist-0.5"])
    assert missing.exit_code == 2
    assert "`fedbac data get mnist` fetches it" in missing.output

    done = runner.invoke(cli, ["data", "get", "mnist"])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == f"mnist is in {home / 'mnist'}"
    assert sorted(path.name for path in (home / "mnist").iterdir()) == sorted(names)
    assert official.locate("mnist") == home / "mnist"
    listed = json.loads(runner.invoke(cli, ["data", "list", "--json"]).output)
    assert listed["mnist"]["at"] == str(home / "mnist")
    assert listed["cifar100"]["at"] is None
    assert str(home / "mnist") in runner.invoke(cli, ["data", "list"]).output
    # Found, but of course no pictures: simulate has looked there and says so.
    found = runner.invoke(cli, ["simulate", "paper/mnist-0.5", "--out", str(home / "run")])
    assert str(home / "mnist" / "train-images-idx3-ubyte.gz") in found.output

    before = len(server.asked)
    assert runner.invoke(cli, ["data", "get", "mnist"]).output == f"mnist is in {home / 'mnist'}\n"
    assert len(server.asked) == before


def test_a_mirror_and_a_folder_of_ones_own(
    server: Faults, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = served(server, {"cifar-100-binary.tar.gz": b"pictures"})
    elsewhere = DataSet(known.about, ("http://127.0.0.1:1/",), known.files)
    monkeypatch.setitem(DATA_SETS, "cifar100", elsewhere)
    place = home / "mine"
    command = ["data", "get", "cifar100", "--to", str(place), "--retries", "0"]
    failed = CliRunner().invoke(cli, command)
    assert failed.exit_code == 1
    assert "Error: no connection to 127.0.0.1:1" in failed.output
    done = CliRunner().invoke(cli, [*command, "--from", server.url])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == f"cifar100 is in {place / 'cifar-100-binary.tar.gz'}"


def test_the_official_hash_is_asked_for(server: Faults, home: Path) -> None:
    """A file of the right length, served under the name of the real one."""
    file = DATA_SETS["mnist"].files[1]
    (server.folder / file.name).write_bytes(bytes(file.size))
    (server.folder / DATA_SETS["mnist"].files[0].name).write_bytes(b"")
    command = ["data", "get", "mnist", "--from", server.url, "--retries", "0"]
    short = CliRunner().invoke(cli, command)
    assert short.exit_code == 1
    assert "has 0 bytes, the official file 9,912,422" in short.output
    assert not (home / "mnist" / file.name).exists()


def test_ctrl_c_leaves_a_file_with_which_it_goes_on(server: Faults, home: Path) -> None:
    data = np.random.default_rng(3).bytes(400_000)
    known = served(server, {"cifar-10-binary.tar.gz": data})
    program = (
        "from fedbac_edge.datasets.official import DATA_SETS, DataSet, File\n"
        "from fedbac_edge.cli import main\n"
        f"DATA_SETS['cifar10'] = {known!r}\n"
        "main()"
    )
    command = [sys.executable, "-c", program, "data", "get", "cifar10"]
    server.piece, server.pause_s = 100_000, 60.0
    part = home / "cifar10" / "cifar-10-binary.tar.gz.part"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            if part.exists() and part.stat().st_size == 100_000:
                break
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 1
    assert said == "Error: stopped; what has come is kept, the same command goes on\n"
    assert part.read_bytes() == data[:100_000]

    server.pause_s = 0.0
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert server.asked[-1] == ("/cifar-10-binary.tar.gz", "bytes=100000-")
    assert (home / "cifar10" / "cifar-10-binary.tar.gz").read_bytes() == data
    assert not part.exists()


def test_fashion_mnist_of_the_system_needs_no_download() -> None:
    if not official.DEBIAN.is_dir():
        pytest.skip("Debian's package is not installed")
    done = CliRunner().invoke(cli, ["data", "get", "fashion-mnist"])
    assert done.output == f"fashion-mnist is in {official.DEBIAN}\n"


def test_fashion_mnist_that_was_fetched_is_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(official, "DEBIAN", home / "nowhere")
    (home / "fashion-mnist").mkdir(parents=True)
    (home / "fashion-mnist" / "train-images-idx3-ubyte.gz").touch()
    assert fashion.folder() == home / "fashion-mnist"


@pytest.mark.skipif(not CIFAR.is_file(), reason="the CIFAR-10 archive is not beside the checkout")
def test_the_real_archive_through_a_server(
    server: Faults, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (server.folder / "cifar-10-binary.tar.gz").symlink_to(CIFAR)
    with CIFAR.open("rb") as stream:
        found = hashlib.sha256(stream.read()).hexdigest()
    file = File("cifar-10-binary.tar.gz", CIFAR.stat().st_size, found)
    monkeypatch.setitem(DATA_SETS, "cifar10", DataSet("real", (server.url,), (file,)))
    done = CliRunner().invoke(cli, ["data", "get", "cifar10"])
    assert done.exit_code == 0, done.output
    model = MODELS["cifar10"]
    samples = sources.load(
        official.locate("cifar10"), classes=model.classes, input_shape=model.input, split="test"
    )
    assert len(samples) == 10_000


def test_every_entry_has_files_hashes_and_a_model() -> None:
    assert set(DATA_SETS) == set(MODELS)
    for known in DATA_SETS.values():
        assert known.sources
        for file in known.files:
            assert file.size > 0
            assert len(bytes.fromhex(file.sha256)) == 32
