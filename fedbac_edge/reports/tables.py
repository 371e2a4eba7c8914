"""The tables of a report: what the paper's Tables II to V compare, as far as runs are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedbac_edge.lab import presets
from fedbac_edge.reports import paper
from fedbac_edge.reports.document import NONE, Table
from fedbac_edge.reports.grouping import Benchmark, Entry, seeds
from fedbac_edge.reports.merit import Merit, Spread, confidence, merit, spread
from fedbac_edge.reports.pairs import pairs


def overview(found: Sequence[Benchmark]) -> Table:
    """Methods by benchmarks: accuracy after the last round, ours and the paper's."""
    labels = sorted(
        {entry.label for benchmark in found for entry in benchmark.entries},
        key=lambda label: _order(found, label),
    )
    rows = []
    for label in labels:
        cells = []
        for benchmark in found:
            entry = next((entry for entry in benchmark.entries if entry.label == label), None)
            if entry is None:
                cells.append(NONE)
                continue
            theirs = _paper(benchmark, entry).accuracy
            cells.append(_final(entry) + (f" [{theirs}]" if theirs else ""))
        rows.append((label, *cells))
    return Table(
        f"{measures(found).capitalize()} after the last round, %; in brackets the paper's; * with settings "
        "that are named below",
        ("method", *(benchmark.title + (" *" if benchmark.shared else "") for benchmark in found)),
        tuple(rows),
    )


def measures(found: Sequence[Benchmark]) -> str:
    """What the accuracies of several benchmarks are called together."""
    return " or ".join(sorted({benchmark.measure for benchmark in found}, reverse=True))


def accuracy(benchmark: Benchmark) -> Table:
    """Final figures beside the paper's."""
    rows = []
    for entry in benchmark.entries:
        merits = [merit(run) for run in entry.counted]
        theirs = _paper(benchmark, entry)
        mean = spread([m.accuracy for m in merits]).mean
        gap = f"{100 * mean - theirs.number:+.2f}" if theirs.number is not None and entry.finished else NONE
        held = [m.holdout for m in merits if m.holdout is not None]
        rows.append(
            (
                entry.label,
                seeds(entry.counted),
                _final(entry),
                _percent(spread([m.accuracy_last for m in merits])),
                _percent(spread(held)) if held else NONE,
                theirs.accuracy or NONE,
                gap,
                _interval([m.accuracy for m in merits]),
            )
        )
    return Table(
        f"{benchmark.measure.capitalize()}, %: mean over seeds; where there are several, deviation and the "
        "95 % confidence interval of the mean (Student's t: with two or three seeds it is wide)",
        (
            "method",
            "seeds",
            "last round",
            "mean of last ten",
            "on hold-outs",
            "paper",
            "last round - paper",
            "95 % interval, last round",
        ),
        tuple(rows),
        frozenset({1}),
    )


def servers(benchmark: Benchmark) -> Table:
    """How servers differ after the last round, and where they are."""
    rows = []
    for entry in benchmark.entries:
        merits = [merit(run) for run in entry.counted]
        theirs = _paper(benchmark, entry)
        rows.append(
            (
                entry.label,
                _percent(spread([m.sigma for m in merits])),
                _percent(spread([m.worst for m in merits])),
                _percent(spread([m.best for m in merits])),
                theirs.sigma or NONE,
                theirs.worst or NONE,
                _plain(spread([float(m.active_clusters) for m in merits])),
                _plain(spread([float(m.moves) for m in merits])),
            )
        )
    return Table(
        "Across servers, last round, %: deviation sigma, worst and best server; clusters in use, and moves "
        "of servers in the whole run",
        ("method", "sigma", "worst", "best", "paper's sigma", "paper's worst", "active clusters", "moves"),
        tuple(rows),
    )


