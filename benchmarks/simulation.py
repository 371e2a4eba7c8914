"""A round of the paper's Fashion-MNIST setting: the laboratory against plain sequential PyTorch, in one run.

Both do the same work on the same clients: local training of two LeNets, averages at the edge and in the
cloud, the edge model's and the served model's accuracy on the test partitions. The plain program has no
tiers, no messages and no stores: what the state machines cost is the processor time of the laboratory's own
process, everything that is not in a worker.

    python benchmarks/simulation.py [--rounds 3] [--workers 1 2] [--samples 60000] [--data PATH]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fedbac_edge.datasets import fashion
from fedbac_edge.host.cgroups import available_cores
from fedbac_edge.lab import presets
from fedbac_edge.lab.fleet import journal, run
from fedbac_edge.lab.fleet.grounds import Grounds
from fedbac_edge.lab.fleet.journal import Row
from fedbac_edge.lab.pool import Pool
from fedbac_edge.lab.samples import Place
from fedbac_edge.lab.scenario import Scenario, with_settings

State = Mapping[str, Tensor]


def lenet() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def train(G: nn.Module, K: nn.Module, x: Tensor, y: Tensor, epochs: int) -> None:
    weights = [*G.parameters(), *K.parameters()]
    optimiser = torch.optim.SGD(weights, lr=0.01, momentum=0.9, weight_decay=5e-4)
    for _ in range(epochs):
        for chosen in torch.randperm(len(y)).split(64):  # type: ignore[no-untyped-call]
            loss = nn.functional.cross_entropy(G(x[chosen]) + K(x[chosen]), y[chosen])
            loss = loss + 1e-3 * sum(weight.square().sum() for weight in K.parameters())
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimiser.step()


def mean(states: list[tuple[int, State]]) -> State:
    total = sum(samples for samples, _ in states)
    return {
        name: torch.stack([n / total * state[name] for n, state in states]).sum(0) for name in states[0][1]
    }


@torch.no_grad()
def accuracy(G: nn.Module, K: nn.Module, x: Tensor, y: Tensor) -> float:
    batches = zip(x.split(512), y.split(512), strict=True)  # type: ignore[no-untyped-call]
    return sum(float((G(a) + K(a)).argmax(1).eq(b).sum()) for a, b in batches) / len(y)


def plain_round(grounds: Grounds, row: Row, epochs: int) -> float:
    """Seconds of one round with the participants of `row`, everyone in one cluster."""

    def tensors(place: Place) -> tuple[Tensor, Tensor]:
        samples = grounds.samples(place)
        x = torch.from_numpy(samples.x.copy()).permute(0, 3, 1, 2).float() / 255
        return (x - 0.286) / 0.353, torch.from_numpy(samples.y.copy())

    plan, start = grounds.plan, time.perf_counter()
    G, K = lenet(), lenet()
    first = [{k: v.clone() for k, v in net.state_dict().items()} for net in (G, K)]
    edges: list[tuple[int, list[State]]] = []
    for server, done in row.servers.items():
        updates: list[list[tuple[int, State]]] = [[], []]
        for client in done.participants:
            for net, state in zip((G, K), first, strict=True):
                net.load_state_dict(state)
            x, y = tensors(plan.train[client])
            train(G, K, x, y, epochs)
            for update, net in zip(updates, (G, K), strict=True):
                update.append((len(y), {k: v.clone() for k, v in net.state_dict().items()}))
        averaged = [mean(update) for update in updates]
        for net, new in zip((G, K), averaged, strict=True):
            net.load_state_dict(new)
        accuracy(G, K, *tensors(plan.test[server]))
        edges.append((done.samples, averaged))
    for net, index in ((G, 0), (K, 1)):
        net.load_state_dict(mean([(samples, states[index]) for samples, states in edges]))
    for server in row.servers:
        accuracy(G, K, *tensors(plan.test[server]))
    return time.perf_counter() - start


def laboratory(scenario: Scenario, data: Path, folder: Path, workers: int) -> tuple[float, float]:
    """(seconds, processor seconds of the state machines) per round, the first one left out."""
    marks: list[tuple[float, float]] = []

    def tell(row: Row) -> None:
        if row.phase == "train":
            marks.append((time.perf_counter(), time.process_time()))

    with Pool(workers) as pool:
        run.simulate(scenario, folder, data, pool, tell=tell)
    # A row is told when the next aggregation comes: the marks are one whole round apart, but for the last.
    (wall0, cpu0), (wall1, cpu1) = marks[0], marks[-2]
    rounds = len(marks) - 2
    return (wall1 - wall0) / rounds, (cpu1 - cpu0) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds that are timed in the laboratory")
    parser.add_argument("--workers", type=int, nargs="+", default=sorted({1, available_cores()}))
    parser.add_argument("--samples", type=int, default=60_000, help="training samples")
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    data = options.data or fashion.folder()
    settings = [f"rounds={options.rounds + 2}", f"cut.samples={options.samples}", "cut.allow_tiny=true"]
    scenario = with_settings(presets.preset("paper/fashion-mnist-0.1"), settings)
    torch.set_num_threads(1)

    with tempfile.TemporaryDirectory() as temporary:
        taken = {}
        for workers in options.workers:
            folder = Path(temporary) / str(workers)
            taken[workers] = laboratory(scenario, data, folder, workers)
        row = journal.read(folder / "metrics.jsonl")[1]
        grounds = run.grounds_of(scenario, folder, data)
        seconds = plain_round(grounds, row, scenario.federation.training.epochs)

    participants = sum(len(server.participants) for server in row.servers.values())
    samples = sum(server.samples for server in row.servers.values())
    print(f"one round: {participants} clients, {samples:,} samples, {os.cpu_count()} processors here")
    print(f"  plain PyTorch, sequential, one thread   {seconds:7.1f} s")
    for workers, (wall, cpu) in taken.items():
        print(f"  laboratory, {workers} worker(s)               {wall:7.1f} s   x {seconds / wall:5.2f}")
        print(
            f"    state machines                        {cpu:7.2f} s of processor time: "
            f"{100 * cpu / seconds:.1f} % of the plain round"
        )


if __name__ == "__main__":
    main()
