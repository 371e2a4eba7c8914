"""What an answer costs: every exported form, one thread, measured in turns in one run.

    python benchmarks/inference.py                 # everything, about two minutes
    python benchmarks/inference.py latency --rgb   # one section

Ratios are the result; microseconds belong to the machine and to what else runs on it. Weights are random:
speed does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
Call = Callable[[], object]
CLASSES = tuple(f"class-{i}" for i in range(10))


def served(shape: tuple[int, int, int], parts: int, name: str = "lenet"):  # type: ignore[no-untyped-def]
    """A model with random weights: `parts` parts with coefficient 1."""
    from export.served import ServedModel, Term
    from fedbac_edge.models.catalog import architecture

    rng = np.random.default_rng(0)
    chosen = architecture(name, shape, 10)
    terms = tuple(Term(f"part-{i}", chosen.init(rng)) for i in range(parts))
    return ServedModel(chosen, terms, (0.5,) * shape[0], (0.5,) * shape[0], CLASSES)


def forms(name: str, shape: tuple[int, int, int], batch: int) -> dict[str, Call]:
    """Name -> one call that answers `batch` images; the first is the single network all ratios refer to."""
    import torch

    from export import graph, quantise, torchscript
    from export.session import Session

    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (batch, *shape[1:], shape[0]), dtype=np.uint8)
    scaled = ((pixels / 255.0 - 0.5) / 0.5).astype(np.float32)
    values = np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))
    one, two = served(shape, 1, name), served(shape, 2, name)

    def onnx(proto, given) -> Call:  # type: ignore[no-untyped-def]
        session = Session(proto.SerializeToString())
        return lambda: session._session.run(["logits"], {"image": given})

    def script(module, given) -> Call:  # type: ignore[no-untyped-def]
        tensor = torch.from_numpy(given)

        def call() -> object:
            with torch.inference_mode():
                return module(tensor)

        return call

    whole = Session(graph.build(two).SerializeToString())
    few = rng.integers(0, 256, (64, *shape[1:], shape[0]), dtype=np.uint8)
    return {
        "one LeNet, ONNX float": onnx(graph.build(one, input_kind="float"), values),
        "one LeNet, ONNX uint8": onnx(graph.build(one), pixels),
        "pair, ONNX float, two branches": onnx(graph.build(two, input_kind="float", fuse=False), values),
        "pair, ONNX float, fused": onnx(graph.build(two, input_kind="float"), values),
        "pair, ONNX uint8, fused": onnx(graph.build(two), pixels),
        "pair, ONNX uint8, fused, part logits": onnx(graph.build(two, part_logits=True), pixels),
        "pair, ONNX uint8, fused, int8": onnx(quantise.quantise(two, few), pixels),
        "pair, Session.predict": lambda: whole.predict(pixels),
        "pair, Session.predict, probabilities": lambda: [p.probability for p in whole.predict(pixels)],
        "pair, TorchScript, fused": script(torchscript.build(two, input_kind="float"), values),
        "pair, TorchScript, two branches": script(
            torchscript.build(two, input_kind="float", fuse=False), values
        ),
        "pair, PyTorch eager": script(torchscript.Served(two, "float").eval(), values),
    }


def in_turns(calls: dict[str, Call], rounds: int, runs: int) -> dict[str, np.ndarray]:
    """Microseconds per call, the forms taking turns so that all meet the same machine."""
    times: dict[str, list[int]] = {name: [] for name in calls}
    for turn in range(rounds + 2):
        for name, call in calls.items():
            for _ in range(runs):
                start = time.perf_counter_ns()
                call()
                taken = time.perf_counter_ns() - start
                if turn >= 2:
                    times[name].append(taken)
    return {name: np.asarray(taken) / 1000.0 for name, taken in times.items()}


def latency(name: str, shape: tuple[int, int, int]) -> None:
    single = in_turns(forms(name, shape, 1), rounds=30, runs=60)
    batched = in_turns(forms(name, shape, 64), rounds=6, runs=4)
    p50 = {form: float(np.median(times)) for form, times in single.items()}
    first, eager = next(iter(p50.values())), p50["pair, PyTorch eager"]
    print(f"\n{name} {shape}, one thread, batch 1; throughput with batches of 64")
    print(f"{'form':38} {'p50 us':>8} {'p99 us':>8} {'/ one':>6} {'eager /':>8} {'images/s':>10}")
    for form, times in single.items():
        rate = 64e6 / float(np.median(batched[form]))
        print(
            f"{form:38} {p50[form]:8.1f} {np.percentile(times, 99):8.1f} {p50[form] / first:6.2f} "
            f"{eager / p50[form]:8.1f} {rate:10,.0f}"
        )


CHILD = """
import time; began = time.perf_counter()
import sys, os, json
import numpy as np
from export.session import Session
imported = time.perf_counter()
session = Session(sys.argv[1])
shape = session.input_shape
image = np.zeros((shape[1], shape[2], shape[0]), np.uint8)
session.predict(image)
answered = time.perf_counter()
def memory(key):
    rows = open("/proc/self/status").read().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith(key)) / 1024