def classes(benchmark: Benchmark) -> Table | None:
    """Accuracy class by class after the last round; None where no run has it (studies, unfinished ones)."""
    entries = [
        (entry, merits)
        for entry in benchmark.entries
        if (merits := [m for run in entry.counted if (m := merit(run)).classes])
    ]
    if not entries:
        return None
    rows = []
    for number, name in enumerate(benchmark.runs[0].scenario.federation.model.classes):
        cells = []
        for _, merits in entries:
            there = [share for m in merits if (share := m.classes[number]) is not None]
            cells.append(_percent(spread(there)) if there else NONE)
        rows.append((name, *cells))
    return Table(
        "Accuracy of each class after the last round, %: test samples of all servers together, each named by "
        "its own server's model",
        ("class", *(entry.label for entry, _ in entries)),
        tuple(rows),
    )


def views(benchmark: Benchmark) -> Table | None:
    """Every model that a method gives, where one gives several; None when none does."""
    rows = []
    for entry in benchmark.entries:
        merits = [merit(run) for run in entry.counted]
        for name in merits[0].views:
            there = [m.views[name] for m in merits if name in m.views]
            last, ten = spread([v.accuracy for v in there]), spread([v.accuracy_last for v in there])
            rows.append((entry.label, name, _percent(last), _percent(ten)))
    if not rows:
        return None
    return Table(
        "Accuracy of each view (the models that a method offers; the figures above are of the served one), %",
        ("method", "view", "last round", "mean of last ten"),
        tuple(rows),
        frozenset({1}),
    )


def target(benchmark: Benchmark, share: float) -> Table:
    """Rounds and bytes until a target was first reached."""
    rows = []
    for entry in benchmark.entries:
        merits = [merit(run, (share,)) for run in entry.counted]
        reached = [m.reached[share] for m in merits]
        there = [each for each in reached if each is not None]
        theirs = paper.ROUNDS_TO.get((benchmark.cut.data, benchmark.cut.alpha_server, entry.method, share))
        known = str(theirs) if theirs is not None and _comparable(benchmark, entry) else NONE
        which = f" ({len(there)} of {len(reached)} runs)" if there and len(there) < len(reached) else ""
        rows.append(
            (
                entry.label,
                _plain(spread([float(each.round) for each in there])) + which if there else "not reached",
                known,
                _size([each.bytes.single for each in there]),
                _size([each.bytes.sent for each in there]),
                _size([each.bytes.published for each in there]),
            )
        )
    return Table(
        f"To {100 * share:g} % (the first round at or above it), up and down together: one network per link "
        "as papers count, everything really sent, and what MQTT carried",
        ("method", "rounds", "paper's rounds", "MB, one network", "MB, sent", "MB, MQTT"),
        tuple(rows),
    )


def whole(benchmark: Benchmark) -> Table:
    """Bytes of the whole run."""
    rows = []
    for entry in benchmark.entries:
        merits = [merit(run) for run in entry.counted]
        rows.append(
            (
                entry.label,
                _plain(spread([float(m.rounds) for m in merits])),
                _size([m.bytes.single for m in merits]),
                _size([m.bytes.sent for m in merits]),
                _size([m.bytes.published for m in merits]),
            )
        )
    return Table(
        "In the whole run, up and down together",
        ("method", "rounds", "MB, one network", "MB, sent", "MB, MQTT"),
        tuple(rows),
    )


def differences(benchmark: Benchmark) -> Table | None:
    """The first method minus each other one on equal partitions; None without a pair of finished runs."""
    rows = []
    for pair in pairs(benchmark.entries):
        gain = NONE
        if pair.question.startswith("Thompson") and _paper_setting(benchmark):
            gain = paper.THOMPSON_GAIN.get((benchmark.cut.data, benchmark.cut.alpha_server), NONE)
        rows.append(
            (
                f"{pair.base} - {pair.other}",
                pair.question or NONE,
                ", ".join(map(str, pair.seeds)),
                _points(pair.accuracy),
                _points(pair.accuracy_last),
                gain,
                _points(pair.sigma),
                f"{pair.wins} : {pair.losses}",
            )
        )
    if not rows:
        return None
    return Table(
        "Differences on equal partitions, in points: mean over seeds and deviation; servers that the first "
        "serves better : worse",
        (
            "pair",
            "question",
            "seeds",
            "last round",
            "mean of last ten",
            "paper",
            "sigma over servers",
            "servers",
        ),
        tuple(rows),
        frozenset({1, 2}),
    )


