"""A run is a folder: what was simulated, with what, and all that came of it.

    run.json          the scenario, versions, partition hash
    partition.npz     which device owns which sample
    annotation.npz    and whether it knows its label, with the form "annotation"
    metrics.jsonl     one line per phase (`journal`)
    stores/           the stores of all processes: their ledgers explain every decision
    models/           the final parts, safetensors
    result.json       final figures and hashes; the run is over when it is there
    scratch/          laid-out samples while it goes on

A run that was killed goes on with `resume`, to the same hashes.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import msgspec

from fedbac_edge import __version__
from fedbac_edge.datasets.annotation import Annotation, annotate
from fedbac_edge.datasets.partition import Partition, dirichlet
from fedbac_edge.datasets.samples import UNLABELLED, Samples
from fedbac_edge.datasets.sources import load, load_test
from fedbac_edge.datasets.subset import subset
from fedbac_edge.host.signals import Stop
from fedbac_edge.lab import folder as run_folder
from fedbac_edge.lab.engine import Engine
from fedbac_edge.lab.fleet.grounds import Grounds, lay_out
from fedbac_edge.lab.fleet.journal import Journal, Row
from fedbac_edge.lab.fleet.laboratory import Laboratory, hashes
from fedbac_edge.lab.folder import write_whole
from fedbac_edge.lab.machine import check_machine, host, now
from fedbac_edge.lab.scenario import Scenario, ScenarioError, check

LAST = 10
"""Rounds of the mean that is reported beside the last one."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """run.json."""

    scenario: Scenario
    software: str
    machine: dict[str, str]
    """Versions and the training path: equal hashes need them equal."""
    partition: str
    """Content hash of annotation.npz where there is one, else of partition.npz."""
    began: str = ""
    """Date and time, UTC. Told in reports, never compared."""
    host: str = ""
    """Processor and system: the same. What results depend on stands in `machine`."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """result.json: accuracies in [0, 1], distributed (mean over servers) on test partitions."""

    rounds: int
    accuracy: float
    """After the last round."""
    accuracy_last: float
    """Mean over the last ten rounds."""
    sigma: float
    worst: float
    best: float
    active_clusters: int
    parts: dict[str, str]
    """Final part -> content hash."""
    hash: str
    """One hash over all of them."""


def read_about(folder: Path) -> About:
    """What run.json says; raises ScenarioError when there is no run in `folder`."""
    return run_folder.read_about(folder, About, ScenarioError)


def read_result(folder: Path) -> Result | None:
    """The result of a finished run, None while it is not finished. Raises ScenarioError."""
    return run_folder.read_result(folder, Result, ScenarioError)


def simulate(
    scenario: Scenario,
    folder: Path,
    data: Path,
    engine: Engine,
    *,
    resume: bool = False,
    tell: Callable[[Row], None] = lambda row: None,
) -> Result:
    """Run `scenario` on the data set at `data` into `folder`; `tell` gets each row as it is written.

    With `resume` an unfinished run of the same scenario goes on, a finished one gives its result. Raises
    ScenarioError (the folder holds another run, or one and not `resume`), DataError, PartitionError,
    PoolError, and Interrupted when `engine.stop` says so.
    """
    check(scenario)
    with run_folder.held(folder, ScenarioError):
        if (folder / "run.json").exists():
            stored = read_about(folder)
            run_folder.check_same(
                folder, stored.scenario == scenario, stored.software, "simulate", resume, ScenarioError
            )
            if (result := read_result(folder)) is not None:
                return result
        else:  # a beginning that never came to its run.json may have been another scenario's
            for name in ("partition.npz", "annotation.npz"):
                (folder / name).unlink(missing_ok=True)
        grounds = grounds_of(scenario, folder, data, engine.stop)
        engine.stop.check()
        about = About(
            scenario=scenario,
            software=__version__,
            machine=engine.machine(grounds.run),
            partition=_digest(folder),
            began=now(),
            host=host(),
        )
        if not (folder / "run.json").exists():
            write_whole(folder / "run.json", msgspec.json.format(msgspec.json.encode(about)))
        else:
            check_machine(folder, read_about(folder).machine, about.machine, "simulate", ScenarioError)
        with contextlib.closing(Journal(folder / "metrics.jsonl")) as journal:
            parts = Laboratory(scenario, grounds, engine, folder / "stores").run(journal, tell)
            result = _result(journal.rows, hashes(parts))
        (folder / "models").mkdir(exist_ok=True)
        for name, data_bytes in parts.items():
            write_whole(folder / "models" / f"{name}.safetensors", data_bytes)
        write_whole(folder / "result.json", msgspec.json.format(msgspec.json.encode(result)))
        shutil.rmtree(folder / "scratch")
        return result


def grounds_of(scenario: Scenario, folder: Path, data: Path, stop: Stop | None = None) -> Grounds:
    """Read, cut and lay out the data in a run's folder; a run that was begun keeps its partition.

    Raises DataError, PartitionError and Interrupted.
    """
    stop = stop or Stop()
    federation, cut = scenario.federation, scenario.cut
    classes, shape = federation.model.classes, federation.model.input
    train = load(data, classes=classes, input_shape=shape, resize=cut.resize)
    stop.check()
    train, test = load_test(data, train, classes=classes, input_shape=shape, resize=cut.resize)
    stop.check()
    train = subset(train, cut.samples, cut.seed, "simulation", "subset", "train")
    test = subset(test, cut.test_samples, cut.seed, "simulation", "subset", "test")
    path = folder / "partition.npz"
    if cut.form == "annotation":
        annotation = _annotation(scenario, folder, train)
        partition = annotation.partition(len(federation.gateways), train.y, test.y, len(classes))
        partition.save(path)
        train = Samples(train.x, annotation.hide(train.y))
    elif path.exists():
        partition = Partition.load(path)
        partition.check_labels(train.y, test.y)
    else:
        partition = dirichlet(
            train.y,
            test.y,
            servers=len(federation.gateways),
            clients=len(next(iter(federation.gateways.values()))),
            alpha_server=cut.alpha_server,
            alpha_client=cut.alpha_client,
            seed=cut.seed,
            form=cut.form,
            groups=cut.groups,
            classes=len(classes),
            allow_tiny=cut.allow_tiny,
        )
        partition.save(path)
    stop.check()
    if cut.unlabelled_devices:
        train = _without_labels(train, partition, cut.unlabelled_devices)
    return lay_out(folder / "scratch", federation, partition, train, test)


def _without_labels(train: Samples, partition: Partition, devices: int) -> Samples:
    """`train` with no label left at the last `devices` of each server."""
    y = train.y.copy()
    for clients in partition.train:
        for indices in clients[-devices:]:
            y[indices] = UNLABELLED
    return Samples(train.x, y)


def _annotation(scenario: Scenario, folder: Path, train: Samples) -> Annotation:
    """The split of a run that was begun, or a new one."""
    path, cut = folder / "annotation.npz", scenario.cut
    if path.exists():
        stored = Annotation.load(path)
        stored.check_labels(train.y)
        return stored
    annotation = annotate(
        train.y,
        clients=sum(len(devices) for devices in scenario.federation.gateways.values()),
        setting=cut.annotation,
        share=cut.labelled,
        alpha=cut.alpha_client,
        seed=cut.seed,
    )
    annotation.save(path)
    return annotation


def _digest(folder: Path) -> str:
    annotation = folder / "annotation.npz"
    return (
        Annotation.load(annotation).digest
        if annotation.exists()
        else Partition.load(folder / "partition.npz").digest
    )


def _result(rows: list[Row], parts: dict[str, str]) -> Result:
    training = [row for row in rows if row.phase == "train"]
    final = training[-1]
    assert final.accuracy is not None
    assert final.sigma is not None
    assert final.worst is not None
    assert final.best is not None
    return Result(
        rounds=final.round,
        accuracy=final.accuracy,
        accuracy_last=fmean(row.accuracy for row in training[-LAST:] if row.accuracy is not None),
        sigma=final.sigma,
        worst=final.worst,
        best=final.best,
        active_clusters=final.active_clusters,
        parts=parts,
        hash=run_folder.hash_over(parts),
    )
