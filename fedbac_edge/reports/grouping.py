"""Which runs belong together, and by what the others differ.

A *benchmark* is a way to cut a data set over so many servers; runs of different benchmarks are never
compared. In it, an *entry* is one method with one set of settings, over all its seeds. Settings are told as
what they differ by from the preset under that method, in the words of `fedbac simulate --set`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from fedbac_edge.lab import presets
from fedbac_edge.lab.scenario import Cut, Scenario, ScenarioError
from fedbac_edge.reports.reading import Run
from fedbac_edge.settings.federation import Federation

APART = ("name", "seed", "gateways", "model.input", "model.classes", "model.mean", "model.std")
"""What belongs to the benchmark or the run, not to the settings of a method."""


@dataclass(frozen=True)
class Entry:
    """One method with one set of settings. `runs` in the order of their seeds, one for each."""

    method: str
    differs: tuple[str, ...]
    """Settings unlike the preset's, but for those that the whole benchmark shares: "rounds=50"."""
    label: str
    """The method and what differs, short; no other entry of the benchmark has it."""
    plain: bool
    """True when nothing at all differs from the preset: only then a paper's figure stands beside."""
    runs: tuple[Run, ...]

    @property
    def finished(self) -> tuple[Run, ...]:
        """Runs with a result."""
        return tuple(run for run in self.runs if run.finished)

    @property
    def counted(self) -> tuple[Run, ...]:
        """What its figures are taken from: the finished runs, or while there are none, the others."""
        return self.finished or self.runs


@dataclass(frozen=True)
class Benchmark:
    """Runs on one data set cut in one way."""

    cut: Cut
    """Of any run: seeds differ."""
    servers: int
    clients: int
    shared: tuple[str, ...]
    """Settings unlike the preset's in every entry."""
    entries: tuple[Entry, ...]
    remarks: tuple[str, ...]
    """What a reader must know before comparing."""

    @property
    def data(self) -> str:
        """The data set's name, or its file's."""
        return Path(self.cut.data).name or self.cut.data

    @property
    def title(self) -> str:
        """For headings: data, Dirichlet parameters, form."""
        groups = f" {self.cut.groups} groups" if self.cut.groups else ""
        samples = f", {self.cut.samples} samples" if self.cut.samples else ""
        drift = f", drift in round {self.cut.drift_round}" if self.cut.drift_round else ""
        tiers = f"{self.servers} {'server' if self.servers == 1 else 'servers'} x {self.clients} clients"
        if self.cut.form == "annotation":
            return (
                f"{self.data}, annotation {self.cut.annotation}, {100 * self.cut.labelled:g} % labelled, "
                f"alpha {self.cut.alpha_client:g}, {tiers}{samples}"
            )
        return (
            f"{self.data}, alpha {self.cut.alpha_server:g}/{self.cut.alpha_client:g}, "
            f"{self.cut.form}{groups}, {tiers}{samples}{drift}"
        )

    @property
    def measure(self) -> str:
        """What its accuracies are called; with one server nothing is distributed."""
        return "accuracy" if self.servers == 1 else "distributed accuracy"

    @property
    def runs(self) -> tuple[Run, ...]:
        """All, entry after entry."""
        return tuple(run for entry in self.entries for run in entry.runs)


def benchmarks(runs: Iterable[Run]) -> list[Benchmark]:
    """Runs sorted into benchmarks and entries, in the order of the first run of each benchmark."""
    found: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        cut = msgspec.structs.replace(run.scenario.cut, seed=0, allow_tiny=False)
        model = run.scenario.federation.model
        gateways = run.scenario.federation.gateways
        devices = max(map(len, gateways.values()), default=0)
        found[msgspec.structs.astuple(cut), len(gateways), devices, model.classes, model.input].append(run)
    return [_benchmark(key[1], key[2], group) for key, group in found.items()]


def _benchmark(servers: int, clients: int, runs: Sequence[Run]) -> Benchmark:
    by_settings: dict[tuple[tuple[str, Any], ...], list[Run]] = defaultdict(list)
    for run in runs:
        by_settings[tuple(sorted((settings(run.scenario) | dict(run.options)).items()))].append(run)
    groups = list(by_settings.values())
    differing = [_differing(group[0]) for group in groups]
    if len(groups) == 1:  # alone, it keeps its name, and the rest is said above its tables
        shared = set(_by_name(groups[0][0], set())[1].items())
    else:
        shared = set.intersection(*(set(each.items()) for each in differing))
    remarks: list[str] = []
    entries = []
    for group in groups:
        method, own = _by_name(group[0], shared)
        label = method + (f" ({', '.join(_short(*each) for each in own.items())})" if own else "")
        said = tuple(f"{name}={value}" for name, value in own.items())
        entries.append(Entry(method, said, label, not (shared or own), _one_per_seed(group, remarks)))
    entries = _distinct(sorted(entries, key=lambda e: (_rank(e.method), len(e.differs), e.differs)))
    return Benchmark(
        cut=runs[0].scenario.cut,
        servers=servers,
        clients=clients,
        shared=tuple(f"{name}={value}" for name, value in sorted(shared)),
        entries=tuple(entries),
        remarks=(*_partitions(entries), *remarks),
    )


