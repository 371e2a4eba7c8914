"""A campaign trains on real images while its devices answer: what it releases is swapped in under load.

Every answer is computed again with the file of the release that it names, taken from the broker.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from broker import chunks, topics, wire
from broker.chunks import Chunk
from export.session import Session
from fedbac_edge.datasets import idx
from fedbac_edge.signing.manifest import Manifest

if TYPE_CHECKING:
    from tests.releases.conftest import Broker, Client, Start

FASHION = Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
DEVICES = ("dev-1", "dev-2", "dev-3")
SAMPLES = 300
"""Per device."""
RATE = 60
"""Questions per second, over all devices."""
TOML = """
name = "shop"
rounds = 4
eligibility = "roster"
[model]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
mean = [0.286]
std = [0.353]
[method]
clusters = 1
[training]
epochs = 3
batch_size = 32
learning_rate = 0.05
[selection]
participation = 1.0
[releases]
every = 1
[gateways]
gw1 = ["dev-1", "dev-2", "dev-3"]
"""


@dataclass
class Asking:
    """A thread that asks the devices in turn, and keeps the model of each release that it meets."""

    client: Client
    images: npt.NDArray[np.uint8]
    asked: dict[bytes, int] = field(default_factory=dict)
    """Correlation data -> image."""
    manifests: dict[int, Manifest] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(1 / RATE):
            self._meet()
            index = len(self.asked) % len(self.images)
            device = DEVICES[len(self.asked) % len(DEVICES)]
            self.asked[self.client.ask(device, self.images[index].tobytes())] = index

    def _meet(self) -> None:
        found = self.client.release()
        assert found is not None
        manifest = found[1]
        if manifest.number in self.sessions:
            return
        pieces: list[bytes] = []
        while payload := self.client.retained.get(topics.blob("shop", manifest.hash, len(pieces))):
            pieces.append(wire.decode(payload, Chunk).data)
        if sum(map(len, pieces)) == manifest.size:
            self.manifests[manifest.number] = manifest
            self.sessions[manifest.number] = Session(chunks.join(pieces, manifest.size, manifest.hash))

    def answers(self) -> list[tuple[int, dict[str, Any]]]:
        """(image, answer) for every question; fails the test when one is missing."""
        left, came = dict(self.asked), []
        while left:
            try:
                message = self.client.answers.get(timeout=20)
            except queue.Empty:
                pytest.fail(f"{len(left)} of {len(self.asked)} questions were not answered")
            came.append((left.pop(message.properties.CorrelationData), json.loads(message.payload)))
        return came


def test_trained_released_and_served_under_load(
    start: Start, serve: Start, broker: Broker, client: Client, tmp_path: Path
) -> None:
    images, labels = shards(tmp_path)
    (tmp_path / "federation.toml").write_text(TOML)
    where = ("--federation", tmp_path / "federation.toml", "--state", tmp_path / "cloud")
    cloud = start("fedbac_edge.cli", "cloud", "run", *where, "--broker", broker.url)
    start("fedbac_edge.cli", "gateway", "run", "gw1", "--state", tmp_path / "gw1", "--broker", broker.url)
    for device in DEVICES:
        serve(device, "--federation", "shop")
        member = ("--edge", "gw1", "--name", device, "--state", tmp_path / "devices" / device)
        start("device_agent", "join", *member, "--data", tmp_path / f"{device}.npz", "--broker", broker.url)

    def numbers() -> set[int]:
        return {status.number if (status := client.status(device)) else 0 for device in DEVICES}

    client.wait_until(lambda: 0 not in numbers(), "no release was taken by all devices")
    with Asking(client, images) as asking:
        assert cloud.ended() == 0, cloud.lines
        last = client.wait_until(lambda: (found := client.release()) and found[1].round == 4 and found[1], "")
        client.wait_until(lambda: numbers() == {last.number}, "the last release was not taken by all")
        assert start("fedbac_edge.cli", "release", "rollback", *where, "--broker", broker.url).ended() == 0
        back = last.number + 1
        client.wait_until(lambda: numbers() == {back}, "the release before was not taken by all")
        time.sleep(0.2)

    by_model: dict[int, list[bool]] = {}
    for index, answer in asking.answers():
        assert "error" not in answer
        number = answer["model"]
        assert answer["hash"] == asking.manifests[number].hash
        right = asking.sessions[number].logits(images[index])[0]
        np.testing.assert_allclose(answer["logits"], right, atol=1e-5)
        by_model.setdefault(number, []).append(bool(answer["index"] == labels[index]))
    assert {last.number, back} <= set(by_model)
    assert asking.manifests[back].round < last.round
    assert last.accuracy is not None
    assert np.mean(by_model[last.number]) > 0.4  # it has learned: chance is 0.1


def shards(folder: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """An .npz for each device; returns 40 other images with their labels."""
    if not FASHION.exists():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    x = idx.read_array(FASHION)[:, :, :, None]
    y = idx.read_array(FASHION.with_name("train-labels-idx1-ubyte.gz"))
    for number, device in enumerate(DEVICES):
        piece = slice(number * SAMPLES, (number + 1) * SAMPLES)
        np.savez(folder / f"{device}.npz", x=x[piece], y=y[piece])
    return x[-40:], y[-40:]
