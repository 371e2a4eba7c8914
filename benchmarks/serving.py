"""Releases under load: three serving agents change models while questions come in steadily.

Everything is the real thing but the training: Mosquitto, `fedbac cloud run` on the store of a campaign that
is over (drawn parts instead of learned ones), `fedbac release rollback`, three `fedbac-agent serve`, and a
plain paho client that asks at fixed times, whether it got its answers or not.

    python benchmarks/serving.py --rate 200 --swaps 8

At the end: questions, failed ones, mixed answers (logits that are not those of the model they name), answers
by release, and the milliseconds from question to answer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker import topics, wire
from broker.mosquitto import MosquittoBroker
from export import from_store
from export.session import Session
from fedbac_edge import config, tiers
from fedbac_edge.bandits import linucb
from fedbac_edge.methods import method
from fedbac_edge.models.catalog import architecture
from fedbac_edge.parts import digest, pack
from fedbac_edge.protocol.messages import PartRef, ServingStatus
from fedbac_edge.releases import vectors
from fedbac_edge.runtime import opened_store
from fedbac_edge.store import Store

SHAPE = (1, 28, 28)
IMAGES = 50
PATIENCE_S = 60.0
TOML = """
name = "shop"
rounds = 1
[model]
classes = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
[gateways]
gw1 = []
"""


class Site:
    """The files, processes and topics of one run."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.port, self.url = directory, port, f"mqtt://127.0.0.1:{port}"
        self.file = directory / "federation.toml"
        self.file.write_text(TOML)
        self.federation = config.load(self.file)

    def learn(self, seed: int) -> None:
        """One round more: other parts, not released yet."""
        lenet, rng = architecture("lenet", SHAPE, 10), np.random.default_rng(seed)
        with opened_store(self.directory / "cloud", "cloud") as store:
            state: Any = tiers.cloud(self.federation, "22222222", store).machine.state
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
        where = [
            "--federation",
            str(self.file),
            "--state",
            str(self.directory / "cloud"),
            "--broker",
            self.url,
        ]
        subprocess.run(
            [sys.executable, "-m", "fedbac_edge.cli", *words, *where], check=True, stdout=sys.stderr
        )

    @contextlib.contextmanager
    def agents(self, names: list[str]) -> Iterator[None]:
        """`fedbac-agent serve`, one process each."""
        started = []
        try:
            for name in names:
                command = [sys.executable, "-m", "device_agent", "serve", "--edge", "gw1", "--name", name]
                command += ["--federation", "shop", "--broker", self.url]
                command += ["--state", str(self.directory / name)]
                started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
            yield
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(20)

    def sessions(self) -> dict[int, Session]:
        """Release -> the model that it brought, for those whose files are kept."""
        store = Store(self.directory / "cloud" / "cloud.sqlite", read_only=True)
        try:
            _, state = from_store.read(store)
            return {
                release.number: Session(store.blobs[model.hash])
                for release in state.releases
                for model in release.models.values()
                if model.hash in store.blobs
            }
        finally:
            store.close()


class Asker:
    """Asks at fixed times; keeps what came back."""

    def __init__(self, port: int, names: list[str]) -> None:
        self.names = names
        self.images = [vectors.image(SHAPE, index) for index in range(IMAGES)]
        self.sent: list[float] = []
        self.answers: dict[int, tuple[float, bytes]] = {}
        self.twice = 0
        self.serving: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._rate = 0.0
        self._paho = paho.Client(CallbackAPIVersion.VERSION2, "asker", protocol=paho.MQTTv5)
        self._paho.max_inflight_messages_set(1000)
        self._paho.on_message = self._heard
        self._paho.connect("127.0.0.1", port)
        self._paho.loop_start()
        for filter in ("fedbac/v1/shop/answer/#", "fedbac/v1/shop/edge/gw1/device/+/serving"):
            self._paho.subscribe(filter, qos=1)

    def _heard(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        now = time.perf_counter()
        if message.topic.endswith("/serving"):
            if message.payload:
                name = message.topic.split("/")[-2]
                self.serving[name] = wire.decode(bytes(message.payload), ServingStatus).number
            return
        number = int(message.properties.CorrelationData)  # type: ignore[union-attr]
        self.twice += number in self.answers
        self.answers.setdefault(number, (now, bytes(message.payload)))

    def begin(self, rate: float) -> None:
        self._rate = rate
        self._thread.start()

    def _ask(self) -> None:
        began = time.perf_counter()
        while not self._over.is_set():
            number = len(self.sent)
            time.sleep(max(0.0, began + number / self._rate - time.perf_counter()))
            properties = Properties(PacketTypes.PUBLISH)
            properties.ResponseTopic = "fedbac/v1/shop/answer/asker"
            properties.CorrelationData = str(number).encode()
            topic = topics.device("shop", "gw1", self.names[number % len(self.names)], "infer")
            self.sent.append(time.perf_counter())
            payload = self.images[number % IMAGES].tobytes()
            self._paho.publish(topic, payload, qos=1, properties=properties)

    def wait_for(self, number: int) -> None:
        """Until every agent says that it serves this release."""
        end = time.monotonic() + PATIENCE_S
        while any(self.serving.get(name) != number for name in self.names):
            if time.monotonic() > end:
                raise SystemExit(f"release {number} was not taken everywhere: {self.serving}")
            time.sleep(0.02)

    def end(self) -> None:
        """Stop asking; give the last answers their time."""
        self._over.set()
        self._thread.join()
        end = time.monotonic() + 10
        while len(self.answers) < len(self.sent) and time.monotonic() < end:
            time.sleep(0.05)
        self._paho.disconnect()
        self._paho.loop_stop()


def judge(asker: Asker, sessions: dict[int, Session]) -> dict[str, Any]:
    """Figures of the run."""
    expected = {number: session.logits(np.stack(asker.images)) for number, session in sessions.items()}
    errors = mixed = 0
    by_release: Counter[int] = Counter()
    waits = []
    for number, (came, payload) in asker.answers.items():
        answer = json.loads(payload)
        waits.append(1000 * (came - asker.sent[number]))
        if "error" in answer:
            errors += 1
            continue
        by_release[answer["model"]] += 1
        right = expected[answer["model"]][number % IMAGES]
        mixed += not np.allclose(answer["logits"], right, atol=1e-5)
    seconds = asker.sent[-1] - asker.sent[0]
    return {
        "requests": len(asker.sent),
        "requests per second": round((len(asker.sent) - 1) / seconds, 1),
        "failed": errors + len(asker.sent) - len(asker.answers),
        "mixed": mixed,
        "answered twice": asker.twice,
        "answers by release": dict(sorted(by_release.items())),
        "p50 ms": round(float(np.percentile(waits, 50)), 2),
        "p99 ms": round(float(np.percentile(waits, 99)), 2),
        "most ms": round(max(waits), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=200.0, help="questions per second, over all agents")
    parser.add_argument("--swaps", type=int, default=8, help="releases that follow the first one")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds before each of them")
    parser.add_argument("--agents", type=int, default=3)
    options = parser.parse_args()
    names = [f"dev-{index}" for index in range(1, options.agents + 1)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as place:
        site = Site(Path(place), port)
        with MosquittoBroker("127.0.0.1", port, Path(place) / "mosquitto"):
            site.learn(1)
            site.command("cloud", "run")
            asker = Asker(port, names)
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
        figures = judge(asker, site.sessions())
    print(
        f"{options.agents} agents, {options.swaps} swaps; onnxruntime {onnxruntime.__version__}, "
        f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    )
    for name, value in figures.items():
        print(f"{name:>22}: {value}")
    if figures["failed"] or figures["mixed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
