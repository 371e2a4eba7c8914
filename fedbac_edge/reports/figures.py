"""The pictures: accuracy over rounds, and which server was in which cluster. The only module with matplotlib.

Drawn without a display and without global state. Colours are those of Okabe and Ito ("Color Universal
Design"), told apart by colour-blind readers; every line and every cluster has its name written beside it too.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedbac_edge.lab.fleet.journal import Row
from fedbac_edge.reports.grouping import Benchmark, Entry
from fedbac_edge.reports.reading import ReportError, Run

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ReportError(
        f"pictures need matplotlib ({error}): pip install 'fedbac-edge[report]', or take the figures alone "
        "with --json"
    ) from error

BLACK = "#000000"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#000000", "#8C7A00")
"""Okabe-Ito; its yellow darkened, to be seen as a line on white."""
FILLS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999")
DASHES = ("-", "--", ":", "-.")
HATCHES = ("", "////", "....", "xxxx", "----")
"""Clusters beyond the eighth have the colours again, under a pattern."""
TEXT = "#222222"
WRAP = 27
DPI = 130
RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.edgecolor": "#555555",
}

Style = tuple[str, str]


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """Label -> colour and dash, the same in every picture of a report."""
    distinct = list(dict.fromkeys(labels))
    return {
        label: (COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)])
        for i, label in enumerate(distinct)
    }


Curve = list[tuple[float, float, float]]
"""Round by round (lowest, mean, highest) over seeds, in percent."""


def accuracy_over_rounds(benchmark: Benchmark, style: Mapping[str, Style]) -> bytes:
    """PNG: mean over seeds and the band from the worst to the best seed; beside it the later rounds, larger.

    Entries whose runs are all unfinished are drawn as far as they are.
    """
    curves = [
        (entry.label, _curve([[row.accuracy or 0.0 for row in run.training] for run in entry.counted]))
        for entry in benchmark.entries
    ]
    return _curves(curves, style, f"{benchmark.measure}, % of test samples")


def accuracy_over_bytes(benchmark: Benchmark, style: Mapping[str, Style]) -> bytes:
    """PNG: mean accuracy over seeds against the megabytes really sent until then, up and down together."""
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(8.0, 4.6), layout=None)
        FigureCanvasAgg(figure)
        axis = figure.subplots()
        ends, widest = [], 0.0
        for entry in benchmark.entries:
            curve = _curve([[row.accuracy or 0.0 for row in run.training] for run in entry.counted])
            sent = [fmean(column) for column in zip(*map(_sent, entry.counted), strict=False)]
            colour, dash = style[entry.label]
            axis.plot(sent, [mean for _, mean, _ in curve], color=colour, linestyle=dash, linewidth=1.6)
            axis.plot(sent[-1:], [curve[-1][1]], "o", color=colour, markersize=4)
            ends.append((entry.label, curve[-1][1], -1))
            widest = max(widest, sent[-1])
        axis.set_xlabel("MB sent, up and down together")
        axis.set_ylabel(f"{benchmark.measure}, % of test samples")
        axis.set_xlim(0, widest * 1.02 or 1.0)
        axis.set_ylim(0, 100)
        figure.subplots_adjust(left=0.09, bottom=0.12, top=0.93)
        _name_lines(figure, axis, ends, style)
        return _png(figure)


def _sent(run: Run) -> list[float]:
    """Megabytes sent from the start to the end of each round of training."""
    total, found = 0, []
    for row in run.rows:
        total += row.traffic.sent_up + row.traffic.sent_down
        if row.phase == "train" and row.round > 0:
            found.append(total / 1e6)
    return found


def shares_over_rounds(curves: Sequence[tuple[str, Sequence[tuple[int, float]]]], what: str) -> bytes:
    """PNG: lines of (round, share) with their names; rounds may begin anywhere, and some may be missing."""
    style = styles([name for name, _ in curves])
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(8.0, 4.6), layout=None)
        FigureCanvasAgg(figure)
        axis = figure.subplots()
        rounds = [round for _, points in curves for round, _ in points]
        for name, points in curves:
            colour, dash = style[name]
            shares = [100 * share for _, share in points]
            axis.plot([round for round, _ in points], shares, color=colour, linestyle=dash, linewidth=1.6)
            axis.plot(points[-1][0], shares[-1], "o", color=colour, markersize=4)
        axis.set_xlabel("round")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axis.set_ylabel(what)
        axis.set_xlim(min(rounds) - 0.5, max(rounds) + 0.5)
        axis.set_ylim(0, 100)
        figure.subplots_adjust(left=0.09, bottom=0.12, top=0.93)
        ends = [(name, 100 * points[-1][1], -1) for name, points in curves]
        _name_lines(figure, axis, ends, style)
        return _png(figure)


def views_over_rounds(entry: Entry) -> bytes:
    """PNG: the same for each view of an entry's method."""
    names = list(entry.counted[0].training[-1].views)
    curves = [
        (name, _curve([[row.views.get(name, 0.0) for row in run.training] for run in entry.counted]))
        for name in names
    ]
    return _curves(curves, styles(names), "accuracy of the view, % of test samples")


