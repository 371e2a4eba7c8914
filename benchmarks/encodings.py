"""Accuracy and bytes of each encoding of updates, on Fashion-MNIST.

python benchmarks/encodings.py [--rounds 20] [--samples 600] [--seeds 1 2 3]
"""

from __future__ import annotations

import numpy as np
from small_federation import Data, Outcome, Setting, arguments, describe, run

from fedbac_edge.parts.encodings import NAMES
from fedbac_edge.settings.federation import WireTable


def main() -> None:
    given = arguments(__doc__ or "", rounds=20, samples=600, seeds=3)
    setting = Setting(given.rounds, given.samples)
    outcomes: dict[str, list[Outcome]] = {name: [] for name in NAMES}
    for seed in given.seeds:
        data = Data(setting, seed)
        for name in NAMES:
            outcomes[name].append(run(describe(setting, seed, wire=WireTable(encoding=name)), data))
    updates = given.rounds * len(data.devices)
    title = f"{'encoding':10} {'accuracy, mean (each seed)':40}"
    print(f"\n{title} {'bytes/update':>14} {'MB up':>8} {'of float32':>11}")
    whole = total(outcomes["float32"])
    for label, found in outcomes.items():
        accuracies = [100 * outcome.accuracy for outcome in found]
        each = " ".join(f"{accuracy:.2f}" for accuracy in accuracies)
        print(
            f"{label:10} {f'{np.mean(accuracies):.2f} % ({each})':40} "
            f"{found[0].device_bytes / updates:14,.0f} {total(found) / 1e6:8.1f} {total(found) / whole:11.3f}"
        )
    print(f"\n{sum(outcome.seconds for found in outcomes.values() for outcome in found):.0f} s of runs")


def total(outcomes: list[Outcome]) -> float:
    """Bytes up over both links, mean over the seeds."""
    return float(np.mean([outcome.device_bytes + outcome.gateway_bytes for outcome in outcomes]))


if __name__ == "__main__":
    main()
