"""A run is a folder, as those of `fedbac simulate` are.

    run.json            the study, versions, and the hash of the split
    split.npz           which client has which sample, with or without its label
    metrics.jsonl       a line per round (`rows`)
    state.safetensors   the server's memory after the latest round, for --resume
    models/             the final served parts
    result.json         final figures and hashes; the run is over when it is there
    scratch/            laid-out samples while it goes on

A run that was killed goes on with `resume`, to the same hashes.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedbac_edge import __version__
from fedbac_edge.datasets import holdout
from fedbac_edge.datasets.annotation import Annotation, AnnotationError, annotate, mixture
from fedbac_edge.datasets.samples import Samples
from fedbac_edge.datasets.sources import load, load_test
from fedbac_edge.datasets.subset import subset
from fedbac_edge.lab import folder as run_folder
from fedbac_edge.lab.engine import Engine
from fedbac_edge.lab.flat.hall import Hall, lay_out
from fedbac_edge.lab.flat.jobs import Workers
from fedbac_edge.lab.flat.method import State, method_of
from fedbac_edge.lab.flat.rows import Row, opened
from fedbac_edge.lab.flat.server import Watch, rounds, unwatched
from fedbac_edge.lab.flat.study import Study, StudyError, check
from fedbac_edge.lab.fleet.run import LAST
from fedbac_edge.lab.folder import write_whole
from fedbac_edge.lab.machine import check_machine, host, now
from fedbac_edge.models.catalog import architecture
from fedbac_edge.models.description import UnknownArchitecture
from fedbac_edge.parts.part import digest, pack
from fedbac_edge.settings.pictures import MODELS


class About(msgspec.Struct, frozen=True, kw_only=True):
    """run.json."""

    study: Study
    software: str
    machine: dict[str, str]
    """Versions and the training path: equal hashes need them equal."""
    split: str
    """Content hash of the split."""
    began: str = ""
    """Date and time, UTC. Told in reports, never compared."""
    host: str = ""
    """Processor and system: the same."""


class Figures(msgspec.Struct, frozen=True):
    """A view's accuracy after the last round, and its mean over the last ten."""

    last: float
    last_ten: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """result.json."""

    rounds: int
    view: str
    accuracy: float
    accuracy_last: float
    """Mean over the last ten rounds."""
    views: dict[str, Figures]
    up_bytes: int
    down_bytes: int
    """Of the whole run."""
    steps: int
    parts: dict[str, str]
    """Served part -> content hash."""
    hash: str
    """One hash over all of them."""


def read_about(folder: Path) -> About:
    """What run.json says; raises StudyError when there is no run in `folder`."""
    return run_folder.read_about(folder, About, StudyError)


def run(
    study: Study,
    folder: Path,
    data: Path,
    engine: Engine,
    *,
    resume: bool = False,
    tell: Callable[[Row], None] = lambda row: None,
    watch: Watch = unwatched,
) -> Result:
    """Run `study` on the data set at `data` into `folder`.

    `tell` gets each row as it is written, `watch` is told what goes on inside a round.

    With `resume` an unfinished run of the same study goes on, a finished one gives its result. Raises
    StudyError (the folder holds another run, or one and not `resume`), StudyFailed, PoolError,
    DataError, and Interrupted when `engine.stop` says so.
    """
    stop = engine.stop
    check_whole(study)
    with run_folder.held(folder, StudyError):
        if (folder / "run.json").exists():
            stored = read_about(folder)
            run_folder.check_same(folder, stored.study == study, stored.software, "semi", resume, StudyError)
            if (found := run_folder.read_result(folder, Result, StudyError)) is not None:
                return found
        else:  # a beginning that never came to its run.json may have been another study's
            (folder / "split.npz").unlink(missing_ok=True)
        train, test = _samples(study, data)
        stop.check()
        split = _split(study, train, folder / "split.npz")
        hall = lay_out(folder / "scratch", study, split, train, test)
        del train, test
        stop.check()
        about = About(
            study=study,
            software=__version__,
            machine=engine.machine(hall.run),
            split=split.digest,
            began=now(),
            host=host(),
        )
        if not (folder / "run.json").exists():
            write_whole(folder / "run.json", msgspec.json.format(msgspec.json.encode(about)))
        else:
            stored = read_about(folder)
            begun = {**stored.machine, "split": stored.split[:12]}
            here = {**about.machine, "split": about.split[:12]}
            check_machine(folder, begun, here, "semi", StudyError)
        state, last = _stored(hall, folder / "state.safetensors")
        with contextlib.closing(opened(folder / "metrics.jsonl", last)) as table:

            def keep(state: State, row: Row) -> None:
                table.append(row)  # before the state: a line too many is cut off, one too few is lost
                _store(folder / "state.safetensors", state, row.round)
                tell(row)

            state = rounds(hall, Workers(engine, hall), state, last + 1, keep, watch)
            result = _result(hall, state, table.rows)
        (folder / "models").mkdir(exist_ok=True)
        for name in result.parts:
            write_whole(folder / "models" / f"{name}.safetensors", pack(state[name]))
        write_whole(folder / "result.json", msgspec.json.format(msgspec.json.encode(result)))
        shutil.rmtree(folder / "scratch")
        return result


