"""What the serving benchmark asks with: a client that asks at fixed times, and a judge of the answers.

The client is plain paho. It also listens to the releases of the site and keeps the files of all of them, as
any device could, so that every answer can be computed again with the very model that it names.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter, defaultdict
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker import chunks, topics, wire
from broker.chunks import Chunk
from export.session import Session
from fedbac_edge.protocol.messages import Release, ServingStatus
from fedbac_edge.signing.manifest import Manifest

PATIENCE_S = 60.0
TOLERANCE = 1e-5
"""Largest difference of a logit from its model's: the same file on the same machine."""


class Asker:
    """Asks the devices `names` of gw1 in turn about `images` (N, height, width, channels); keeps answers."""

    def __init__(self, port: int, names: list[str], images: npt.NDArray[np.uint8]) -> None:
        self.names, self.images = names, images
        self.sent: list[float] = []
        self.answers: dict[int, tuple[float, bytes]] = {}
        self.twice = 0
        self.serving: dict[str, int] = {}
        self.releases: dict[int, Manifest] = {}
        self._chunks: defaultdict[str, dict[int, Chunk]] = defaultdict(dict)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._rate = 0.0
        self._paho = paho.Client(CallbackAPIVersion.VERSION2, "asker", protocol=paho.MQTTv5)
        self._paho.max_inflight_messages_set(1000)
        self._paho.on_message = self._heard
        self._paho.on_socket_open = _at_once
        self._paho.connect("127.0.0.1", port)
        self._paho.loop_start()
        for rest in ("answer/#", "edge/gw1/device/+/serving", "edge/gw1/release", "blob/#"):
            self._paho.subscribe(f"fedbac/v1/shop/{rest}", qos=1)

    def _heard(self, client: paho.Client, userdata: Any, message: paho.MQTTMessage) -> None:
        now, payload = time.perf_counter(), bytes(message.payload)
        place = topics.parse(message.topic)
        if place is None:
            number = int(message.properties.CorrelationData)  # type: ignore[union-attr]
            self.twice += number in self.answers
            self.answers.setdefault(number, (now, payload))
        elif not payload:
            return  # withdrawn
        elif message.topic.endswith("/serving"):
            self.serving[str(place.device)] = wire.decode(payload, ServingStatus).number
        elif message.topic.endswith("/release"):
            manifest = msgspec.msgpack.decode(wire.decode(payload, Release).manifest, type=Manifest)
            self.releases[manifest.number] = manifest
        else:
            piece = wire.decode(payload, Chunk)
            self._chunks[piece.transfer][piece.index] = piece

    def begin(self, rate: float) -> None:
        """`rate` questions per second from now on, answered or not."""
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
            payload = self.images[number % len(self.images)].tobytes()
            self._paho.publish(topic, payload, qos=1, properties=properties)

    def wait_for(self, number: int) -> None:
        """Until every agent says that it serves this release, or a newer one."""
        end = time.monotonic() + PATIENCE_S
        while any(self.serving.get(name, 0) < number for name in self.names):
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

    def session(self, manifest: Manifest) -> Session:
        """The model of a release, out of the chunks that its cloud published."""
        pieces = [piece.data for _, piece in sorted(self._chunks[manifest.hash].items())]
        return Session(chunks.join(pieces, manifest.size, manifest.hash))


def _at_once(client: paho.Client, userdata: Any, sock: Any) -> None:
    """Without this the system holds small packets back for up to 40 ms, which says nothing about a device."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def judge(asker: Asker) -> dict[str, Any]:
    """Figures of the run. An answer is mixed when its logits are not those of the release that it names."""
    expected = {n: asker.session(manifest).logits(asker.images) for n, manifest in asker.releases.items()}
    errors: Counter[str] = Counter()
    mixed = 0
    by_release: Counter[int] = Counter()
    waits = []
    for number, (came, payload) in asker.answers.items():
        answer = json.loads(payload)
        waits.append(1000 * (came - asker.sent[number]))
        if "error" in answer:
            errors[answer["error"]] += 1
            continue
        release = answer["model"]
        by_release[release] += 1
        right = expected[release][number % len(asker.images)]
        mixed += answer["hash"] != asker.releases[release].hash or not np.allclose(
            answer["logits"], right, rtol=0, atol=TOLERANCE
        )
    seconds = asker.sent[-1] - asker.sent[0]
    return {
        "requests": len(asker.sent),
        "requests per second": round((len(asker.sent) - 1) / seconds, 1),
        "failed": errors.total() + len(asker.sent) - len(asker.answers),
        "errors": dict(errors),
        "mixed": mixed,
        "answered twice": asker.twice,
        "answers by release": dict(sorted(by_release.items())),
        "p50 ms": round(float(np.percentile(waits, 50)), 2),
        "p99 ms": round(float(np.percentile(waits, 99)), 2),
        "most ms": round(max(waits), 1),
    }
