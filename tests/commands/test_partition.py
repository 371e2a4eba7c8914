"""`fedbac partition` on real Fashion-MNIST and on a small archive: whole, repeatable, refused when tiny."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedbac_edge.cli import cli
from fedbac_edge.datasets import fashion, idx, npz
from fedbac_edge.datasets.annotation import Annotation
from fedbac_edge.datasets.partition import Partition

COMMAND = ["partition", "--data", "fashion-mnist", "--samples", "3000", "--test-samples", "2000"]


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A written partition, and what the command said."""
    out = tmp_path_factory.mktemp("cut") / "shards"
    result = CliRunner().invoke(cli, [*COMMAND, "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out, result.output


def _hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_twice_gives_identical_files(runner: CliRunner, tmp_path: Path, cut: tuple[Path, str]) -> None:
    first, second = cut[0], tmp_path / "two"
    for _ in range(2):  # the second time over what is there
        assert runner.invoke(cli, [*COMMAND, "--out", str(second)]).exit_code == 0
    hashes = _hashes(first)
    assert hashes == _hashes(second)
    assert {"gw1/dev-1-1.npz", "gw2/dev-2-4.npz", "gw1/test.npz", "gw2/test.npz"} <= set(hashes)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["two"]


def test_files_table_and_hash_agree_with_the_partition(cut: tuple[Path, str]) -> None:
    out, said = cut
    partition = Partition.load(out / "partition.npz")
    described = json.loads((out / "partition.json").read_text())
    assert partition.digest == described["hash"]
    assert partition.digest in said
    assert np.array_equal(np.array(described["server_shares"]), partition.server_shares)
    total = 0
    for m, clients in enumerate(partition.train, 1):
        for i, indices in enumerate(clients, 1):
            samples = npz.read(out / f"gw{m}" / f"dev-{m}-{i}.npz")
            assert len(samples) == len(indices)
            assert np.bincount(samples.y, minlength=10).tolist() == described["counts"][f"gw{m}/dev-{m}-{i}"]
            total += len(samples)
        assert len(npz.read(out / f"gw{m}" / "test.npz")) == len(partition.test[m - 1])
    assert total == 3000


def test_images_keep_their_labels(cut: tuple[Path, str]) -> None:
    out, _ = cut
    images = idx.read_array(fashion.folder() / "train-images-idx3-ubyte.gz")
    labels = idx.read_array(fashion.folder() / "train-labels-idx1-ubyte.gz")
    known = {image.tobytes(): int(label) for image, label in zip(images, labels, strict=True)}
    shard = npz.read(out / "gw1" / "dev-1-2.npz")
    assert [known[image.tobytes()] for image in shard.x] == shard.y.tolist()


def test_a_tiny_server_is_refused_or_accepted(runner: CliRunner, tmp_path: Path) -> None:
    command = [*COMMAND[:-1], "150", "--out", str(tmp_path / "shards")]
    refused = runner.invoke(cli, command)
    assert refused.exit_code == 2
    assert "--allow-tiny" in refused.output
    assert list(tmp_path.iterdir()) == []
    assert runner.invoke(cli, [*command, "--allow-tiny"]).exit_code == 0


def test_a_folder_of_somebody_else_is_left_alone(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    result = runner.invoke(cli, [*COMMAND, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "holds other files" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_single_file_needs_test_data(runner: CliRunner, tmp_path: Path) -> None:
    for name, count in (("train.npz", 600), ("test.npz", 400)):
        rng = np.random.default_rng(count)
        x = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        np.savez(tmp_path / name, x=x, y=rng.integers(0, 10, count))
    out = tmp_path / "shards"
    command = ["partition", "--data", str(tmp_path / "train.npz"), "--out", str(out), "--devices", "2"]
    refused = runner.invoke(cli, command)
    assert refused.exit_code == 2
    assert "--test" in refused.output
    result = runner.invoke(cli, [*command, "--test", str(tmp_path / "test.npz"), "--alpha-server", "100"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("data", ["nowhere", "empty.npz"])
@pytest.mark.usefixtures("in_tmp_path")
def test_unusable_data(runner: CliRunner, data: str) -> None:
    Path("empty.npz").touch()
    result = runner.invoke(cli, ["partition", "--data", data, "--test", data, "--out", "shards"])
    assert result.exit_code == 2
    assert data in result.output
    assert not Path("shards").exists()


def test_without_fashion_mnist_it_says_how_to_get_it(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBAC_FASHION_MNIST", str(tmp_path / "missing"))
    for command in ([*COMMAND, "--out", str(tmp_path / "x")], ["demo", "--out", str(tmp_path / "y")]):
        result = runner.invoke(cli, command)
        assert result.exit_code == 2
        assert "apt-get install dataset-fashion-mnist" in result.output


# --- labels that are missing -----------------------------------------------------------------------

ANNOTATED = [*COMMAND, "--annotation", "2/2/4", "--labels", "0.2", "--alpha", "1"]


def test_annotation_leaves_labels_out(runner: CliRunner, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    result = runner.invoke(cli, [*ANNOTATED, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "labels in all: 600" in result.output
    split = Annotation.load(out / "annotation.npz")
    described = json.loads((out / "partition.json").read_text())
    assert described["annotation"]["digest"] == split.digest
    images = idx.read_array(fashion.folder() / "train-images-idx3-ubyte.gz")
    labels = idx.read_array(fashion.folder() / "train-labels-idx1-ubyte.gz")
    known = {image.tobytes(): int(label) for image, label in zip(images, labels, strict=True)}
    kinds = []
    for client in range(8):
        gateway, place = client % 2 + 1, client // 2 + 1
        samples = npz.read(out / f"gw{gateway}" / f"dev-{gateway}-{place}.npz", allow_unlabelled=True)
        labelled = samples.labelled()
        assert len(labelled) == len(split.labelled[client])
        assert len(samples) - len(labelled) == len(split.unlabelled[client])
        assert described["unlabelled"][f"gw{gateway}/dev-{gateway}-{place}"] == len(split.unlabelled[client])
        assert [known[image.tobytes()] for image in labelled.x] == labelled.y.tolist()
        kinds.append("all" if len(labelled) == len(samples) else "some" if len(labelled) else "none")
    assert kinds == ["all"] * 2 + ["some"] * 2 + ["none"] * 4
    with np.load(out / "gw1" / "dev-1-3.npz", allow_pickle=False) as bare:
        assert bare.files == ["x"]
    assert len(npz.read(out / "gw1" / "test.npz")) == 1000
    assert _hashes(out)
    before = _hashes(out)
    assert runner.invoke(cli, [*ANNOTATED, "--out", str(out)]).exit_code == 0
    assert _hashes(out) == before


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--labels", "0.1"], "--labels goes only with --annotation"),
        (["--annotation", "PL", "--form", "per-class"], "--form goes not with --annotation"),
        (["--annotation", "PX"], "no annotation setting is called 'PX'; there are: default, PL, LPL"),
        (["--annotation", "1/2/3"], "other clients than the 8"),
    ],
)
def test_annotation_options_that_do_not_fit(
    runner: CliRunner, tmp_path: Path, options: list[str], why: str
) -> None:
    result = runner.invoke(cli, [*COMMAND, *options, "--out", str(tmp_path / "shards")])
    assert result.exit_code == 2
    assert why in " ".join(result.output.split())
    assert not (tmp_path / "shards").exists()


def test_pictures_of_another_size_are_scaled_on_request(runner: CliRunner, tmp_path: Path) -> None:
    """The refusal advises --resize, and this command has it."""
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(8):
            Image.new("L", (30, 25), 10 * number).save(tmp_path / "photos" / name / f"{number}.png")
    (tmp_path / "f.toml").write_text('name = "t"\n[model]\nclasses = ["a", "b"]\ninput = [1, 16, 16]\n')
    command = ["--data", str(tmp_path / "photos"), "--federation", str(tmp_path / "f.toml"), "--allow-tiny"]
    command += ["--gateways", "1", "--devices", "2", "--out", str(tmp_path / "shards")]
    refused = runner.invoke(cli, ["partition", *command])
    assert refused.exit_code == 2
    assert "--resize" in refused.output
    done = runner.invoke(cli, ["partition", *command, "--resize"])
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "shards" / "gw1" / "dev-1-1.npz") as shard:
        assert shard["x"].shape[1:3] == (16, 16)


def test_pictures_to_train_on_are_not_tested_on(runner: CliRunner, tmp_path: Path) -> None:
    """A folder holds one set: a fifth of the different pictures is for the test, copies on the same side."""
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(25):
            shade = 5 * number + (name == "b")
            for copy in range(2):
                Image.new("L", (16, 16), shade).save(tmp_path / "photos" / name / f"{number}-{copy}.png")
    (tmp_path / "f.toml").write_text('name = "t"\n[model]\nclasses = ["a", "b"]\ninput = [1, 16, 16]\n')
    command = ["partition", "--data", str(tmp_path / "photos"), "--federation", str(tmp_path / "f.toml")]
    command += ["--gateways", "1", "--devices", "1", "--allow-tiny"]
    result = runner.invoke(cli, [*command, "--out", str(tmp_path / "shards")])
    assert result.exit_code == 0, result.output
    train = npz.read(tmp_path / "shards" / "gw1" / "dev-1-1.npz")
    test = npz.read(tmp_path / "shards" / "gw1" / "test.npz")
    assert (len(train), len(test)) == (80, 20)
    assert not set(train.x[:, 0, 0, 0].tolist()) & set(test.x[:, 0, 0, 0].tolist())
    assert train.y.tolist() == [shade % 5 for shade in train.x[:, 0, 0, 0].tolist()]
    given = runner.invoke(
        cli, [*command, "--test", str(tmp_path / "photos"), "--out", str(tmp_path / "given")]
    )
    assert given.exit_code == 0, given.output
    assert len(npz.read(tmp_path / "given" / "gw1" / "test.npz")) == 100, "what is given is taken whole"
    for name in ("a", "b"):
        for path in (tmp_path / "photos" / name).iterdir():
            Image.new("L", (16, 16), 9).save(path)
    refused = runner.invoke(cli, [*command, "--out", str(tmp_path / "alike")])
    assert refused.exit_code == 2
    assert "holds 1 different picture" in refused.output
