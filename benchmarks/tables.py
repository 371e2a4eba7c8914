"""The queue of long runs behind docs/results: goes on where it stopped, writes figures as runs end.

    python benchmarks/tables.py run [--only TEXT] [--workers 1] [--out runs/tables]
    python benchmarks/tables.py list
    python benchmarks/tables.py summary [--write]        # --write: into docs/results/fed-bac.md

A run is `fedbac simulate` with the arguments that `list` shows. When it ends, its rounds go to
docs/results/tables/NAME.csv and its command, versions, hashes and result to NAME.json. A run with a NAME.json
is over and is not made again, on any machine. `run` lowers its own priority: other work goes first.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs" / "results" / "tables"
PAGE = ROOT / "docs" / "results" / "fed-bac.md"
BEGIN, END = "<!-- benchmarks/tables.py summary -->\n", "<!-- end -->\n"
COLUMNS = (
    "round",
    "accuracy",
    "sigma",
    "worst",
    "best",
    "holdout_accuracy",
    "active_clusters",
    "moved",
    "sent_bytes",
)
LATE = 10
"""The paper's figures are those of its last ten rounds."""


@dataclass(frozen=True)
class Job:
    """One run: a row of a table under one seed."""

    preset: str
    """As `fedbac simulate` takes it."""
    row: str
    """The row's name: the method, and what differs from its preset."""
    seed: int
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.preset.removeprefix('paper/')}-{self.row}-seed{self.seed}"

    @property
    def command(self) -> tuple[str, ...]:
        """After `fedbac`."""
        return ("simulate", self.preset, *self.arguments, "--seed", str(self.seed))


# The paper has no gate between an update and the average.
PLAIN = ("--set", "deadlines.norm_gate=false")
ROWS: dict[str, tuple[str, ...]] = {
    "fedbac": ("--method", "fedbac"),
    "fedbac-round-robin": ("--method", "fedbac", "--set", "method.initial=round-robin"),
    "fedbac-warm": ("--method", "fedbac", "--set", "method.cluster_start=warm"),
    "fixed": ("--method", "fixed"),
    "random": ("--method", "random"),
    "hierfavg": ("--method", "hierfavg"),
    "ifca": ("--method", "ifca"),
    "fedbac+": ("--method", "fedbac+"),
}
FASHION = ("paper/fashion-mnist-0.1", "paper/fashion-mnist-0.5")


def _jobs(presets: Iterable[str], rows: Iterable[str], seeds: Iterable[int]) -> Iterator[Job]:
    rows = tuple(rows)
    for seed in seeds:
        for preset in presets:
            for row in rows:
                yield Job(preset, row, seed, (*ROWS[row], *PLAIN))


QUEUE: tuple[Job, ...] = (
    # What confounds "LinUCB against fixed": both from round-robin, and clusters that start warm.
    *_jobs(FASHION, ("fedbac-round-robin", "fedbac-warm"), (1,)),
    *_jobs(FASHION, ("fedbac", "fixed", "fedbac-round-robin", "random", "hierfavg", "ifca"), (2, 3)),
    *_jobs(FASHION, ("fedbac", "fixed", "random", "hierfavg", "ifca", "fedbac+"), (1,)),
    *_jobs(FASHION, ("fedbac+",), (2, 3)),
)
"""In the order in which they are made."""


def _file(name: str) -> str:
    """A kept file; a plus stays out of file names."""
    return name.replace("+", "-plus")


def record(job: Job) -> Path:
    """What says that a run is over."""
    return KEPT / f"{_file(job.name)}.json"


