"""`fedbac semi`: HASSLE and the methods that it is compared with, in a flat federation on this machine."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbac_edge.commands.engines import check_engine, engine_options, start_engine
from fedbac_edge.commands.failures import Failed, Misconfigured, explained, stopped_run
from fedbac_edge.commands.options import FILE, given, json_option, labels_option
from fedbac_edge.host import output, signals

if TYPE_CHECKING:
    from fedbac_edge.lab.flat.rows import Row
    from fedbac_edge.lab.flat.run import Result
    from fedbac_edge.lab.flat.study import Study


@click.command()
@click.argument("method", required=False, metavar="[METHOD]")
@click.option("--data", default="fashion-mnist", show_default=True, help="A name of `fedbac data list`.")
@click.option("--path", type=FILE, help="Path of the data set, if it is not found.")
@click.option("--architecture", default="lenet", show_default=True, help="A model of the catalogue.")
@labels_option("Samples with a label: 0.1 or 10%.")
@click.option(
    "--setting", default="default", show_default=True, help="Which clients have labels: default, PL, LPL ..."
)
@click.option("--alpha", type=float, default=0.1, show_default=True, help="Smaller: clients differ more.")
@click.option("--clients", type=click.IntRange(1, 9999), default=20, show_default=True)
@click.option(
    "--selected", type=click.IntRange(1), default=8, show_default=True, help="Clients drawn in each round."
)
@click.option("--rounds", type=click.IntRange(1), default=200, show_default=True)
@click.option("--epochs", type=click.IntRange(1), default=10, show_default=True, help="Local epochs.")
@click.option("--batch-size", type=click.IntRange(1), default=128, show_default=True)
@click.option("--learning-rate", type=float, default=0.1, show_default=True)
@click.option("--momentum", type=float, default=0.9, show_default=True)
@click.option(
    "--clip-norm",
    type=float,
    help="Bound of the gradient's norm; 0: none. [default: 1 for LeNets, which collapse without it]",
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seeds every draw.")
@click.option("--samples", type=click.IntRange(1), help="Use only this many training samples.")
@click.option("--test-samples", type=click.IntRange(1), help="Use only this many test samples.")
@click.option("--holdout", is_flag=True, help="Test on a tenth of the training data: for choosing settings.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the method; may be repeated."
)
@engine_options
@click.option("--out", type=FILE, metavar="DIR", help="The run's folder. [default: runs/DATA-METHOD-seedN]")
@click.option("--resume", is_flag=True, help="Go on with a run that was stopped.")
@json_option("JSON lines instead of a table.")
@click.pass_context
def semi(
    context: click.Context,
    /,
    method: str | None,
    path: Path | None,
    workers: int | None,
    engine: str,
    ray_address: str | None,
    out: Path | None,
    resume: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare methods of semi-supervised federated learning: one server, flat clients, few labels.

    METHOD is fedavg, fedprox, mixmatch, fixmatch, fedmatch, rscfed or hassle. The same seed gives the same
    split, the same draws and the same first model to each of them, and the same results with any number of
    workers, after a kill and --resume too.

    \b
    Example: HASSLE on Fashion-MNIST, a tenth of it labelled, or a twentieth
      fedbac semi hassle --rounds 60
      fedbac semi hassle --rounds 60 --labels 5%
    Example: a baseline, an ablation, and pseudo-labels with residuals of the same round
      fedbac semi fedmatch --rounds 60
      fedbac semi hassle --rounds 60 --set align_residuals=false
      fedbac semi hassle --rounds 60 --set pairing=paper
    """
    from fedbac_edge.datasets import official
    from fedbac_edge.lab.engine import PoolError
    from fedbac_edge.lab.flat.run import read_about, run
    from fedbac_edge.lab.flat.study import StudyError, StudyFailed

    check_engine(engine, ray_address)
    output.not_needed()
    try:
        with signals.stopping(signals.UNWIND_S, code=1) as stop, explained():
            if method is None:
                if out is None or not resume:
                    raise click.UsageError("give a method, or --resume with --out")
                if flag := given(context, options):
                    raise click.UsageError(f"{flag}: a run goes on with the settings that it has")
                study = read_about(out).study
            else:
                study = _study(method, **options)
            place = path or official.locate(study.data, "--path")
            out = out or Path("runs") / f"{study.data}-{study.method}-seed{study.seed}"
            with (
                contextlib.closing(
                    start_engine(engine, workers, ray_address, study.selected, stop)
                ) as started,
                _showing(study, as_json) as view,
            ):
                view.began(study, out)
                result = run(
                    study,
                    out,
                    place,
                    started,
                    resume=resume,
                    tell=view.row,
                    watch=view.went_on,
                )
                view.ended(result, out)
    except StudyError as error:
        raise Misconfigured(str(error)) from error
    except (StudyFailed, PoolError) as error:
        raise Failed(str(error)) from error
    except signals.Interrupted:
        raise stopped_run("semi", out) from None


