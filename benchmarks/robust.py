"""Accuracy of each rule of the edge average when a fifth of the devices is hostile, on Fashion-MNIST.

One of the five devices of each gateway attacks in every round. The norm gate is off, so that the rules alone
defend.

    python benchmarks/robust.py [--rounds 15] [--samples 300] [--seeds 1 2 3]
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from small_federation import ROSTER, Attack, Data, Setting, arguments, describe, run

from fedbac_edge.datasets.samples import Samples
from fedbac_edge.parts.part import Part, pack, unpack
from fedbac_edge.parts.robust import RuleName
from fedbac_edge.protocol.events import Trained
from fedbac_edge.settings.federation import RobustTable

RULES: tuple[RuleName, ...] = ("mean", "clip", "trimmed-mean", "median", "multi-krum")
HOSTILE = tuple(devices[0] for devices in ROSTER.values())


def scaled(factor: float) -> Attack:
    """The step times `factor`."""

    def attack(trained: Trained, base: Mapping[str, Part]) -> Trained:
        parts = {}
        for role, start in base.items():
            part = unpack(trained.parts[role], {name: tensor.shape for name, tensor in start.items()})
            parts[role] = pack({n: start[n] + np.float32(factor) * (part[n] - start[n]) for n in start})
        return Trained(**{**vars(trained), "parts": parts})

    return attack


ATTACKS: dict[str, Attack | None] = {
    "none": None,
    "sign flip, -1": scaled(-1.0),
    "sign flip, -4": scaled(-4.0),
    "scaling, x10": scaled(10.0),
    "label flip": None,
}


def main() -> None:
    given = arguments(__doc__ or "", rounds=15, samples=300, seeds=3)
    setting = Setting(given.rounds, given.samples)
    found: dict[tuple[str, str], list[float]] = {}
    seconds = 0.0
    for seed in given.seeds:
        data = Data(setting, seed)
        flipped = {name: Samples(data.devices[name].x, 9 - data.devices[name].y) for name in HOSTILE}
        for name, attack in ATTACKS.items():
            for rule in RULES:
                outcome = run(
                    describe(setting, seed, robust=RobustTable(edge=rule)),
                    data,
                    attacks=dict.fromkeys(HOSTILE, attack) if attack is not None else None,
                    poisoned=flipped if name == "label flip" else None,
                )
                found.setdefault((rule, name), []).append(100 * outcome.accuracy)
                seconds += outcome.seconds
                print(f"seed {seed}, {name}, {rule}: {100 * outcome.accuracy:.2f} %", flush=True)
    print("\naccuracy in %, mean over the seeds (smallest)")
    print(f"{'edge rule':14}" + "".join(f"{name:>18}" for name in ATTACKS))
    for rule in RULES:
        cells = [found[rule, name] for name in ATTACKS]
        print(f"{rule:14}" + "".join(f"{f'{np.mean(c):.2f} ({min(c):.2f})':>18}" for c in cells))
    print(f"\n{seconds:.0f} s of runs")


if __name__ == "__main__":
    main()