def make(job: Job, out: Path, workers: int) -> None:
    """Run `job`, or go on with it, and keep its figures; raises CalledProcessError when it fails."""
    folder = out / _file(job.name)
    words = [*job.command, "--workers", str(workers), "--out", str(folder), "--resume", "--json"]
    fedbac = [sys.executable, "-m", "fedbac_edge.cli"]
    subprocess.run([*fedbac, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    about = json.loads((folder / "run.json").read_text())
    result = json.loads((folder / "result.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    KEPT.mkdir(parents=True, exist_ok=True)
    _write(KEPT / f"{_file(job.name)}.csv", _rounds(rows))
    kept = {
        "preset": job.preset,
        "row": job.row,
        "seed": job.seed,
        "command": " ".join(("fedbac", *job.command)),
        "software": about["software"],
        "commit": _commit(),
        "machine": about["machine"],
        "partition": about["partition"],
        "result": {name: value for name, value in result.items() if name != "parts"},
    }
    _write(record(job), json.dumps(kept, indent=1) + "\n")


def _commit() -> str:
    """The tree's commit, empty outside of a clone."""
    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return told.stdout.strip()


def _rounds(rows: Iterable[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    sent, moved = 0, ""
    for row in rows:
        sent += row["traffic"]["sent_up"] + row["traffic"]["sent_down"]
        if row["phase"] == "train":
            figures = ("" if row.get(name) is None else f"{row[name]:.6f}" for name in COLUMNS[1:6])
            writer.writerow((row["round"], *figures, row["active_clusters"], moved, sent))
            moved = ""
        elif row.get("moved"):
            moved = " ".join(f"{gateway}:{cluster}" for gateway, cluster in sorted(row["moved"].items()))
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def summary() -> str:
    """Markdown: each preset's rows over the seeds that are there, best first."""
    found: dict[str, dict[str, list[Path]]] = {}
    for path in sorted(KEPT.glob("*.json")):
        kept = json.loads(path.read_text())
        found.setdefault(kept["preset"], {}).setdefault(kept["row"], []).append(path)
    lines = []
    for preset, rows in sorted(found.items()):
        lines += [
            f"\n**{preset}**\n",
            "| row | seeds | mean of last ten, % | deviation over seeds | sigma over servers "
            "| worst server, % | rounds to 80 % | MB sent |",
            "|---|---|---:|---:|---:|---:|---:|---:|",
        ]
        lines += [line for _, line in sorted((_summary_row(row, paths) for row, paths in rows.items()))]
    return "\n".join(lines).strip() + "\n"


def written(page: str) -> str:
    """The page with today's summary between its two marks."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + summary() + rest[rest.index(END) :]


def _summary_row(name: str, paths: list[Path]) -> tuple[float, str]:
    seeds = [json.loads(path.read_text())["seed"] for path in paths]
    runs = [list(csv.DictReader(path.with_suffix(".csv").read_text().splitlines())) for path in paths]
    late = {
        column: [100 * fmean(float(row[column]) for row in rows[-LATE:]) for rows in runs]
        for column in ("accuracy", "sigma", "worst")
    }
    reached = [
        next((int(row["round"]) for row in rows if float(row["accuracy"]) >= 0.8), None) for rows in runs
    ]
    accuracy = late["accuracy"]
    deviation = f"{stdev(accuracy):.2f}" if len(accuracy) > 1 else ""
    return -fmean(accuracy), (
        f"| `{name}` | {', '.join(map(str, sorted(seeds)))} | {fmean(accuracy):.2f} | {deviation} "
        f"| {fmean(late['sigma']):.2f} | {fmean(late['worst']):.2f} "
        f"| {', '.join('never' if each is None else str(each) for each in reached)} "
        f"| {fmean(int(rows[-1]['sent_bytes']) for rows in runs) / 1e6:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("run", "list", "summary"))
    parser.add_argument("--only", default="", help="jobs whose name holds this text")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/tables"))
    parser.add_argument("--write", action="store_true", help="put the summary into its page")
    given = parser.parse_args()
    if given.what == "summary":
        if given.write:
            _write(PAGE, written(PAGE.read_text(encoding="utf-8")))
        else:
            print(summary(), end="")
        return
    jobs = [job for job in QUEUE if given.only in job.name]
    if given.what == "list":
        for job in jobs:
            print("done   " if record(job).exists() else "missing", job.name, ":", "fedbac", *job.command)
        return
    os.nice(19)
    for job in jobs:
        if not record(job).exists():
            print(job.name, flush=True)
            make(job, given.out, given.workers)


if __name__ == "__main__":
    main()
