"""Every round of every run as a line of CSV: the metrics behind a report, small enough to be kept with it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from fedbac_edge.reports.grouping import Benchmark, Entry
from fedbac_edge.reports.merit import traffic
from fedbac_edge.reports.reading import Run

COLUMNS = (
    "data",
    "form",
    "alpha_server",
    "method",
    "settings",
    "seed",
    "partition",
    "round",
    "accuracy",
    "sigma",
    "worst",
    "best",
    "holdout_accuracy",
    "active_clusters",
    "single_bytes",
    "sent_bytes",
)
"""Accuracies as shares; bytes up and down together, from the start to the end of that round's training."""


def rounds_csv(found: Sequence[Benchmark]) -> str:
    """The whole file, with a line of COLUMNS first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for benchmark in found:
        for entry in benchmark.entries:
            for run in entry.runs:
                writer.writerows(_rows(benchmark, entry, run))
    return text.getvalue()


def _rows(benchmark: Benchmark, entry: Entry, run: Run) -> Iterator[tuple[object, ...]]:
    cut = run.scenario.cut
    said = " ".join((*benchmark.shared, *entry.differs))
    head = (
        benchmark.data,
        cut.form,
        f"{cut.alpha_server:g}",
        entry.method,
        said,
        run.seed,
        run.partition[:12],
    )
    single = sent = 0
    for row in run.rows:
        bytes = traffic([row])
        single, sent = single + bytes.single, sent + bytes.sent
        if row.accuracy is not None:
            shares = (row.accuracy, row.sigma, row.worst, row.best, row.holdout_accuracy)
            figures = ("" if share is None else f"{share:.6f}" for share in shares)
            yield (*head, row.round, *figures, row.active_clusters, single, sent)
