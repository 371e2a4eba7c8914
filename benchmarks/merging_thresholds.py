"""What `fedbac+` would have decided with other thresholds, on the scores in the ledgers of finished runs.

    python benchmarks/merging_thresholds.py runs/clustering/planted/fedbac+-seed1 ... [--kinds 4]

Per run, the first sweep (every site still has a network of its own): clusters that the rule makes, pairs of
sites of different kinds that it puts together, and pairs of one kind that it leaves apart, server m being of
kind m mod KINDS. Without --kinds every server is of its own kind. Costs nothing but reading.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path

from fedbac_edge.lab.fleet import journal
from fedbac_edge.methods.merging import Exchange, Thresholds, regroup
from fedbac_edge.node.store import Store
from fedbac_edge.vocabulary.terms import Score

THRESHOLDS = [Thresholds(c, t) for c in (0.5, 1.0, 2.0) for t in (1.1, 1.2, 1.5, 2.0, 3.0)]


def first_sweep(folder: Path) -> tuple[dict[str, int], dict[str, dict[int, Score]]]:
    """Site -> cluster before it, and site -> cluster -> score."""
    held = {
        name: server.holdout or server.test
        for name, server in journal.read(folder / "metrics.jsonl")[0].servers.items()
    }
    store = Store(folder / "stores" / "cloud.sqlite", durable=False)
    lines = store.ledger("sweep")
    lines = [line for line in lines if line.round == lines[0].round]
    store.close()
    scores = {}
    for line in lines:
        count = held[line.subject]
        cells = zip(line.detail["right"], line.detail["losses"], strict=True)
        scores[line.subject] = {k: Score(count, right, count * loss) for k, (right, loss) in enumerate(cells)}
    return {line.subject: line.detail["previous"] for line in lines}, scores


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--kinds", type=int)
    given = parser.parse_args()
    for folder in given.runs:
        places, scores = first_sweep(folder)
        kind = {site: m % (given.kinds or len(places)) for m, site in enumerate(sorted(places))}
        pairs = list(combinations(sorted(places), 2))
        factors: dict[bool, list[float]] = {True: [], False: []}
        for one, other in pairs:
            both = Exchange()
            for here, there in ((one, other), (other, one)):
                row = scores[here]
                a, b = row[places[here]], row[places[there]]
                both += Exchange(a.count, a.count - a.correct, b.count - b.correct, a.loss, b.loss)
            factors[kind[one] == kind[other]].append(both.factor)
        print(f"\n{folder}")
        for alike, values in factors.items():
            if values:
                middle = sorted(values)[len(values) // 2]
                print(
                    f"factors of the loss, {'one kind' if alike else 'different kinds'}: smallest "
                    f"{min(values):.2f}, middle {middle:.2f}, largest {max(values):.2f}"
                )
        print(
            "| confidence | tolerance | clusters | wrongly together | wrongly apart |\n|---|---|---|---|---|"
        )
        for thresholds in THRESHOLDS:
            after = regroup(places, scores, len(places), thresholds)
            together = sum(after[a] == after[b] and kind[a] != kind[b] for a, b in pairs)
            apart = sum(after[a] != after[b] and kind[a] == kind[b] for a, b in pairs)
            print(
                f"| {thresholds.confidence:g} | {thresholds.tolerance:g} | {len(set(after.values()))} "
                f"| {together} | {apart} |"
            )


if __name__ == "__main__":
    main()
