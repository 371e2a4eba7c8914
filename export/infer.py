"""`infer`: answers for image files, folders, arrays, and whatever arrives in a watched directory."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from export.session import LARGEST_BATCH, InputError, ModelError, OtherSize, Prediction, Session, read_image
from fedbac_edge.datasets import picture, picture_files
from fedbac_edge.datasets.picture_files import PassedOver
from fedbac_edge.datasets.shown import shown
from fedbac_edge.host import signals

SUFFIXES = picture.SUFFIXES | {".npy"}
SERVED = Path("serving") / "model.onnx"
"""The model that `fedbac-agent serve` answers with, inside its state directory."""
Named = tuple[str, npt.NDArray[np.uint8]]


@click.command("infer")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--model",
    "model_path",
    envvar="FEDBAC_MODEL",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The exported model (.onnx). Default: the one that `fedbac-agent serve` answers with.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="State directory of that `serve`, when it is not the default one.",
)
@click.option(
    "--watch",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Answer for every file in this directory and for those that arrive, until interrupted.",
)
@click.option("--top", default=1, show_default=True, type=click.IntRange(1), help="Labels per image.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per image and line.")
@click.option("--fit", is_flag=True, help="Scale images of another size, instead of refusing.")
def infer(
    paths: tuple[Path, ...],
    model_path: Path | None,
    state: Path | None,
    watch: Path | None,
    top: int,
    as_json: bool,
    fit: bool,
) -> None:
    """Classify images: PATHS are image files, .npy arrays of raw pixels, or folders of them.

    \b
    Example:
      fedbac-agent infer photo.png
      fedbac-agent infer --model models/cluster-0.onnx --top 3 photos/
      fedbac-agent infer --watch inbox/ --json

    Exit code 0 when every image got its answer, 1 when some were refused, 2 when the model was.
    """
    if not paths and watch is None:
        raise click.UsageError("give image files or folders, or a directory to --watch")
    if model_path is None:
        if state is None or not (state / SERVED).is_file():
            where = f"nothing is served from {state} yet" if state else "no state directory is known"
            raise click.UsageError(f"give a --model ({where})")
        model_path = state / SERVED
    try:
        session = Session(model_path)
    except ModelError as error:
        where = "" if str(error).startswith(str(model_path)) else f"{model_path}: "
        click.echo(f"Error: {where}{error}", err=True)
        raise SystemExit(2) from error
    refused = 0
    for path in paths:
        if not path.is_dir():
            refused += answer(session, [path], top=top, as_json=as_json, fit=fit)
            continue
        passed = PassedOver()
        found = list(picture_files.walk(path, passed, suffixes=SUFFIXES))
        if not found:
            click.echo(f"{path}: no image in this folder ({', '.join(sorted(SUFFIXES))})", err=True)
        if passed.count:
            said = f"{path}: {passed.sentence()}"
            click.echo(json.dumps({"folder": str(path), "note": said}) if as_json else said, err=True)
        refused += answer(session, found, top=top, as_json=as_json, fit=fit)
    if watch is not None:
        with signals.stopping() as stop:
            for path in arrivals(watch, stop):
                refused += answer(session, [path], top=top, as_json=as_json, fit=fit)
    if refused:
        raise SystemExit(1)


def answer(session: Session, paths: Iterable[Path], *, top: int, as_json: bool, fit: bool) -> int:
    """Print one line per image, in order; returns how many files were refused (a line each on stderr)."""
    refused = 0
    waiting: list[Named] = []

    def flush() -> None:
        if waiting:
            predictions = session.predict(np.stack([image for _, image in waiting]))
            for (name, _), prediction in zip(waiting, predictions, strict=True):
                click.echo(line(name, prediction, top=top, as_json=as_json))
            waiting.clear()
            sys.stdout.flush()

    for path in paths:
        try:
            for named in images(path, session, fit=fit):
                waiting.append(named)
                if len(waiting) == LARGEST_BATCH:
                    flush()
        except InputError as error:
            flush()
            refused += 1
            hint = "; --fit scales it, as --resize did in training" if isinstance(error, OtherSize) else ""
            why = f"{error}{hint}"
            text = json.dumps({"file": str(path), "error": why}) if as_json else f"refused: {why}"
            click.echo(text, err=True)
    flush()
    return refused


def line(name: str, prediction: Prediction, *, top: int, as_json: bool) -> str:
    """One answer as text, or as a JSON object with file, label, index, probability, logits and top."""
    ranked = prediction.top_k(top)
    if not as_json:
        return f"{name}: " + ", ".join(f"{label} {100 * share:.1f} %" for label, share in ranked)
    fields = {
        "file": name,
        "label": prediction.label,
        "index": prediction.index,
        "probability": round(prediction.probability, 6),
        "logits": [round(float(value), 6) for value in prediction.logits],
        "top": [{"label": label, "probability": round(share, 6)} for label, share in ranked],
    }
    # A name that is no text is JSON only in escapes; its reader gets the very same name.
    return json.dumps(fields, ensure_ascii=shown(name) != name)


def images(path: Path, session: Session, *, fit: bool = False) -> Iterator[Named]:
    """(name, pixels) of one file: an image, or a .npy array of one or many (named file[0], file[1], ...)."""
    if path.suffix.lower() != ".npy":
        yield str(path), read_image(path, session, fit=fit)
        return
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        batch = session.as_batch(array)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: {error}") from error
    for index, image in enumerate(batch):
        yield (str(path) if len(batch) == 1 else f"{path}[{index}]"), np.array(image)


def arrivals(directory: Path, stop: Callable[[], bool], *, interval: float = 0.2) -> Iterator[Path]:
    """Files of `directory` in name order, then each new or changed one, once it has stopped growing.

    Looks every `interval` seconds until `stop()` is true: no file system notifies on every device. Names that
    begin with a dot are left alone, so that writers can prepare a file under such a name.
    """
    done: dict[Path, tuple[int, int]] = {}
    before: dict[Path, tuple[int, int]] = {}
    while not stop():
        now = dict(_states(directory))
        for path in sorted(now):
            if done.get(path) != now[path] and before.get(path) == now[path]:
                done[path] = now[path]
                yield path
        done = {path: state for path, state in done.items() if path in now}
        before = now
        time.sleep(interval)


def _states(directory: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    for path in picture_files.contents(directory, PassedOver(), suffixes=SUFFIXES).files:
        try:
            status = path.stat()
        except OSError:  # gone again
            continue
        yield path, (status.st_size, status.st_mtime_ns)
