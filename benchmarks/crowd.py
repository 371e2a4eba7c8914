"""A crowd of devices on one gateway: everything real but the training, which adds a fixed step.

Mosquitto, a cloud and a gateway are processes of their own, as `fedbac` starts them. The agents are the
device machine, its node, its store on disk and its MQTT bus, many to a process, two threads each. Updates are
124,012 float32 numbers (two LeNets for CIFAR), 0.5 MB; so are the models that every agent fetches in each
round.

    python benchmarks/crowd.py --agents 100 --rounds 3
    python benchmarks/crowd.py --agents 200 --rounds 2 --reconnect

At the end: was every update counted exactly once, the gateway's memory, seconds per round, MB/s beside what
the same Mosquitto passes on between bare clients, and how long a mass reconnect took.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from broker.bus import Bus, Connected, Delivery, Published, Will
from broker.mosquitto import MosquittoBroker
from broker.mqtt import MqttBus
from broker.url import BrokerUrl
from fedbac_edge.models.catalog import architecture
from fedbac_edge.node import assemble
from fedbac_edge.node.discovery import find_spec
from fedbac_edge.node.runtime import Inbox, Runtime, opened_store
from fedbac_edge.node.store import Store, StoreError
from fedbac_edge.parts.part import Schema, pack, unpack
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.device.state import Profile
from fedbac_edge.protocol.events import AnyJob, Evaluated, Event, Trained, TrainJob
from fedbac_edge.protocol.messages import RoundSummary, Spec
from fedbac_edge.vocabulary.terms import Score

PER_PROCESS = 50
STEP = np.float32(1e-3)
SCORE = Score(10, 5, 10.0)
GATEWAY = "gw1"
FEDERATION = """
name = "crowd"
rounds = {rounds}
[model]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
input = [3, 32, 32]
mean = [0.5, 0.5, 0.5]
std = [0.5, 0.5, 0.5]
[method]
clusters = 1
[selection]
participation = 1.0
[assignment]
method = "fixed"
[deadlines]
gather_s = 2.0
min_updates = {agents}
deadline_min_s = 3000.0
deadline_max_s = 3600.0
evaluation_deadline_s = 600.0
[gateways]
gw1 = []
"""

# --- the agents' process --------------------------------------------------------------------------


class FixedStep:
    """A worker without training: every weight moves by the same step, at once."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def start(self, job: AnyJob, blobs: Mapping[str, bytes], done: Callable[[Event], None]) -> None:
        """See Worker."""
        if isinstance(job, TrainJob):
            parts = {}
            for role, hash in job.parts.items():
                part = unpack(blobs[hash], self._schema)
                parts[role] = pack({name: tensor + STEP for name, tensor in part.items()})
            done(Trained(job.id, parts, 90, 90, 1.0, SCORE, SCORE if job.previous else None))
        else:
            candidates = getattr(job, "candidates", {})
            done(Evaluated(job.id, dict.fromkeys(candidates, SCORE)))

    def cancel(self) -> None:
        """See Worker."""

    def close(self) -> None:
        """See Worker."""


class Agent(threading.Thread):
    """One device: its runtime in this thread, its bus in another."""

    def __init__(self, name: str, spec: Spec, url: str, state: Path) -> None:
        super().__init__(name=name, daemon=True)
        self._spec, self._url, self._state = spec, url, state
        self.runtime: Runtime | None = None

    def run(self) -> None:
        """Join and stay."""
        model = self._spec.federation.model
        schema = architecture(model.architecture, model.input, len(model.classes)).schema()

        def open_bus(inbox: Inbox, will: Will) -> Bus:
            return MqttBus(BrokerUrl.parse(self._url), f"crowd:{self.name}", inbox, will, back_off=0.5)

        with opened_store(self._state, self.name) as store:
            profile = Profile(samples=90, labelled=90, holdout=10)
            node = assemble.device(self._spec, GATEWAY, self.name, profile, store)
            self.runtime = Runtime(store, node, open_bus, FixedStep(schema))
            self.runtime.run()

    @property
    def connected(self) -> bool:
        """Its link is up."""
        return self.runtime is not None and self.runtime.link == "connected"