def _curve(runs: Sequence[Sequence[float]]) -> Curve:
    """From shares, a sequence per run; as far as every run goes."""
    return [
        (100 * min(column), 100 * sum(column) / len(column), 100 * max(column))
        for column in zip(*runs, strict=False)
    ]


def _curves(curves: Sequence[tuple[str, Curve]], style: Mapping[str, Style], what: str) -> bytes:
    with matplotlib.rc_context(RC):
        longest = max(len(curve) for _, curve in curves)
        zoomed = longest >= 10
        figure = Figure(figsize=(11.0 if zoomed else 8.0, 4.6), layout=None)
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, 2 if zoomed else 1, squeeze=False)[0]
        for axis in axes:
            for label, curve in curves:
                colour, dash = style[label]
                rounds = range(1, len(curve) + 1)
                axis.plot(rounds, [mean for _, mean, _ in curve], color=colour, linestyle=dash, linewidth=1.6)
                if len(curve) == 1:
                    axis.plot(rounds, [mean for _, mean, _ in curve], "o", color=colour)
                if any(low != high for low, _, high in curve):
                    lows, highs = [low for low, _, _ in curve], [high for _, _, high in curve]
                    axis.fill_between(rounds, lows, highs, color=colour, alpha=0.2, linewidth=0)
            axis.set_xlabel("round")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes[0].set_ylabel(what)
        axes[0].set_xlim(1 if longest > 1 else 0.5, max(longest, 1.5))
        axes[0].set_ylim(0, 100)
        if zoomed:
            begin = longest // 2
            axes[1].set_xlim(begin, longest)
            axes[1].set_ylim(*_range(curves, begin))
            axes[0].set_title("all rounds", fontsize=10, loc="left", color="#555555")
            axes[1].set_title(f"from round {begin} on", fontsize=10, loc="left", color="#555555")
        figure.subplots_adjust(left=0.06 if zoomed else 0.09, bottom=0.12, top=0.93, wspace=0.13)
        _name_lines(figure, axes[-1], [(label, curve[-1][1], len(curve)) for label, curve in curves], style)
        return _png(figure)


def _range(curves: Sequence[tuple[str, Curve]], begin: int) -> tuple[float, float]:
    """Limits that hold every value from round `begin` on, with some air."""
    late = [value for _, curve in curves for each in curve[begin - 1 :] for value in (each[0], each[2])]
    low, high = min(late), max(late)
    air = max(0.5, 0.06 * (high - low))
    return max(0.0, low - air), min(100.5, high + air)


def _name_lines(
    figure: Figure, axis: Axes, ends: Sequence[tuple[str, float, int]], style: Mapping[str, Style]
) -> None:
    """Names at the right, in the order of the lines' ends, pushed apart; a thin line leads to each end.

    `ends` are (label, value, rounds). A name is dark on white, its line's colour and dash stand before it.
    """
    size = 9.0 if len(ends) <= 8 else 7.5
    names = {label: textwrap.fill(label, WRAP) for label, _, _ in ends}
    longest = max(len(line) for name in names.values() for line in name.split("\n"))
    figure.subplots_adjust(right=1 - (0.7 + longest * size * 0.6 / 72) / figure.get_figwidth())
    figure.draw_without_rendering()
    bottom, top = axis.get_ylim()
    left, right = axis.get_xlim()
    unit = (top - bottom) / axis.get_window_extent().height * size * 1.25 / 72 * figure.dpi
    tall = {label: (name.count("\n") + 1.1) * unit for label, name in names.items()}
    inch = (right - left) / (axis.get_window_extent().width / figure.dpi)
    for (label, value, rounds), at in _pushed_apart(ends, tall, bottom, top):
        colour, dash = style[label]
        begin, end = right + 0.2 * inch, right + 0.45 * inch
        axis.plot([begin, end], [at, at], color=colour, linestyle=dash, linewidth=1.8, clip_on=False)
        if rounds == right and bottom <= value <= top:
            axis.plot([right, begin], [value, at], color=colour, linewidth=0.7, clip_on=False)
        place = (right + 0.52 * inch, at)
        axis.annotate(names[label], place, color=TEXT, fontsize=size, va="center", annotation_clip=False)
    axis.set_xlim(left, right)
    axis.set_ylim(bottom, top)