report = dict(
    import_s=imported - began, answer_s=answered - began,
    resident=memory("VmRSS"), peak=memory("VmHWM"),
)
"""


def child(body: str, model: Path) -> dict[str, float]:
    """Run CHILD and then `body` in a fresh interpreter; its `report` comes back."""
    return run(CHILD + body, model)


def run(script: str, model: Path) -> dict[str, float]:
    """Run `script` in a fresh interpreter with the model's path as its argument; its `report` comes back."""
    done = subprocess.run(
        [sys.executable, "-c", script + "\nimport json; print(json.dumps(report))", str(model)],
        check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).resolve().parent.parent,
    )  # fmt: skip
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def startup(model: Path) -> None:
    reports = [child("", model) for _ in range(5)]
    for key, unit in (("import_s", "s"), ("answer_s", "s"), ("resident", "MiB"), ("peak", "MiB")):
        values = [report[key] for report in reports]
        print(f"start-up, {key}: median {np.median(values):.3f} {unit}, worst {max(values):.3f} {unit}")


WAITING = """
import resource
def used(): u = resource.getrusage(resource.RUSAGE_SELF); return u.ru_utime + u.ru_stime
start = used(); time.sleep(30); report["cpu_s"] = used() - start
report["threads"] = len(os.listdir("/proc/self/task"))
"""


def waiting(model: Path) -> None:
    report = child(WAITING, model)
    spent = 1000 * report["cpu_s"]
    print(f"waiting 30 s: {spent:.1f} ms of processor time, {report['threads']:.0f} thread(s)")


MANY = """
rng = np.random.default_rng(0)
given = rng.integers(0, 256, (100, *image.shape), dtype=np.uint8)
total, marks, began = 0, [], time.perf_counter()
while total < 100_000:
    count = int(rng.integers(1, 101))
    session.predict(given[:count]); total += count
    if len(marks) < total // 10_000: marks.append(memory("VmRSS"))
report["rate"] = total / (time.perf_counter() - began)
report["early"], report["late"], report["most"] = marks[0], marks[-1], max(marks)
"""


def many(model: Path) -> None:
    report = child(MANY, model)
    print(
        f"100,000 images in batches of 1 to 100: resident {report['early']:.1f} MiB after 10,000, "
        f"{report['late']:.1f} MiB at the end, {report['most']:.1f} MiB at most; "
        f"{report['rate']:,.0f} images/s"
    )


TRAINING = """
import time, torch
from torch.nn.functional import cross_entropy
from fedbac_edge.models.additive import network
from fedbac_edge.models.catalog import architecture
torch.set_num_threads(1)
module = network(architecture("lenet", (1, 28, 28), 10))
optimiser = torch.optim.SGD(module.parameters(), 0.01)
images, labels = torch.rand(64, 1, 28, 28), torch.randint(0, 10, (64,))
def steps(count, between=lambda: None):
    spent = 0.0
    for _ in range(count):
        start = time.perf_counter()
        optimiser.zero_grad(); cross_entropy(module(images), labels).backward(); optimiser.step()
        spent += time.perf_counter() - start
        between()
    return count / spent
steps(50)
report = {"without": steps(200)}
"""
BESIDE = """
report["idle"] = steps(200)
report["busy"] = steps(200, lambda: session.predict(image))
"""


def training(model: Path) -> None:
    """PyTorch training in processes that have no session, then make one, then answer between the steps.

    A thread pool that fights torch's would show as a drop of the last two figures; the second block without a
    session shows what the machine's own noise is.
    """
    reports = []
    for _ in range(4):
        script = (
            TRAINING + "report['again'] = steps(200)\n" + CHILD.replace("report = dict(", "dict(") + BESIDE
        )
        reports.append(run(script, model))
    figures = {key: float(np.median([report[key] for report in reports])) for key in reports[0]}
    base = figures["without"]
    for key, words in (
        ("without", "no session in the process"),
        ("again", "the same again"),
        ("idle", "beside an idle session"),
        ("busy", "with an answer between any two steps"),
    ):
        print(
            f"training, {words}: {figures[key]:.0f} steps of 64 images per second ({figures[key] / base:.2f})"
        )


def main() -> None:
    sections = ("training", "startup", "many", "waiting", "latency")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("section", nargs="*", help=f"of {', '.join(sections)}; default: all")
    parser.add_argument("--rgb", action="store_true", help="latency of RGB 32x32 instead of gray 28x28")
    parser.add_argument("--wide", action="store_true", help="latency of lenet-wide instead of lenet")
    options = parser.parse_args()
    if unknown := set(options.section) - set(sections):
        parser.error(f"no section is called {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder:
        from export import graph

        model = graph.write(graph.build(served((1, 28, 28), 2)), Path(folder) / "model.onnx")
        for name, measure in zip(sections[:-1], (training, startup, many, waiting), strict=True):
            if not options.section or name in options.section:
                measure(model)
    if not options.section or "latency" in options.section:
        shape = (3, 32, 32) if options.rgb else (1, 28, 28)
        latency("lenet-wide" if options.wide else "lenet", shape)


if __name__ == "__main__":
    main()
