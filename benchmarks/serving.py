"""Releases under load: three serving agents change models while questions come in steadily.

    python benchmarks/serving.py --rate 200 --swaps 8
    python benchmarks/serving.py --rate 200 --train --rounds 8 --every 2 --rollbacks 2

Everything is the real thing: Mosquitto, `fedbac cloud run`, `fedbac release rollback`, three `fedbac-agent
serve`, and a plain paho client that asks at fixed times, whether it got its answers or not. Without --train
the campaign is over and its parts are drawn instead of learned. With --train the same three devices also
train on real Fashion-MNIST (`fedbac-agent join`, a gateway, a cloud that releases every few rounds), and the
questions are images of the test set; asking begins with the first release and ends after the rollbacks.

At the end: questions, failed ones, mixed answers (logits that are not those of the release they name),
answers by release, and the milliseconds from question to answer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnxruntime
from asking import Asker, judge

from broker.mosquitto import MosquittoBroker
from fedbac_edge.bandits import linucb
from fedbac_edge.datasets.fashion import folder
from fedbac_edge.datasets.sources import load
from fedbac_edge.federation_file import reading
from fedbac_edge.methods import method
from fedbac_edge.models.catalog import architecture
from fedbac_edge.node import assemble
from fedbac_edge.node.runtime import opened_store
from fedbac_edge.parts.part import digest, pack
from fedbac_edge.releases import vectors
from fedbac_edge.settings.pictures import MODELS
from fedbac_edge.vocabulary.terms import PartRef

SHAPE = (1, 28, 28)
IMAGES = 50
CAMPAIGN_S = 600.0
DRAWN = """
name = "shop"
rounds = 1
[model]
classes = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
[gateways]
gw1 = []
"""
TRAINED = """
name = "shop"
rounds = {rounds}
[model]
classes = {classes}
mean = [0.286]
std = [0.353]
[method]
clusters = 1
[training]
epochs = 2
learning_rate = 0.03
[selection]
participation = 1.0
warm_up = 1
[releases]
every = {every}
[gateways]
gw1 = {devices}
"""


class Site:
    """The files, processes and topics of one run."""

    def __init__(self, directory: Path, port: int, description: str) -> None:
        self.directory, self.url = directory, f"mqtt://127.0.0.1:{port}"
        self.file = directory / "federation.toml"
        self.file.write_text(description)
        self.federation = reading.load(self.file)
        self._cloud = ["--federation", str(self.file), "--state", str(directory / "cloud")]

    def learn(self, seed: int) -> None:
        """One round more: other parts, drawn, not released yet."""
        lenet, rng = architecture("lenet", SHAPE, 10), np.random.default_rng(seed)
        with opened_store(self.directory / "cloud", "cloud") as store:
            state: Any = assemble.cloud(self.federation, "22222222", store).machine.state
            drawn = {
                name: pack({tensor: 2 * values for tensor, values in lenet.init(rng).items()})
                for name in method(self.federation).parts()
            }
            state.parts = {name: PartRef(name, digest(data), len(data)) for name, data in drawn.items()}
            state.phase, state.round = "finished", state.round + 1
            state.clustering = linucb.start({"gw1": 0}, 1, self.federation.assignment.arms)
            with store.transaction():
                for data in drawn.values():
                    store.keep_blob(digest(data), data)
                store.write("machine", msgspec.msgpack.encode(state))

    def command(self, *words: str) -> None:
        """Run a command of the operator's to its end."""
        command = [sys.executable, "-m", "fedbac_edge.cli", *words, *self._cloud, "--broker", self.url]
        subprocess.run(command, check=True, stdout=sys.stderr)

    def agents(self, names: list[str]) -> contextlib.AbstractContextManager[object]:
        """`fedbac-agent serve`, one process each."""
        return self._running([["device_agent", "serve", "--federation", "shop", *self._as(n)] for n in names])

    @contextlib.contextmanager
    def training(self, names: list[str], shards: Path) -> Iterator[subprocess.Popen[bytes]]:
        """`fedbac cloud run`, whose process is given, a gateway, a `fedbac-agent join` for each device."""
        joining = [["device_agent", "join", "--data", str(shards / f"{n}.npz"), *self._as(n)] for n in names]
        gateway = ["fedbac_edge.cli", "gateway", "run", "gw1", "--state", str(self.directory / "gw1")]
        with self._running([["fedbac_edge.cli", "cloud", "run", *self._cloud], gateway, *joining]) as started:
            yield started[0]

    def _as(self, name: str) -> list[str]:
        return ["--edge", "gw1", "--name", name, "--state", str(self.directory / name)]

    @contextlib.contextmanager
    def _running(self, commands: list[list[str]]) -> Iterator[list[subprocess.Popen[bytes]]]:
        started: list[subprocess.Popen[bytes]] = []
        try:
            for words in commands:
                command = [sys.executable, "-m", *words, "--broker", self.url]
                started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            yield started
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(20)