def run_agents(url: str, first: int, count: int, state: Path) -> None:
    """Agents until SIGTERM; one JSON line whenever the number of connected ones has changed."""
    threading.stack_size(512 * 1024)
    spec = find_spec(BrokerUrl.parse(url), None, "crowd", lambda text: None)
    agents = [Agent(f"dev-{number:04}", spec, url, state) for number in range(first, first + count)]
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: over.set())
    for agent in agents:
        agent.start()
    told = -1
    while not over.wait(0.1):
        connected = sum(agent.connected for agent in agents)
        if connected != told:
            told = connected
            print(json.dumps({"at": time.monotonic(), "connected": connected}), flush=True)
    for agent in agents:
        if agent.runtime is not None:
            agent.runtime.stop()
    for agent in agents:
        agent.join(10)


# --- what is measured -----------------------------------------------------------------------------


class Crowd:
    """The agents' processes, and what they say of their links."""

    def __init__(self, url: str, agents: int, state: Path) -> None:
        self._connected: dict[int, int] = {}
        self._processes = []
        for first in range(0, agents, PER_PROCESS):
            count = min(PER_PROCESS, agents - first)
            process = subprocess.Popen(
                [sys.executable, __file__, "--as-agents", str(first), str(count), url, str(state)],
                stdout=subprocess.PIPE,
                text=True,
            )
            self._processes.append(process)
            threading.Thread(target=self._listen, args=(first, process), daemon=True).start()

    def _listen(self, first: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._connected[first] = json.loads(line)["connected"]

    @property
    def connected(self) -> int:
        """Agents whose link is up."""
        return sum(self._connected.values())

    def close(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Memory(threading.Thread):
    """Samples a process's resident memory in MB."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self.samples, self.over = pid, list[float](), threading.Event()

    def run(self) -> None:
        """Ten times a second."""
        while not self.over.wait(0.1):
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
                self.samples.append(int(next(x for x in lines if x.startswith("VmRSS")).split()[1]) / 1024)


class _Sink:
    """Counts what a bare client gets and acknowledges it at once."""

    def __init__(self) -> None:
        self.bytes, self.ready = 0, threading.Event()
        self.bus: MqttBus | None = None
        self.done: queue.SimpleQueue[int] = queue.SimpleQueue()

    def put(self, event: object, /) -> None:
        """Inbox."""
        match event:
            case Connected():
                self.ready.set()
            case Delivery() if self.bus is not None:
                self.bytes += len(event.payload)
                self.bus.acknowledge(event.ticket)
            case Published():
                self.done.put(event.token)


def raw_mosquitto(url: str, megabytes: float, senders: int = 4) -> float:
    """MB/s from a few bare clients through the broker to one: QoS 1, packets of a chunk's size, no disk."""
    payload = os.urandom(119_000)
    count = max(senders, int(megabytes * 1e6 / len(payload)))
    sink = _Sink()
    sink.bus = MqttBus(BrokerUrl.parse(url), "raw-sink", sink, session_expiry=0)
    sink.bus.subscribe("raw/#")
    sink.bus.start()
    sink.ready.wait(10)
    time.sleep(0.5)
    boxes = [_Sink() for _ in range(senders)]
    buses = [MqttBus(BrokerUrl.parse(url), f"raw-{i}", box, session_expiry=0) for i, box in enumerate(boxes)]
    for bus in buses:
        bus.start()
    for box in boxes:
        box.ready.wait(10)
    began = time.monotonic()
    for number in range(count):
        buses[number % senders].publish(f"raw/{number % senders}", payload, token=number + 1)
    while sink.bytes < count * len(payload) and time.monotonic() - began < 120:
        time.sleep(0.005)
    rate = sink.bytes / 1e6 / (time.monotonic() - began)
    for each in (*buses, sink.bus):
        each.close(1.0)
    return rate


def state_of_cloud(path: Path) -> CloudState | None:
    """The cloud's stored state, None while there is none."""
    if not path.exists():
        return None
    try:
        store = Store(path, read_only=True)
    except StoreError:
        return None
    try:
        stored = store.read("machine")
    finally:
        store.close()
    return None if stored is None else msgspec.msgpack.decode(stored, type=CloudState)


@contextlib.contextmanager
def process(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A `fedbac` process that ends with the block."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            [sys.executable, "-m", "fedbac_edge.cli", *arguments], stdout=output, stderr=output
        )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(15)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def wait_for(holds: Callable[[], bool], what: str, timeout: float) -> float:
    """Seconds until it holds. Raises SystemExit when it does not."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > timeout:
            raise SystemExit(f"{what}: not within {timeout:g} s")
        time.sleep(0.1)
    return time.monotonic() - began


def measure(agents: int, rounds: int, reconnect: bool, folder: Path) -> dict[str, Any]:
    """One crowd from its start to its last round."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"mqtt://127.0.0.1:{port}"
    file = folder / "federation.toml"
    file.write_text(FEDERATION.format(rounds=rounds, agents=agents))
    figures: dict[str, Any] = {"agents": agents, "rounds": rounds}
    with contextlib.ExitStack() as stack:
        broker = MosquittoBroker("127.0.0.1", port, folder / "mosquitto")
        broker.start()
        stack.callback(broker.stop)
        figures["raw_mosquitto_mb_s"] = round(raw_mosquitto(url, 60.0), 1)
        common = ["--broker", url, "--state", str(folder / "state")]
        # The cloud comes last: it begins as soon as the site is ready, and all are to be there then.
        cloud_arguments = ["cloud", "run", "--federation", str(file), *common]
        spec = stack.enter_context(contextlib.ExitStack())
        spec.enter_context(process(cloud_arguments, folder / "cloud.log"))
        wait_for(lambda: (folder / "state" / "cloud.sqlite").exists(), "the cloud's store", 60)
        crowd = Crowd(url, agents, folder / "agents")
        stack.callback(crowd.close)
        figures["all_connected_s"] = round(wait_for(lambda: crowd.connected == agents, "all agents", 300), 1)
        gateway = stack.enter_context(
            process(["gateway", "run", GATEWAY, "--federation", "crowd", *common], folder / "gateway.log")
        )
        memory = Memory(gateway.pid)
        memory.start()
        path = folder / "state" / "cloud.sqlite"

        def finished() -> bool:
            state = state_of_cloud(path)
            return state is not None and state.phase == "finished"

        wait_for(finished, "the last round", 3600)
        memory.over.set()
        memory.join()
        if reconnect:
            figures |= mass_reconnect(broker, crowd, agents)
    figures |= counted(folder / "state", agents, rounds)
    figures["gateway_rss_mb"] = {
        "most": round(max(memory.samples), 1),
        "median": round(float(np.median(memory.samples)), 1),
    }
    return figures


def mass_reconnect(broker: MosquittoBroker, crowd: Crowd, agents: int) -> dict[str, Any]:
    """The broker dies and is started again after two seconds, without any memory."""
    broker.kill()
    wait_for(lambda: crowd.connected == 0, "all links down", 60)
    time.sleep(2.0)
    broker.start()
    back = wait_for(lambda: crowd.connected == agents, "everybody is back", 300)
    return {"mass_reconnect_s": round(back, 1)}


def counted(state: Path, agents: int, rounds: int) -> dict[str, Any]:
    """By the ledgers: how often each update counted, seconds per round, bytes."""
    gateway, cloud = Store(state / f"gateway-{GATEWAY}.sqlite"), Store(state / "cloud.sqlite")
    accepted = Counter((line.round, line.subject) for line in gateway.ledger("accepted"))
    asked = Counter((line.round, n) for line in gateway.ledger("selected") for n in line.detail["asked"])
    summaries = [msgspec.convert(line.detail, RoundSummary) for line in cloud.ledger("summary")]
    training = [summary for summary in summaries if summary.phase == "train"]
    seconds = [summary.seconds for summary in training]
    first = {line.round: line.wall for line in reversed(gateway.ledger("selected"))}
    last = {line.round: line.wall for line in gateway.ledger("accepted")}
    upload = [last[r] - first[r] for r in sorted(first)]
    size = sum(line.detail["bytes"] for line in gateway.ledger("accepted"))
    return {
        "updates": len(accepted),
        "counted_once": accepted == asked and set(accepted.values()) == {1},
        "expected": agents * rounds,
        "refused": len(gateway.ledger("refused")),
        "seconds_per_round": [round(s, 1) for s in seconds],
        "asked_to_last_update_s": [round(s, 1) for s in upload],
        "update_mb": round(size / 1e6 / max(1, len(accepted)), 3),
        "up_mb_s": round(size / 1e6 / sum(upload), 1),
        "store_mb": round((state / f"gateway-{GATEWAY}.sqlite").stat().st_size / 1e6, 1),
    }


def main() -> None:
    """See the module."""
    if sys.argv[1:2] == ["--as-agents"]:
        first, count, url, state = sys.argv[2:]
        run_agents(url, int(first), int(count), Path(state))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reconnect", action="store_true", help="Kill and restart the broker at the end.")
    parser.add_argument("--keep", type=Path, help="Where stores and logs stay.")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 16 * options.agents + 1024)), hard))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        print(json.dumps(measure(options.agents, options.rounds, options.reconnect, folder), indent=2))


if __name__ == "__main__":
    main()
