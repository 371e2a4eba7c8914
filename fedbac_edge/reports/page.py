"""The report: what stands on it, in which order."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence

from fedbac_edge.methods import method
from fedbac_edge.reports import figures, tables
from fedbac_edge.reports.document import (
    Block,
    Heading,
    Paragraph,
    Picture,
    Remarks,
    Table,
    without_empty_columns,
)
from fedbac_edge.reports.fleet import Fleet, fleet_page
from fedbac_edge.reports.grouping import Benchmark, Entry
from fedbac_edge.reports.merit import moves
from fedbac_edge.reports.reading import Run

TITLE = "Runs of the laboratory"
FLEET_TITLE = "A fleet in the field"
FLEET_HOW = (
    "Accuracies are those of hold-outs: pictures that devices keep back and never train on. A fleet has no "
    "test set. MB are 10^6 bytes."
)
MEASURES = {
    "distributed accuracy": "Distributed accuracy: the model that each server is served after the cloud's "
    "aggregation, on that server's test partition; the unweighted mean over servers. ",
    "accuracy": "Accuracy, where there is one server: the model that is served after its aggregation, on "
    "the test set. ",
}
HOW_TO_READ = (
    "Figures are those of the last round and the "
    "mean of the last ten, never of a best round. Several seeds: the mean and ± the deviation (n - 1). The "
    "paper: arXiv 2605.11815, as far as its text gives figures, and only beside runs with its settings. MB "
    "are 10^6 bytes."
)


def page(
    found: Sequence[Benchmark],
    remarks: Sequence[str],
    targets: Sequence[float],
    fleets: Sequence[Fleet] = (),
) -> list[Block]:
    """All blocks. File names of pictures follow from benchmark, method and seed, so that links stay right."""
    style = figures.styles([entry.label for benchmark in found for entry in benchmark.entries])
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    blocks: list[Block] = [Heading(1, TITLE if found else FLEET_TITLE)]
    blocks.append(Paragraph((_measures(found) + HOW_TO_READ if found else FLEET_HOW) + f" Made {made}."))
    if remarks:
        blocks.append(Remarks(tuple(remarks)))
    if len(found) > 1:
        blocks += [Heading(2, "Overview"), tables.overview(found)]
    names: set[str] = set()
    for fleet in fleets:
        blocks += fleet_page(fleet, names)
    for benchmark in found:
        blocks += _benchmark(benchmark, style, targets, names)
    return [without_empty_columns(block) if isinstance(block, Table) else block for block in blocks]


def _measures(found: Sequence[Benchmark]) -> str:
    used = {benchmark.measure for benchmark in found}
    return "".join(sentence for name, sentence in MEASURES.items() if name in used)


def _benchmark(
    benchmark: Benchmark, style: dict[str, figures.Style], targets: Sequence[float], names: set[str]
) -> list[Block]:
    blocks: list[Block] = [Heading(2, benchmark.title)]
    if benchmark.shared:
        blocks.append(Paragraph(f"All runs: {', '.join(benchmark.shared)}."))
    unfinished = [run for run in benchmark.runs if not run.finished]
    remarks = list(benchmark.remarks)
    if unfinished:
        which = ", ".join(f"{run.folder.name} (round {run.rounds} of {run.planned})" for run in unfinished)
        remarks.insert(0, f"Unfinished: {which}. Not counted where their method has finished runs.")
    if remarks:
        blocks.append(Remarks(tuple(remarks)))
    blocks.append(_accuracy(benchmark, style, names))
    blocks.append(_over_bytes(benchmark, style, names))
    blocks.append(tables.accuracy(benchmark))
    if benchmark.servers > 1:
        blocks.append(tables.servers(benchmark))
    classes = tables.classes(benchmark)
    if classes is not None:
        blocks.append(classes)
    views = tables.views(benchmark)
    if views is not None:
        blocks += [_views(benchmark, e, names) for e in benchmark.entries if e.counted[0].training[-1].views]
        blocks.append(views)
    difference = tables.differences(benchmark)
    if difference is not None:
        blocks.append(difference)
    blocks += [tables.target(benchmark, target) for target in targets]
    blocks.append(tables.whole(benchmark))
    drawn = [(entry, run) for entry in benchmark.entries for run in entry.runs if _moves(run)]
    if drawn:
        blocks.append(Heading(3, "Clusters over rounds"))
        blocks += [_clusters(benchmark, entry, run, names) for entry, run in drawn]
    blocks.append(tables.runs(benchmark))
    return blocks


def _accuracy(benchmark: Benchmark, style: dict[str, figures.Style], names: set[str]) -> Picture:
    several = any(len(entry.counted) > 1 for entry in benchmark.entries)
    band = ", the mean over seeds, the band from the lowest to the highest seed" if several else ""
    return Picture(
        name=_name(f"accuracy-{slug(benchmark)}", names),
        alt=f"Accuracy over rounds: {', '.join(entry.label for entry in benchmark.entries)}",
        caption=f"{benchmark.measure.capitalize()} over rounds{band}. {benchmark.title}.",
        png=figures.accuracy_over_rounds(benchmark, style),
    )


def _over_bytes(benchmark: Benchmark, style: dict[str, figures.Style], names: set[str]) -> Picture:
    return Picture(
        name=_name(f"bytes-{slug(benchmark)}", names),
        alt=f"Accuracy over bytes: {', '.join(entry.label for entry in benchmark.entries)}",
        caption=f"{benchmark.measure.capitalize()} over what was really sent until then, mean over seeds. "
        f"{benchmark.title}.",
        png=figures.accuracy_over_bytes(benchmark, style),
    )


def _views(benchmark: Benchmark, entry: Entry, names: set[str]) -> Picture:
    over = ", mean over servers" if benchmark.servers > 1 else ""
    return Picture(
        name=_name(f"views-{slug(benchmark)}-{entry.label[:40]}", names),
        alt=f"Accuracy of each view over rounds: {entry.label}",
        caption=f"Accuracy of each view of {entry.label}{over}. {benchmark.title}.",
        png=figures.views_over_rounds(entry),
    )


def _clusters(benchmark: Benchmark, entry: Entry, run: Run, names: set[str]) -> Picture:
    title = f"{entry.label}, seed {run.seed}"
    return Picture(
        name=_name(f"clusters-{slug(benchmark)}-{entry.label[:40]}-seed{run.seed}", names),
        alt=f"Cluster of each server over rounds: {title}",
        caption=f"Cluster of each server (number and colour), clusters in use: {title}. {benchmark.title}.",
        png=figures.clusters_over_rounds(run, title),
    )


def _moves(run: Run) -> bool:
    """Could servers change their cluster in this run, or did they?"""
    reassigns = method(run.scenario.federation).reassigns
    return (reassigns and any(row.phase == "evaluate" for row in run.rows)) or moves(run.training) > 0


def slug(benchmark: Benchmark) -> str:
    """For file names."""
    cut = benchmark.cut
    groups = f"-{cut.groups}groups" if cut.groups else ""
    drift = f"-drift{cut.drift_round}" if cut.drift_round else ""
    usual = (benchmark.servers, benchmark.clients) == (10, 10)
    size = "" if usual else f"-{benchmark.servers}x{benchmark.clients}"
    if cut.form == "annotation":
        return f"{benchmark.data}-{cut.annotation}-{cut.labelled:g}-{cut.alpha_client:g}{size}"
    return f"{benchmark.data}-{cut.alpha_server:g}-{cut.form}{groups}{drift}{size}"


def _name(text: str, names: set[str]) -> str:
    """A file name that no other picture has."""
    stem = re.sub(r"[^a-z0-9.]+", "-", text.lower().replace("+", "-plus")).strip("-.")
    name, count = f"{stem}.png", 1
    while name in names:
        count += 1
        name = f"{stem}-{count}.png"
    names.add(name)
    return name