def write_shards(directory: Path, names: list[str], samples: int) -> npt.NDArray[np.uint8]:
    """An .npz of real images for each device; returns images of the test set."""
    read = partial(load, folder(), classes=MODELS["fashion-mnist"].classes, input_shape=SHAPE)
    train, test = (read(split=split) for split in ("train", "test"))
    for index, name in enumerate(names):
        piece = slice(index * samples, (index + 1) * samples)
        np.savez(directory / f"{name}.npz", x=train.x[piece], y=train.y[piece])
    return test.x[:IMAGES]


def drawn(place: Path, port: int, names: list[str], options: argparse.Namespace) -> Asker:
    """A campaign that is over, and `options.swaps` more releases: one of a new model, the others back."""
    site = Site(place, port, DRAWN)
    site.learn(1)
    site.command("cloud", "run")
    asker = Asker(port, names, np.stack([vectors.image(SHAPE, index) for index in range(IMAGES)]))
    with site.agents(names):
        asker.wait_for(1)
        asker.begin(options.rate)
        time.sleep(options.pause)
        site.learn(2)
        site.command("cloud", "run")
        asker.wait_for(2)
        for number in range(3, 2 + options.swaps):
            time.sleep(options.pause)
            site.command("release", "rollback")
            asker.wait_for(number)
        time.sleep(options.pause)
        asker.end()
    return asker


def trained(place: Path, port: int, names: list[str], options: argparse.Namespace) -> Asker:
    """A whole campaign under questions, and `options.rollbacks` after it."""
    words = {"classes": list(MODELS["fashion-mnist"].classes), "devices": names}
    site = Site(place, port, TRAINED.format(rounds=options.rounds, every=options.every, **words))
    images = write_shards(place, names, options.samples)
    asker = Asker(port, names, images)
    with site.agents(names):
        with site.training(names, place) as cloud:
            asker.wait_for(1)
            asker.begin(options.rate)
            if cloud.wait(CAMPAIGN_S) != 0:
                raise SystemExit("the campaign failed")
            newest = max(asker.releases)
            asker.wait_for(newest)
        for number in range(newest + 1, newest + 1 + options.rollbacks):
            time.sleep(options.pause)
            site.command("release", "rollback")
            asker.wait_for(number)
        time.sleep(options.pause)
        asker.end()
    return asker


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=200.0, help="questions per second, over all agents")
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds before each ordered release")
    parser.add_argument("--swaps", type=int, default=8, help="releases that follow the first one")
    parser.add_argument("--train", action="store_true", help="a real campaign makes the releases")
    parser.add_argument("--rounds", type=int, default=8, help="with --train: of the campaign")
    parser.add_argument("--every", type=int, default=2, help="with --train: rounds between releases")
    parser.add_argument("--samples", type=int, default=1000, help="with --train: per device")
    parser.add_argument("--rollbacks", type=int, default=2, help="with --train: after the campaign")
    options = parser.parse_args()
    names = [f"dev-{index}" for index in range(1, options.agents + 1)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as place:
        run = trained if options.train else drawn
        with MosquittoBroker("127.0.0.1", port, Path(place) / "mosquitto"):
            asker = run(Path(place), port, names, options)
    figures = judge(asker)
    print(
        f"{options.agents} agents; onnxruntime {onnxruntime.__version__}, {os.cpu_count()} processors, load "
        f"{os.getloadavg()[0]:.1f}"
    )
    for number, manifest in sorted(asker.releases.items()):
        accuracy = "" if manifest.accuracy is None else f", hold-out accuracy {manifest.accuracy:.3f}"
        print(f"{f'release {number}':>22}: model {manifest.model}, round {manifest.round}{accuracy}")
    for name, value in figures.items():
        print(f"{name:>22}: {value}")
    if figures["failed"] or figures["mixed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
