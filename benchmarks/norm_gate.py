"""1,000 rounds of one gateway with absences, drift, a decaying rate and attackers: what the norm gate does.

python benchmarks/norm_gate.py [--rounds 1000] [--seed 1]

Prints one row per pair of attackers: the share of honest updates that were refused, the most in a row for
one device, the share that was shortened, the share of attackers' updates that counted, void rounds, and the
accuracy of the last model.
"""

from __future__ import annotations

import argparse

from fedbac_edge.lab.trials.long_life import Attack, Life, attackers, honest, live

PAIRS: tuple[tuple[tuple[Attack, float], ...], ...] = (
    (),
    (("reversed", 100.0), ("noise", 1000.0)),
    (("scaled", 20.0), ("reversed", 20.0)),
    (("noise", 1e6), ("reversed", 1000.0)),
)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    columns = ["attackers", "gate", "honest refused", "in a row", "honest shortened", "attackers counted"]
    print(f"| {' | '.join([*columns, 'void', 'accuracy'])} |")
    print("|---|---|---|---|---|---|---|---|")
    for pair in PAIRS:
        for gate in (True, False):
            life = Life(rounds=wanted.rounds, attackers=pair, norm_gate=gate, seed=wanted.seed)
            outcome, good, bad = live(life), honest(life), attackers(life)
            names = ", ".join(f"{kind} {size:g}" for kind, size in pair) or "none"
            counted = f"{100 * (1 - outcome.rate(outcome.refused, bad)):.1f} %" if bad else "-"
            print(
                f"| {names} | {'on' if gate else 'off'} | {100 * outcome.rate(outcome.refused, good):.2f} % "
                f"| {max(outcome.in_a_row[name] for name in good)} "
                f"| {100 * outcome.rate(outcome.shortened, good):.2f} % | {counted} | {outcome.void} "
                f"| {100 * outcome.accuracy:.1f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
