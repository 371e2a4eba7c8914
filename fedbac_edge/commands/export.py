"""`fedbac export`: what a federation has learned, as ONNX files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbac_edge.commands.failures import explained
from fedbac_edge.commands.options import FILE

if TYPE_CHECKING:
    from export.from_store import Cluster
    from export.served import InputKind


@click.command()
@click.option("--state", type=FILE, required=True, help="The cloud's state directory.")
@click.option("--out", type=FILE, required=True, help="Folder for the models.")
@click.option(
    "--input",
    "input_kind",
    type=click.Choice(["uint8", "float"]),
    default="uint8",
    show_default=True,
    help="Raw pixels (normalisation inside the model), or normalised floats.",
)
@click.option("--part-logits", is_flag=True, help="Also output what each part adds to the logits.")
@click.option(
    "--int8",
    "holdout",
    type=FILE,
    help="Labelled images: 8-bit weights where they lose at most 0.5 points on these and are faster here.",
)
@click.option("--view", default="", help="Export another of the method's models than the served one: SM, UM.")
@click.option("--torchscript", is_flag=True, help="Also write each model as TorchScript (torch).")
def export(
    state: Path,
    out: Path,
    input_kind: InputKind,
    part_logits: bool,
    holdout: Path | None,
    view: str,
    torchscript: bool,
) -> None:
    """Write one ONNX file per cluster that sites belong to: the sum of its parts, in one graph.

    \b
    Example:
      fedbac export --state runs/orchard --out models
      fedbac export --state runs/orchard --out models --int8 holdout.npz
      fedbac-agent infer --model models/cluster-0.onnx photo.png
    """
    if holdout is not None and (input_kind != "uint8" or part_logits):
        raise click.UsageError("--int8 goes with neither --input float nor --part-logits")
    from export.clusters import export_all

    with explained():
        for cluster, path in export_all(state, out, input_kind, part_logits, holdout, click.echo, view):
            if torchscript:
                click.echo(save_torchscript(cluster, input_kind, path.with_suffix(".pt")))
            accuracy = "never evaluated" if cluster.accuracy is None else f"{100 * cluster.accuracy:.1f} %"
            click.echo(
                f"{path}  round {cluster.model.metadata['round']}, sites {', '.join(cluster.sites)}, "
                f"hold-out {accuracy}, {f'view {view}, ' if view else ''}{path.stat().st_size / 1000:.0f} kB"
            )


def save_torchscript(cluster: Cluster, input_kind: InputKind, path: Path) -> Path:
    """The same model as frozen TorchScript."""
    from export import torchscript

    return torchscript.save(
        torchscript.build(cluster.model, input_kind=input_kind), cluster.model, input_kind, path
    )