def check_whole(study: Study) -> Study:
    """As `study.check`, with the names that stand for code: of data, model, setting and the method's options.

    Raises StudyError, before anything is read.
    """
    check(study)
    method_of(study.method, study.options)
    if study.data not in MODELS:
        raise StudyError(f"no data set is called {study.data!r}; there are: {', '.join(MODELS)}")
    about = MODELS[study.data]
    try:
        architecture(study.architecture, about.input, len(about.classes))
        mixture(study.setting, study.clients, study.labels)
    except (UnknownArchitecture, AnnotationError) as error:
        raise StudyError(str(error)) from error
    return study


def _samples(study: Study, data: Path) -> tuple[Samples, Samples]:
    """(to train on, to judge on)."""
    about = MODELS[study.data]
    train = load(data, classes=about.classes, input_shape=about.input)
    if study.holdout:
        return holdout.split(subset(train, study.samples, study.seed, "semi", "subset", "train"))
    train, test = load_test(data, train, classes=about.classes, input_shape=about.input)
    train = subset(train, study.samples, study.seed, "semi", "subset", "train")
    return train, subset(test, study.test_samples, study.seed, "semi", "subset", "test")


def _split(study: Study, train: Samples, path: Path) -> Annotation:
    """Which client has which sample; a run that was begun keeps its split."""
    if path.exists():
        split = Annotation.load(path)
        split.check_labels(train.y)
        return split
    split = annotate(
        train.y,
        clients=study.clients,
        setting=study.setting,
        share=study.labels,
        alpha=study.alpha,
        seed=study.seed,
    )
    split.save(path)
    return split


def _store(path: Path, state: State, round: int) -> None:
    tensors = {f"{part}/{name}": tensor for part in state for name, tensor in state[part].items()}
    write_whole(path, save(tensors, metadata={"round": str(round)}))


def _stored(hall: Hall, path: Path) -> tuple[State, int]:
    """The stored memory and the round that it was stored after; a fresh one at the start."""
    if not path.exists():
        return hall.method.begin(hall.bench), 0 - hall.method.opening
    state: dict[str, dict[str, np.ndarray]] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            last = int(file.metadata()["round"])
            for key in file.keys():  # noqa: SIM118  (not a mapping)
                part, _, name = key.partition("/")
                state.setdefault(part, {})[name] = file.get_tensor(key)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise StudyError(f"{path} is damaged: {error}; start the run anew in another folder") from error
    return state, last


def _result(hall: Hall, state: State, table: list[Row]) -> Result:
    views = hall.method.views(state)
    trained = [row for row in table if row.round > 0]  # round 0 is an exchange before the first one
    served = sorted({name for view in views.values() for name, _ in view})
    parts = {name: digest(pack(state[name])) for name in served}
    figures = {
        view: Figures(
            table[-1].views[view].accuracy, fmean(row.views[view].accuracy for row in trained[-LAST:])
        )
        for view in views
    }
    main = next(iter(views))
    return Result(
        rounds=table[-1].round,
        view=main,
        accuracy=figures[main].last,
        accuracy_last=figures[main].last_ten,
        views=figures,
        up_bytes=sum(row.up_bytes for row in table),
        down_bytes=sum(row.down_bytes for row in table),
        steps=sum(row.steps for row in table),
        parts=parts,
        hash=run_folder.hash_over(parts),
    )
