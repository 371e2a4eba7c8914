"""Samples per second of local training and of evaluation, path by path.

The paths take turns inside every round, so that a busy machine slows all of them alike; a ratio is the median
over rounds of the ratio inside one round, and is what to compare between machines.

    python benchmarks/local_training.py [--samples 1280] [--rounds 7] [--parts 2] [--rgb] [--threads 1 2]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np

from fedbac_edge.learning.compiled import kernel_for
from fedbac_edge.learning.compiler import NoKernel
from fedbac_edge.learning.evaluation import evaluate_candidates
from fedbac_edge.learning.forward import torch_logits
from fedbac_edge.learning.local import train_jointly
from fedbac_edge.learning.normalise import normalise
from fedbac_edge.learning.threads import torch_threads
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.vocabulary.training import Backend, LocalTraining, Normalisation

NAMES: dict[Backend, str] = {
    "reference": "separate eager networks (the reference)",
    "fused": "fused torch operations",
    "compiled": "compiled kernel",
}


def compare(title: str, work: dict[str, Callable[[], object]], samples: int, rounds: int) -> None:
    """Time every piece of work once per round, and print rates and ratios to the first."""
    for run in work.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    first = next(iter(seconds.values()))
    print(f"\n{title}")
    for name, taken in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(first, taken, strict=True))
        print(f"  {name:42} {samples / statistics.median(taken):9,.0f} samples/s   x {ratio:5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1280)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rgb", action="store_true", help="RGB 32x32 instead of gray 28x28")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, len(os.sched_getaffinity(0))}))
    options = parser.parse_args()

    model = LeNet(input_shape=(3, 32, 32)) if options.rgb else LeNet()
    channels, height, width = model.input_shape
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (options.samples, height, width, channels), dtype=np.uint8)
    y = rng.integers(0, model.classes, options.samples)
    normalisation = Normalisation(mean=(0.3,) * channels, std=(0.35,) * channels)
    parts = {f"part-{i}": model.init(rng) for i in range(options.parts)}
    backends: list[Backend] = ["reference", "fused"]
    try:
        start = time.perf_counter()
        kernel_for(model)
        print(f"kernel ready after {time.perf_counter() - start:.1f} s")
        backends.append("compiled")
    except NoKernel as reason:
        print(f"no compiled kernel: {reason}")

    for threads in options.threads:
        settings = LocalTraining(
            epochs=1,
            batch_size=options.batch_size,
            learning_rate=0.01,
            momentum=0.9,
            weight_decay=5e-4,
            clip_norm=1.0,
            l2=dict.fromkeys(list(parts)[1:], 0.001),
            threads=threads,
        )

        def training(backend: Backend, settings: LocalTraining = settings) -> Callable[[], object]:
            return lambda: train_jointly(model, parts, x, y, settings, normalisation, [1], backend=backend)

        compare(
            f"training {options.parts} parts, {model.input_shape}, {threads} thread(s)",
            {NAMES[backend]: training(backend) for backend in backends},
            options.samples,
            options.rounds,
        )

    clusters = {f"cluster-{k}": model.init(rng) for k in range(10)}
    plain = [torch_logits(model, part) for part in [parts["part-0"], *clusters.values()]]

    def separately() -> None:
        with torch_threads(1):
            for start in range(0, len(y), 512):
                images = normalise(x[start : start + 512], normalisation)
                shared, *others = (logits(images) for logits in plain)
                for other in others:
                    (shared + other).argmax(axis=1)

    compare(
        "evaluating 10 candidates over one shared part, 1 thread",
        {
            "eager networks": separately,
            "evaluate_candidates": lambda: evaluate_candidates(
                model, [(parts["part-0"], 1.0)], clusters, x, y, normalisation
            ),
        },
        options.samples,
        options.rounds,
    )


if __name__ == "__main__":
    main()