def _study(method: str, settings: tuple[str, ...], **options: Any) -> Study:
    from fedbac_edge.lab.flat.run import check_whole
    from fedbac_edge.lab.flat.study import Option, Study, StudyError, Training

    names = ("epochs", "batch_size", "learning_rate", "momentum", "clip_norm")
    chosen = {name: options.pop(name) for name in names}
    if chosen["clip_norm"] is None and options["architecture"].startswith("lenet"):
        chosen["clip_norm"] = 1.0
    training = Training(**{**chosen, "clip_norm": chosen["clip_norm"] or None})
    own: dict[str, Option] = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator or not name:
            raise StudyError(f"--set {setting!r}: give NAME=VALUE")
        own[name.strip().replace("-", "_")] = value.strip()
    return check_whole(Study(method=method, training=training, options=own, **options))


class _Lines:
    """A line per round."""

    def say(self, text: str) -> None:
        click.echo(text)

    def began(self, study: Study, out: Path) -> None:
        self.say(
            f"{study.method} on {study.data}: {study.clients} clients, {study.selected} in each of "
            f"{study.rounds} rounds, {100 * study.labels:g} % labelled ({study.setting}), alpha "
            f"{study.alpha:g}, seed {study.seed} -> {out}"
        )
        self.say("round  clients  steps     up  seconds  accuracy")

    def went_on(self, done: int, total: int) -> None:
        """Only a terminal has room for what goes on inside a round."""

    def row(self, row: Row) -> None:
        scores = "  ".join(f"{name} {100 * score.accuracy:.2f}" for name, score in row.views.items())
        self.say(
            f"{row.round:>5}  {len(row.clients):>7}  {row.steps:>5}  {row.up_bytes / 1e6:>2.1f} MB  "
            f"{row.wall_s:>7.1f}  {scores}"
        )

    def ended(self, result: Result, out: Path) -> None:
        for name, figures in result.views.items():
            self.say(
                f"{name}: accuracy {100 * figures.last:.2f} % "
                f"(mean of the last ten rounds {100 * figures.last_ten:.2f} %)"
            )
        self.say(f"models {result.hash}")
        self.say(f"next: fedbac report {out} (tables and pictures; several runs are set side by side)")


class _Terminal(_Lines):
    """The lines above bars: of the rounds with the time left, and of a round that lasts, client by client."""

    def __init__(self, rounds: int) -> None:
        from fedbac_edge.commands.progress import Bars

        self.bars = Bars(rounds, "this round")

    def say(self, text: str) -> None:
        self.bars.say(text)

    def went_on(self, done: int, total: int) -> None:
        self.bars.went_on(done, total)

    def row(self, row: Row) -> None:
        super().row(row)
        self.bars.ended(row.round)


class _Json(_Lines):
    """One object per line: {"event": "round" | "result", ...}."""

    def began(self, study: Study, out: Path) -> None:
        pass

    def row(self, row: Row) -> None:
        self._event("round", {}, row)

    def ended(self, result: Result, out: Path) -> None:
        self._event("result", {"out": str(out)}, result)

    def _event(self, event: str, more: dict[str, Any], value: Any) -> None:
        import msgspec

        self.say(json.dumps({"event": event, **more, **msgspec.to_builtins(value)}))


@contextlib.contextmanager
def _showing(study: Study, as_json: bool) -> Iterator[_Lines]:
    if as_json:
        yield _Json()
    elif sys.stdout.isatty():
        view = _Terminal(study.rounds)
        with view.bars:
            yield view
    else:
        yield _Lines()
