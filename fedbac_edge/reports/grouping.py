"""Which runs belong together, and by what the others differ.

A *benchmark* is a way to cut a data set over so many servers; runs of different benchmarks are never
compared. In it, an *entry* is one method with one set of settings, over all its seeds. Settings are told as
what they differ by from the preset under that method, in the words of `fedbac simulate --set`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fedbac_edge.federation import Federation
from fedbac_edge.reports.reading import Run
from fedbac_edge.simulation import presets
from fedbac_edge.simulation.scenario import Cut, Scenario, ScenarioError

APART = ("name", "seed", "gateways", "model.input", "model.classes", "model.mean", "model.std")
"""What belongs to the benchmark or the run, not to the settings of a method."""


@dataclass(frozen=True)
class Entry:
    """One method with one set of settings. `runs` in the order of their seeds, one for each."""

    method: str
    differs: tuple[str, ...]
    """Settings unlike the preset's, but for those that the whole benchmark shares: "rounds=50"."""
    plain: bool
    """True when nothing at all differs from the preset: only then a paper's figure stands beside."""
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """The method, and what differs."""
        return f"{self.method} ({', '.join(self.differs)})" if self.differs else self.method

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
        return (
            f"{self.data}, alpha {self.cut.alpha_server:g}/{self.cut.alpha_client:g}, "
            f"{self.cut.form}{groups}, {self.servers} servers x {self.clients} clients{samples}{drift}"
        )

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
    by_settings: dict[tuple[str, tuple[tuple[str, Any], ...]], list[Run]] = defaultdict(list)
    for run in runs:
        by_settings[_method(run), tuple(sorted(settings(run.scenario).items()))].append(run)
    differing = {key: _differing(group[0].scenario) for key, group in by_settings.items()}
    shared = set.intersection(*(set(each) for each in differing.values())) if len(differing) > 1 else set()
    remarks: list[str] = []
    entries = []
    for key, group in by_settings.items():
        differs = tuple(each for each in differing[key] if each not in shared)
        kept = _one_per_seed(group, remarks)
        entries.append(Entry(key[0], differs, not differing[key], kept))
    entries.sort(key=lambda entry: (_rank(entry.method), len(entry.differs), entry.differs))
    return Benchmark(
        cut=runs[0].scenario.cut,
        servers=servers,
        clients=clients,
        shared=tuple(sorted(shared)),
        entries=tuple(entries),
        remarks=(*_partitions(entries), *remarks),
    )


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


def _method(run: Run) -> str:
    return run.scenario.method or run.scenario.federation.method.name


def _rank(method: str) -> tuple[int, str]:
    names = list(presets.METHODS)
    return (names.index(method) if method in names else len(names), method)


def _differing(scenario: Scenario) -> tuple[str, ...]:
    """Settings unlike those of the preset (or of a federation's defaults) under the same method."""
    reference = settings(_reference(scenario))
    return tuple(
        f"{name}={_word(value)}"
        for name, value in sorted(settings(scenario).items())
        if value != reference.get(name)
    )


def _reference(scenario: Scenario) -> Scenario:
    federation = scenario.federation
    try:
        reference = presets.preset(scenario.preset)
    except ScenarioError:
        plain = Federation(name=federation.name, eligibility="roster", model=federation.model)
        reference = Scenario(federation=plain, cut=scenario.cut)
    try:
        return presets.with_method(reference, scenario.method)
    except ScenarioError:
        table = msgspec.structs.replace(reference.federation.method, name=federation.method.name)
        return msgspec.structs.replace(
            reference, federation=msgspec.structs.replace(reference.federation, method=table)
        )


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
        remarks.append(f"{second.folder} repeats the run in {first.folder} and is not counted.")
    return tuple(sorted(kept.values(), key=lambda run: (run.seed, run.scenario.cut.seed, run.partition)))


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