def runs(benchmark: Benchmark) -> Table:
    """Where every figure comes from."""
    rows = []
    for entry in benchmark.entries:
        for run in entry.runs:
            m = merit(run)
            state = "finished" if run.finished else "UNFINISHED"
            rows.append(
                (
                    run.folder.name,
                    f"{entry.method} ({', '.join(entry.differs)})" if entry.differs else entry.method,
                    seeds([run]),
                    f"{state}, {run.rounds} of {run.planned}",
                    f"{100 * m.accuracy:.2f}",
                    run.partition[:12],
                    f"{run.about.software}, {run.about.machine.get('training', '')}",
                    run.about.began or NONE,
                    ", ".join(filter(None, (run.about.host, run.about.machine.get("level")))) or NONE,
                )
            )
    return Table(
        "Runs",
        (
            "folder",
            "method",
            "seed",
            "rounds",
            "accuracy, %",
            "partition",
            "version, training path",
            "begun",
            "machine",
        ),
        tuple(rows),
        frozenset({1, 2, 3, 5, 6, 7, 8}),
    )


def _order(found: Sequence[Benchmark], label: str) -> tuple[int, str]:
    names = list(presets.METHODS)
    method = label.split(" (")[0]
    return (names.index(method) if method in names else len(names), label)


def _comparable(benchmark: Benchmark, entry: Entry) -> bool:
    """Does the paper's figure belong beside this entry?"""
    return entry.plain and _paper_setting(benchmark)


def _paper_setting(benchmark: Benchmark) -> bool:
    cut = benchmark.cut
    return (
        (benchmark.servers, benchmark.clients) == (paper.SERVERS, paper.CLIENTS)
        and cut.alpha_client == paper.ALPHA_CLIENT
        and cut.form in ("per-server", "per-class")
        and cut.samples is None
        and cut.test_samples is None
    )


def _paper(benchmark: Benchmark, entry: Entry) -> paper.Figures:
    if not _comparable(benchmark, entry):
        return paper.Figures()
    key = (benchmark.cut.data, benchmark.cut.alpha_server, entry.method)
    return paper.FIGURES.get(key, paper.Figures())


def _final(entry: Entry) -> str:
    """Accuracy after the last round, with a mark where the run goes on."""
    merits: list[Merit] = [merit(run) for run in entry.counted]
    text = _percent(spread([m.accuracy for m in merits]))
    if entry.finished:
        return text
    done = ", ".join(f"{run.rounds} of {run.planned}" for run in entry.counted)
    return f"{text} (UNFINISHED, round {done})"


def _percent(value: Spread) -> str:
    return _with_deviation(value, lambda share: f"{100 * share:.2f}")


def _interval(shares: Sequence[float]) -> str:
    """ "91.20 to 93.40"."""
    found = confidence(spread(shares))
    return NONE if found is None else f"{100 * found[0]:.2f} to {100 * found[1]:.2f}"


def _plain(value: Spread) -> str:
    return _with_deviation(
        value, lambda number: f"{number:.0f}" if number == round(number) else f"{number:.1f}"
    )


def _points(values: Sequence[float]) -> str:
    found = spread(values)
    mean = f"{100 * found.mean:+.2f}"
    return mean if found.deviation is None else f"{mean} ± {100 * found.deviation:.2f}"


def _with_deviation(value: Spread, word: Callable[[float], str]) -> str:
    return word(value.mean) if value.deviation is None else f"{word(value.mean)} ± {word(value.deviation)}"


def _size(counts: Sequence[int]) -> str:
    """Megabytes (10^6), the mean over runs."""
    if not any(counts):
        return NONE
    size = spread([float(count) for count in counts]).mean / 1e6
    return f"{size:,.0f}" if size >= 100 else f"{size:.1f}"
