"""`fedbac demo`: a whole federation on this machine, on real images, in minutes."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedbac_edge.commands.failures import Failed, Misconfigured, explained
from fedbac_edge.commands.options import FILE, given, json_option, labels_option
from fedbac_edge.host import output, signals

if TYPE_CHECKING:
    from fedbac_edge.demo.settings import DemoMethod


@click.command()
@click.option(
    "--broker-kind",
    type=click.Choice(["auto", "mosquitto", "embedded"]),
    default="auto",
    show_default=True,
    help="auto: Mosquitto when it is installed.",
)
@click.option(
    "--method",
    type=click.Choice(["fedbac", "hassle"]),
    default="fedbac",
    show_default=True,
    help="hassle: 2 devices with all labels, 2 with some, 4 with none.",
)
@click.option("--out", type=FILE, help="Folder for all of it.  [default: demo/run-<time>]")
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True)
@click.option("--samples", type=click.IntRange(100), help="Training images.  [default: 20000; hassle: 12000]")
@click.option("--test-samples", type=click.IntRange(10), default=10_000, show_default=True)
@click.option(
    "--alpha-server", type=float, default=0.5, show_default=True, help="Smaller: sites differ more."
)
@click.option(
    "--alpha-client",
    type=float,
    default=0.5,
    show_default=True,
    help="The same inside a site; with hassle: of all devices.",
)
@labels_option("With --method hassle: images that keep their label, 0.1 or 10%.")
@click.option("--learning-rate", type=click.FloatRange(0, min_open=True), help="[default: the preset's]")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--allow-tiny", is_flag=True, help="Accept sites with fewer than 100 test samples.")
@click.option("--keep", is_flag=True, help="Leave broker, gateways and agents running until Ctrl-C.")
@json_option("The closing summary as JSON on stdout; the rounds go to stderr.")
@click.pass_context
def demo(
    context: click.Context,
    /,
    broker_kind: Any,
    method: DemoMethod,
    out: Path | None,
    as_json: bool,
    samples: int | None,
    labels: float,
    **options: Any,
) -> None:
    """Run broker, cloud, 2 gateways and 8 agents as processes on Fashion-MNIST, and test what they learn.

    \b
    Example:
      fedbac demo
      fedbac demo --method hassle --labels 0.2
      fedbac demo --broker-kind embedded --rounds 6 --json
    """
    if flag := given(context, ("alpha_server", "allow_tiny") if method == "hassle" else ("labels",)):
        raise click.UsageError(f"{flag} goes {'not' if method == 'hassle' else 'only'} with --method hassle")
    if missing := _missing():
        raise Misconfigured(f"the demo needs {', '.join(missing)}: pip install 'fedbac-edge[all]'")
    place = out or Path("demo") / time.strftime("run-%Y%m%d-%H%M%S")
    # Before anything heavy is imported: the first line appears at once.
    click.echo(
        f"fedbac demo: a federation of 2 gateways and 8 devices on Fashion-MNIST, in {place}", err=as_json
    )
    output.not_needed()
    with signals.stopping(signals.UNWIND_S, code=1, also=(signal.SIGHUP,)) as stop, explained():
        from fedbac_edge.demo import run
        from fedbac_edge.demo.children import ChildDied
        from fedbac_edge.demo.settings import SAMPLES, Settings
        from fedbac_edge.terminal.views import PlainView, showing

        if place.exists() and not place.is_dir():
            raise Misconfigured(f"{place} is a file; give a folder as --out")
        if place.exists() and any(place.iterdir()):
            raise Misconfigured(f"{place} is there already and not empty; give another --out")
        settings = Settings(
            out=place,
            method=method,
            broker=broker_kind,
            samples=samples or SAMPLES[method],
            labels=labels,
            **options,
        )
        try:
            if as_json:
                result = run.run(settings, PlainView(err=True), stop)
            else:
                with showing(settings.rounds) as view:
                    result = run.run(settings, view, stop)
        except ChildDied as error:
            raise Failed(str(error)) from error
        except signals.Interrupted as asked:
            click.echo(f"{run.interrupted_by(asked.number)}; every process has been ended", err=True)
            raise SystemExit(128 + asked.number) from None
    if as_json:
        click.echo(json.dumps({**run.as_json(result), "out": str(place)}, ensure_ascii=False))


def _missing() -> list[str]:
    """Packages that the demo needs and that are not installed: it trains, makes releases and answers."""
    import importlib.util

    needed = ("cryptography", "onnx", "onnxruntime", "torch")
    return [name for name in needed if importlib.util.find_spec(name) is None]