def _by_name(run: Run, shared: set[tuple[str, str]]) -> tuple[str, dict[str, str]]:
    """The method's name and what still differs: fedbac with a fixed assignment *is* another method.

    The name that leaves the fewest settings to be said; among equals, the one that it was asked for under.
    """
    asked = run.scenario.method or run.scenario.federation.method.name
    names = [] if run.flat else list(presets.METHODS)
    whole = {name: set(_differing(run, name).items()) for name in names}
    whole = {asked: set(_differing(run).items())} | whole
    name = min(whole, key=lambda name: (len(whole[name] - shared), name != asked, len(whole[name])))
    return name, dict(sorted(whole[name] - shared))


LONG = 12


def _short(name: str, value: str) -> str:
    """A setting in a label: "participation 1", "assignment argmin"."""
    table, _, key = name.rpartition(".")
    word = table if key in ("method", "name") else name if key in ("alpha", "drop") else key.replace("_", " ")
    return f"{word} {value if len(value) <= LONG else value[: LONG - 3] + '...'}"


def _distinct(entries: Sequence[Entry]) -> list[Entry]:
    """Where two labels became alike by being short, the whole settings tell them apart, or the laboratory."""
    labels = [entry.label for entry in entries]
    return [
        replace(entry, label=_whole_label(entry)) if labels.count(entry.label) > 1 else entry
        for entry in entries
    ]


def _whole_label(entry: Entry) -> str:
    flat = ["flat"] if entry.runs[0].flat else []
    said = ", ".join([*flat, *entry.differs])
    return f"{entry.method} ({said})" if said else entry.method


def settings(scenario: Scenario) -> dict[str, Any]:
    """Everything that may change the result but the data: dotted name -> value."""
    flat = _flat(msgspec.to_builtins(scenario.federation))
    flat = {name: value for name, value in flat.items() if name not in APART}
    faults = msgspec.to_builtins(scenario.faults)
    return flat | {f"faults.{name}": value for name, value in faults.items()}


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{above}{name}"
        if path == "method.places":
            flat[path] = ",".join(str(value[gateway]) for gateway in sorted(value))
        elif isinstance(value, dict) and path != "gateways":
            flat |= _flat(value, f"{path}.")
        else:
            flat[path] = value
    return flat


def _rank(method: str) -> tuple[int, str]:
    names = list(presets.METHODS)
    return (names.index(method) if method in names else len(names), method)


def _differing(run: Run, method: str = "") -> dict[str, str]:
    """Settings unlike those of the preset (or of a federation's defaults) under `method`, or its own."""
    scenario = run.scenario
    reference = settings(_reference(scenario, method or scenario.method)) | {"holdout": False}
    given = settings(scenario) | {name: value for name, value in run.options.items() if name != "method"}
    return {name: _word(value) for name, value in sorted(given.items()) if value != reference.get(name)}


def _reference(scenario: Scenario, method: str) -> Scenario:
    federation = scenario.federation
    try:
        reference = presets.preset(scenario.preset)
    except ScenarioError:
        plain = Federation(name=federation.name, eligibility="roster", model=federation.model)
        reference = Scenario(federation=plain, cut=scenario.cut)
    try:
        return presets.with_method(reference, method)
    except ScenarioError:
        return reference


def _word(value: Any) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _one_per_seed(runs: Sequence[Run], remarks: list[str]) -> tuple[Run, ...]:
    """The furthest run of each seed and partition: the same run twice would make a deviation too small."""
    kept: dict[tuple[int, str], Run] = {}
    for run in runs:
        other = kept.get((run.seed, run.partition))
        if other is None:
            kept[run.seed, run.partition] = run
            continue
        first, second = (run, other) if _progress(run) > _progress(other) else (other, run)
        kept[run.seed, run.partition] = first
        remarks.append(f"{_place(second)} repeats the run in {_place(first)} and is not counted.")
    return tuple(sorted(kept.values(), key=lambda run: (run.seed, run.scenario.cut.seed, run.partition)))


def _place(run: Run) -> str:
    """Enough of its path to be found, and no more: reports are passed on."""
    return f"{run.folder.parent.name}/{run.folder.name}"


def _progress(run: Run) -> tuple[bool, int]:
    return run.finished, run.rounds


def _partitions(entries: Sequence[Entry]) -> list[str]:
    """Remarks where entries stand on different data."""
    remarks = []
    hashes: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        for run in entry.runs:
            hashes[run.scenario.cut.seed][run.partition].append(run.folder.name)
    for seed, found in sorted(hashes.items()):
        if len(found) > 1:
            which = "; ".join(f"{digest[:12]}: {', '.join(names)}" for digest, names in found.items())
            remarks.append(
                f"The runs of partition seed {seed} are on different partitions ({which}): their figures "
                "are not comparable one by one."
            )
    sets = {entry.label: frozenset(run.partition for run in entry.counted) for entry in entries}
    if len(set(sets.values())) > 1:
        which = "; ".join(f"{entry.label}: {seeds(entry.counted)}" for entry in entries)
        remarks.append(
            f"Means are not over the same partitions (seeds of {which}); differences on equal partitions "
            "stand in a table of their own."
        )
    return remarks


def seeds(runs: Iterable[Run]) -> str:
    """For example "1, 2"; with the partition's where it is another one."""
    return ", ".join(
        str(run.seed)
        if run.seed == run.scenario.cut.seed
        else f"{run.seed} (partition {run.scenario.cut.seed})"
        for run in runs
    )
