"""Data that grow, shrink, are relabelled or spoiled while the device runs: real processes over Mosquitto."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from device_agent.rescan import Rescan
from fedbac_edge.datasets import holdout
from fedbac_edge.datasets.sources import load
from fedbac_edge.settings.federation import Federation, MethodTable

CLASSES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Boot")


def add(folder: Path, count: int, start: int = 0) -> None:
    """Pictures of noise, another one for each number."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(start, start + count):
        noise = np.random.default_rng(number).integers(0, 256, (28, 28), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")


def expected(photos: Path) -> tuple[int, int]:
    """(samples to train on, held out), as a new reading finds them."""
    samples = load(photos, classes=CLASSES, input_shape=(1, 28, 28), allow_unlabelled=True)
    train, held = holdout.split(samples)
    return len(train), len(held)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    add(tmp_path / "photos" / "Bag", 20)
    add(tmp_path / "photos" / "Boot", 20, 100)
    return tmp_path / "photos"


def counted_with(agent: Any, samples: int) -> None:
    """A round with so many samples was trained, and its update counted."""
    trained = agent.wait_for("trained", samples=samples)
    agent.wait_for("counted", kind="train", round=trained["round"])


def test_what_is_added_taken_away_and_relabelled_is_trained_on(
    site: Any, federation: Federation, photos: Path, start_agent: Any
) -> None:
    site.run_cloud_and_gateway(federation)
    agent = start_agent(site, photos)
    train, held = expected(photos)
    joined = agent.wait_for("joined")
    assert (joined["samples"], joined["holdout"]) == (train, held)
    counted_with(agent, train)

    add(photos / "Coat", 30, 200)
    train, held = expected(photos)
    assert agent.wait_for("data", samples=train)["holdout"] == held
    counted_with(agent, train)

    for picture in sorted((photos / "Bag").iterdir())[:7]:
        picture.unlink()
    smaller, held = expected(photos)
    assert agent.wait_for("data", samples=smaller)["holdout"] == held
    counted_with(agent, smaller)

    (photos / "Sneaker").mkdir()
    (photos / "Coat" / "200.png").rename(photos / "Sneaker" / "200.png")
    agent.wait_for("data", text=f"the data have changed: {summary(photos)}")
    assert "4 of 10 classes" in summary(photos)
    assert expected(photos) == (smaller, held), "a corrected label moves nothing between the two"

    assert agent.end(signal.SIGTERM) == 0
    assert not [line for line in agent.lines if line["event"] in ("refused", "gave up")]


def summary(photos: Path) -> str:
    from device_agent.data import DeviceData

    return DeviceData.open(photos, classes=CLASSES, input_shape=(1, 28, 28)).summary()


def test_unlabelled_data_that_grow_are_counted_too(
    site: Any, federation: Federation, photos: Path, start_agent: Any
) -> None:
    """HASSLE weighs kinds apart: the gateway refused every update once the trainer had read more."""
    add(photos / "unlabelled", 20, 300)
    site.run_cloud_and_gateway(
        msgspec.structs.replace(
            federation,
            method=MethodTable(name="hassle"),
            deadlines=msgspec.structs.replace(federation.deadlines, norm_gate=False),  # noise learns oddly
        )
    )
    agent = start_agent(site, photos)
    first, _ = expected(photos)
    assert agent.wait_for("joined")["samples"] == first
    agent.wait_for("counted", kind="train", round=1)

    add(photos / "unlabelled", 20, 400)
    train, _ = expected(photos)
    agent.wait_for("data", samples=train)
    (last,) = [line["round"] for line in agent.lines if line["event"] == "task"][-1:]
    for ahead in (2, 3):  # odd and even rounds train other parts
        agent.wait_for("counted", kind="train", round=last + ahead)
    assert not [line for line in agent.lines if line["event"] == "refused"]
    assert agent.end(signal.SIGTERM) == 0


def test_a_damaged_picture_in_mid_life_costs_nothing_and_a_wrong_folder_is_forgiven(
    site: Any, federation: Federation, photos: Path, start_agent: Any
) -> None:
    site.run_cloud_and_gateway(federation)
    agent = start_agent(site, photos)
    train, _ = expected(photos)
    counted_with(agent, train)

    whole = (photos / "Bag" / "0.png").read_bytes()
    (photos / "Bag" / "cut.png").write_bytes(whole[:-200])
    said = agent.wait_for("data", samples=train)
    assert "1 passed over: 1 not readable as a picture (cut.png)" in said["text"]

    add(photos / "wolf", 1, 500)
    said = agent.wait_for("data", samples=0)
    assert "the folder 'wolf' is not one of the federation's classes" in said["text"]
    round = max(line["round"] for line in agent.lines if line["event"] == "trained")

    (photos / "wolf").rename(photos / "Dress")
    train, _ = expected(photos)
    agent.wait_for("data", samples=train)
    assert agent.wait_for("trained", samples=train)["round"] > round
    assert agent.end(signal.SIGTERM) == 0


CHANGES: dict[str, Callable[[Path], object]] = {
    "added": lambda photos: add(photos / "Bag", 1, 900),
    "removed": lambda photos: (photos / "Bag" / "0.png").unlink(),
    "relabelled": lambda photos: (photos / "Bag" / "0.png").rename(photos / "Boot" / "0.png"),
    "rewritten": lambda photos: (photos / "Bag" / "0.png").write_bytes(b"x"),
    "touched": lambda photos: os.utime(photos / "Bag" / "0.png", (5, 5)),
    "gone": lambda photos: photos.rename(photos.parent / "elsewhere"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_seen_once_it_has_settled(photos: Path, name: str) -> None:
    rescan = Rescan(photos)
    assert not rescan.settled_change()
    CHANGES[name](photos)
    assert [rescan.settled_change() for _ in range(4)] == [False, True, False, False]


def test_what_does_not_matter_is_no_change(photos: Path) -> None:
    rescan = Rescan(photos)
    (photos / "Bag" / ".hidden.png").write_bytes(b"x")
    (photos / "@eaDir").mkdir()
    assert not any(rescan.settled_change() for _ in range(3))


def test_labels_beside_images_count_as_data(tmp_path: Path) -> None:
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (tmp_path / name).write_bytes(b"x")
    rescan = Rescan(tmp_path / "train-images-idx3-ubyte")
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(b"yy")
    assert [rescan.settled_change() for _ in range(2)] == [False, True]
