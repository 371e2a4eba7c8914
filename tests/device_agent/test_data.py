"""A device's own data: opened, split, described; and the sentence when there is none."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from device_agent.data import DeviceData, MissingData
from fedbac_edge.datasets.samples import DataError

FASHION = Path("/usr/share/datasets/fashion-mnist")
CLASSES = ["cat", "dog", "owl"]
SHAPE = (1, 6, 6)


def archive(path: Path, count: int, labels: list[int]) -> Path:
    x = np.random.default_rng(1).integers(0, 256, (count, 6, 6), dtype=np.uint8)
    np.savez(path, x=x, y=np.resize(labels, count))
    return path


@pytest.mark.skipif(not FASHION.is_dir(), reason="Fashion-MNIST is not installed")
def test_fashion_mnist_as_a_device_sees_it() -> None:
    data = DeviceData.open(FASHION, classes=[str(n) for n in range(10)], input_shape=(1, 28, 28))
    assert data.samples == 60_000
    assert data.label_counts == {str(n): 6_000 for n in range(10)}
    assert data.summary() == f"60,000 samples, 10 classes, {len(data.holdout):,} held out"
    assert 5_700 < len(data.holdout) < 6_300
    assert data.train.x.dtype == data.holdout.x.dtype == np.uint8


def test_classes_that_a_device_lacks_are_counted_as_zero(tmp_path: Path) -> None:
    for number in range(3):
        path = tmp_path / "owl" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (6, 6), number).save(path)
    data = DeviceData.open(tmp_path, classes=CLASSES, input_shape=SHAPE)
    assert data.label_counts == {"cat": 0, "dog": 0, "owl": 3}
    assert list(data.label_counts) == CLASSES
    assert data.summary() == "3 samples, 1 of 3 classes, 0 held out"


def test_colour_that_is_lost_is_told(tmp_path: Path) -> None:
    path = tmp_path / "owl" / "1.png"
    path.parent.mkdir()
    Image.new("RGB", (6, 6), (200, 10, 10)).save(path)
    told = "1 colour pictures turned gray, as this federation's are"
    assert told in DeviceData.open(tmp_path, classes=CLASSES, input_shape=SHAPE).summary()
    assert told not in DeviceData.open(tmp_path, classes=CLASSES, input_shape=(3, 6, 6)).summary()


def test_opening_again_holds_out_the_same(tmp_path: Path) -> None:
    path = archive(tmp_path / "data.npz", 400, [0, 1, 2])
    first, second = (DeviceData.open(path, classes=CLASSES, input_shape=SHAPE) for _ in range(2))
    assert np.array_equal(first.holdout.x, second.holdout.x)
    assert len(first.holdout) > 10
    held = {image.tobytes() for image in first.holdout.x}
    assert not held & {image.tobytes() for image in first.train.x}


def test_samples_without_labels_are_used_or_left_out(tmp_path: Path) -> None:
    path = archive(tmp_path / "data.npz", 400, [0, -1, 2, -1])
    left_out = DeviceData.open(path, classes=CLASSES, input_shape=SHAPE)
    used = DeviceData.open(path, classes=CLASSES, input_shape=SHAPE, takes_unlabelled=True)
    for data in (left_out, used):
        assert (data.samples, data.labelled, data.unlabelled) == (400, 200, 200)
        assert data.label_counts == {"cat": 100, "dog": 0, "owl": 100}
        assert len(data.holdout) > 5
        assert (data.holdout.y >= 0).all(), "nothing can be judged on a sample without a label"
    found = f"400 images, 200 labelled, 2 of 3 classes, {len(used.holdout)} held out"
    assert used.summary() == found
    assert (
        left_out.summary()
        == f"{found}, the unlabelled ones are left out, this federation learns from labels only"
    )
    assert len(used.train) + len(used.holdout) == 400
    assert (left_out.train.y >= 0).all()
    assert np.array_equal(left_out.holdout.x, used.holdout.x)


def pictures(folder: Path, count: int, seed: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, pixels in enumerate(np.random.default_rng(seed).integers(0, 256, (count, 6, 6), np.uint8)):
        Image.fromarray(pixels).save(folder / f"{number}.png")


def test_unlabelled_pictures_beside_class_folders(tmp_path: Path) -> None:
    pictures(tmp_path / "owl", 60, 1)
    pictures(tmp_path / "unlabelled", 30, 2)
    pictures(tmp_path, 10, 3)
    data = DeviceData.open(tmp_path, classes=CLASSES, input_shape=SHAPE, takes_unlabelled=True)
    assert data.summary() == f"100 images, 60 labelled, 1 of 3 classes, {len(data.holdout)} held out"
    assert 0 < len(data.holdout) < 20


@pytest.mark.parametrize("inside", ["", "unlabelled", "Unlabeled"])
def test_pictures_of_which_none_is_labelled(tmp_path: Path, inside: str) -> None:
    pictures(tmp_path / inside, 30, 1)
    data = DeviceData.open(tmp_path, classes=CLASSES, input_shape=SHAPE, takes_unlabelled=True)
    assert (data.summary(), len(data.train), len(data.holdout)) == ("30 images, none labelled", 30, 0)
    with pytest.raises(DataError) as caught:
        DeviceData.open(tmp_path, classes=CLASSES, input_shape=SHAPE, method="fedbac")
    assert "30 images, none of them labelled, and fedbac learns from labelled ones only" in str(caught.value)
    assert "cat/001.png" in caught.value.remedy


def test_an_archive_without_y(tmp_path: Path) -> None:
    x = np.random.default_rng(1).integers(0, 256, (50, 6, 6), dtype=np.uint8)
    np.savez(tmp_path / "bare.npz", x=x)
    data = DeviceData.open(tmp_path / "bare.npz", classes=CLASSES, input_shape=SHAPE, takes_unlabelled=True)
    assert data.summary() == "50 images, none labelled"
    with pytest.raises(DataError, match="none of them labelled"):
        DeviceData.open(tmp_path / "bare.npz", classes=CLASSES, input_shape=SHAPE)


def test_a_class_called_unlabelled_is_a_class(tmp_path: Path) -> None:
    pictures(tmp_path / "unlabelled", 5, 1)
    data = DeviceData.open(tmp_path, classes=["labelled", "unlabelled"], input_shape=SHAPE)
    assert data.label_counts == {"labelled": 0, "unlabelled": 5}


@pytest.mark.parametrize("path", [None, "", "  "])
def test_no_data_says_what_to_type(path: str | None) -> None:
    """Field report 25: never a stack trace, always a sentence."""
    with pytest.raises(MissingData) as caught:
        DeviceData.open(path, classes=CLASSES, input_shape=SHAPE, edge="barn")
    message = str(caught.value)
    assert message.startswith("--data: no data was given")
    assert message.endswith("for example: fedbac-agent join --edge barn --data photos/")
    assert "\n" not in message


def test_missing_data_is_told_apart_from_bad_data_and_survives_a_process(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        DeviceData.open(tmp_path / "nowhere", classes=CLASSES, input_shape=SHAPE)
    assert not isinstance(caught.value, MissingData)
    missing = MissingData("gw2")
    assert str(pickle.loads(pickle.dumps(missing))) == str(missing)


def test_a_federation_of_other_images_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "data.npz", 12, [0])
    with pytest.raises(
        DataError, match=r"images of 6x6 pixels with 1 channel\(s\), the federation's have 32x32 with 3"
    ):
        DeviceData.open(path, classes=CLASSES, input_shape=(3, 32, 32))
    with pytest.raises(DataError, match="sample 0 has the label 2, the federation's 2 classes are 0 to 1"):
        DeviceData.open(archive(path, 12, [2]), classes=CLASSES[:2], input_shape=SHAPE)
