"""A report as one JSON value: the same figures, unrounded, for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from fedbac_edge.reports.grouping import Benchmark, Entry
from fedbac_edge.reports.merit import merit, spread
from fedbac_edge.reports.pairs import pairs
from fedbac_edge.reports.reading import Run


def json_form(found: Sequence[Benchmark], remarks: Sequence[str], targets: Sequence[float]) -> dict[str, Any]:
    """Accuracies are shares in [0, 1], traffic is in bytes, up and down together."""
    return {"remarks": list(remarks), "benchmarks": [_benchmark(each, targets) for each in found]}


def _benchmark(benchmark: Benchmark, targets: Sequence[float]) -> dict[str, Any]:
    cut = msgspec.to_builtins(benchmark.cut)
    return {
        "title": benchmark.title,
        "cut": {name: value for name, value in cut.items() if name not in ("seed", "allow_tiny")},
        "servers": benchmark.servers,
        "clients": benchmark.clients,
        "settings": list(benchmark.shared),
        "remarks": list(benchmark.remarks),
        "entries": [_entry(entry, targets) for entry in benchmark.entries],
        "differences": [asdict(pair) for pair in pairs(benchmark.entries)],
    }


def _entry(entry: Entry, targets: Sequence[float]) -> dict[str, Any]:
    merits = [merit(run) for run in entry.counted]
    over_seeds = {
        name: asdict(spread([getattr(m, name) for m in merits]))
        for name in ("accuracy", "accuracy_last", "sigma", "worst", "best")
    }
    return {
        "method": entry.method,
        "settings": list(entry.differs),
        "finished": bool(entry.finished),
        "over_seeds": over_seeds,
        "runs": [_run(run, targets) for run in entry.runs],
    }


def _run(run: Run, targets: Sequence[float]) -> dict[str, Any]:
    figures = asdict(merit(run, targets))
    reached: dict[float, dict[str, Any] | None] = figures.pop("reached")
    return {
        "folder": str(run.folder),
        "seed": run.seed,
        "partition": run.partition,
        "finished": run.finished,
        "planned": run.planned,
        "software": run.about.software,
        "machine": run.about.machine,
        **figures,
        "reached": [{"target": target, "first": first} for target, first in reached.items()],
    }
