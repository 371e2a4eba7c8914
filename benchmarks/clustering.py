"""When does clustering pay? Every way to assign clusters, where servers are alike, are not, and change.

    python benchmarks/clustering.py [--scenarios planted drift] [--assignments fixed single] [--seeds 1 2]
                                    [--out runs/clustering] [--workers 1] [--table]

Each run is a folder like one of `fedbac simulate`; what is there already goes on or is read. `--table` runs
nothing and prints what there is. Settings are compared on the hold-out accuracy, results on the test one.
All scenarios: Fashion-MNIST, 20 servers with 2 devices each, every device in every round, a sweep every 5
rounds (the paper's 20 in 100), bandits on hold-outs; server m is of kind m mod 4.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean

from fedbac_edge.datasets import fashion
from fedbac_edge.lab import presets
from fedbac_edge.lab.fleet import journal, run
from fedbac_edge.lab.pool import Pool
from fedbac_edge.lab.scenario import Scenario, check, with_roster, with_settings

SERVERS, KINDS, DRIFTING = 20, 4, 10
COMMON = (
    "evaluation=holdout",
    "selection.method=random",
    "selection.participation=1.0",
    "method.cloud_weight=participants",
    "assignment.every=5",
    "cut.form=planted",
    f"cut.groups={KINDS}",
    "cut.alpha_client=1.0",
    "cut.allow_tiny=true",
)
SCENARIOS: dict[str, tuple[str, ...]] = {
    # Four kinds of servers with nearly disjoint classes; a tenth of the data; a quarter of it, for 20 rounds.
    "planted": ("rounds=40", "cut.samples=6000", "cut.alpha_server=0.1"),
    "planted-more": ("rounds=20", "cut.samples=15000", "cut.alpha_server=0.1"),
    # Four kinds that share classes.
    "mixed": ("rounds=40", "cut.samples=6000", "cut.alpha_server=0.5"),
    # Half of the servers become of another kind in mid-run.
    "drift": (
        "rounds=60",
        "cut.samples=6000",
        "cut.alpha_server=0.1",
        "cut.drift_round=31",
        f"cut.drift_servers={DRIFTING}",
    ),
}


def _places(kind: Iterable[int]) -> str:
    return "method.places={" + ", ".join(f"gw{m + 1:02} = {k}" for m, k in enumerate(kind)) + "}"


TRUTH = [m % KINDS for m in range(SERVERS)]
AFTER = [((m + 1) % DRIFTING if m < DRIFTING else m) % KINDS for m in range(SERVERS)]
"""The kinds of the servers, and those after the drift."""

FIXED = "assignment.method=fixed"
MERGE = "assignment.method=merge"
SINGLE, ROUND_ROBIN = "method.initial=single", "method.initial=round-robin"
ASSIGNMENTS: dict[str, tuple[str, ...]] = {
    "single": (FIXED, SINGLE),
    "fixed": (FIXED, ROUND_ROBIN),
    "truth": (FIXED, _places(TRUTH)),
    "truth-after": (FIXED, _places(AFTER)),
    "argmin": ("assignment.method=argmin", ROUND_ROBIN),
    "argmin-1.0": ("assignment.method=argmin", "assignment.margin=1.0", ROUND_ROBIN),
    "argmin-each": ("assignment.method=argmin", "method.initial=argmin", "method.cluster_start=each"),
    "fedbac+": (MERGE, ROUND_ROBIN),
    "fedbac+ tolerance 1.2": (MERGE, ROUND_ROBIN, "assignment.tolerance=1.2"),
    "fedbac+ tolerance 3": (MERGE, ROUND_ROBIN, "assignment.tolerance=3.0"),
    "fedbac+ confidence 2": (MERGE, ROUND_ROBIN, "assignment.confidence=2.0"),
    "fedbac+ no merge": (MERGE, ROUND_ROBIN, "assignment.merges=false"),
    "fedbac+ no move": (MERGE, ROUND_ROBIN, "assignment.moves=false"),
    "linucb": (SINGLE,),
    "linucb-alpha-0.1": (SINGLE, "assignment.alpha=0.1"),
    "linucb-shared": (SINGLE, "assignment.arms=shared"),
    "linucb-change": (SINGLE, "assignment.reward=accuracy-change"),
    "linucb-herd": (SINGLE, "assignment.live_counts=false"),
    "linucb-warm": (SINGLE, "method.cluster_start=warm"),
    "linucb-rr": (ROUND_ROBIN,),
    "linucb-rr-alpha-0.1": (ROUND_ROBIN, "assignment.alpha=0.1"),
    "linucb-rr-shared": (ROUND_ROBIN, "assignment.arms=shared"),
    "linucb-rr-change": (ROUND_ROBIN, "assignment.reward=accuracy-change"),
}


def described(scenario: str, assignment: str, seed: int) -> Scenario:
    """One run of the study."""
    base = with_roster(presets.preset("paper/fashion-mnist-0.1"), SERVERS, 2)
    settings = (*COMMON, *SCENARIOS[scenario], *ASSIGNMENTS[assignment], f"seed={seed}", f"cut.seed={seed}")
    return check(with_settings(base, settings))


def _folder(out: Path, scenario: str, assignment: str, seed: int) -> Path:
    return out / scenario / f"{assignment.replace(' ', '-')}-seed{seed}"


def figures(folder: Path) -> Mapping[str, float] | None:
    """What a finished run says; None for one that is not finished."""
    if run.read_result(folder) is None:
        return None
    rows = journal.read(folder / "metrics.jsonl")
    training = [row for row in rows if row.phase == "train"]
    late = training[-run.LAST :]
    return {
        "last": 100 * (late[-1].accuracy or 0.0),
        "ten": fmean(100 * (row.accuracy or 0.0) for row in late),
        "sigma": 100 * (late[-1].sigma or 0.0),
        "worst": 100 * (late[-1].worst or 0.0),
        "holdout": fmean(100 * (row.holdout_accuracy or 0.0) for row in late),
        "clusters": late[-1].active_clusters,
        "moves": sum(len(row.moved) for row in rows),
        "MB": sum(row.traffic.sent_up + row.traffic.sent_down for row in rows) / 1e6,
    }


def table(out: Path, scenarios: Iterable[str], seeds: Iterable[int]) -> str:
    """Markdown: one table per scenario, means over the seeds that there are."""
    lines: list[str] = []
    for scenario in scenarios:
        lines += [
            f"\n{scenario}\n",
            "| assignment | seeds | last round | last ten | sigma | worst | hold-out, last ten | clusters "
            "| moves | MB |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for assignment in ASSIGNMENTS:
            found = [
                (seed, values)
                for seed in seeds
                if (values := figures(_folder(out, scenario, assignment, seed))) is not None
            ]
            if found:
                mean = {name: fmean(values[name] for _, values in found) for name in found[0][1]}
                lines.append(
                    f"| {assignment} | {', '.join(str(seed) for seed, _ in found)} | {mean['last']:.2f} "
                    f"| {mean['ten']:.2f} | {mean['sigma']:.2f} | {mean['worst']:.2f} "
                    f"| {mean['holdout']:.2f} | {mean['clusters']:.1f} "
                    f"| {mean['moves']:.1f} | {mean['MB']:.0f} |"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--assignments", nargs="+", choices=ASSIGNMENTS, default=list(ASSIGNMENTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--out", type=Path, default=Path("runs/clustering"))
    parser.add_argument("--workers", type=int)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if not given.table:
        with Pool(given.workers) as pool:
            for scenario in given.scenarios:
                for seed in given.seeds:
                    for assignment in given.assignments:
                        folder = _folder(given.out, scenario, assignment, seed)
                        result = run.simulate(
                            described(scenario, assignment, seed), folder, fashion.folder(), pool, resume=True
                        )
                        print(f"{folder}: {100 * result.accuracy:.2f} %", flush=True)
    print(table(given.out, given.scenarios, given.seeds))


if __name__ == "__main__":
    main()