def _pushed_apart(
    ends: Sequence[tuple[str, float, int]], tall: Mapping[str, float], bottom: float, top: float
) -> list[tuple[tuple[str, float, int], float]]:
    """Each end and a height for its name, so that names of heights `tall` do not overlap."""
    placed: list[tuple[tuple[str, float, int], float]] = []
    floor = bottom
    for end in sorted(ends, key=lambda each: each[1]):
        half = tall[end[0]] / 2
        at = max(min(max(end[1], bottom), top), floor + half)
        placed.append((end, at))
        floor = at + half
    ceiling = top
    for index in range(len(placed) - 1, -1, -1):
        end, at = placed[index]
        half = tall[end[0]] / 2
        placed[index] = (end, min(at, ceiling - half))
        ceiling = placed[index][1] - half
    return placed


def clusters_over_rounds(run: Run, title: str) -> bytes:
    """PNG: servers by rounds, coloured and numbered by cluster; below, how many clusters were in use."""
    names = sorted({name for row in run.training for name in row.servers})
    last = run.rounds
    with matplotlib.rc_context(RC):
        height = 1.9 + 0.26 * len(names)
        figure = Figure(figsize=(9.0, height), layout="constrained")
        FigureCanvasAgg(figure)
        upper, lower = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [0.26 * len(names), 0.9]}
        )
        for line, name in enumerate(names):
            for begin, end, cluster in _stays(run.training, name):
                patterned = cluster >= len(FILLS)
                upper.barh(
                    line,
                    end - begin + 1,
                    left=begin - 0.5,
                    height=0.84,
                    color=FILLS[cluster % len(FILLS)],
                    hatch=HATCHES[cluster // len(FILLS) % len(HATCHES)],
                    edgecolor="#FFFFFF",
                    linewidth=0.5,
                )
                if end - begin + 1 >= 0.022 * last * len(str(cluster)):
                    upper.text(
                        (begin + end) / 2,
                        line,
                        str(cluster),
                        ha="center",
                        va="center",
                        fontsize=8,
                        color=BLACK if patterned else _on(FILLS[cluster % len(FILLS)]),
                        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8} if patterned else None,
                    )
        upper.set_yticks(range(len(names)), names, fontsize=8)
        upper.set_ylim(len(names) - 0.5, -0.5)
        upper.set_ylabel("server")
        upper.set_title(title, fontsize=10, loc="left")
        upper.grid(visible=False)
        upper.tick_params(axis="x", labelbottom=False)
        rounds = [row.round for row in run.training]
        active = [row.active_clusters for row in run.training]
        lower.step(rounds, active, where="mid", color=BLACK, linewidth=1.4)
        if last == 1:
            lower.plot(rounds, active, "o", color=BLACK)
        lower.set_ylim(0, max(active) + 1)
        lower.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=3))
        lower.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        lower.set_xlim(0.5, last + 0.5)
        lower.set_xlabel("round")
        lower.set_ylabel("active\nclusters")
        return _png(figure)


def _stays(training: Sequence[Row], name: str) -> list[tuple[int, int, int]]:
    """(first round, last round, cluster) of each stay of a server in one cluster."""
    stays: list[tuple[int, int, int]] = []
    for row in training:
        if name not in row.servers:
            continue
        cluster = row.servers[name].cluster
        if stays and stays[-1][2] == cluster and stays[-1][1] == row.round - 1:
            stays[-1] = (stays[-1][0], row.round, cluster)
        else:
            stays.append((row.round, row.round, cluster))
    return stays


def _on(fill: str) -> str:
    """Black or white, whichever is read better on `fill` (relative luminance, WCAG 2)."""
    channels = [int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#FFFFFF"


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", metadata={"Software": ""})
    return buffer.getvalue()
