"""`fedbac export`: what a federation has learned, as ONNX files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedbac_edge.commands.failures import explained
from fedbac_edge.commands.options import FILE

if TYPE_CHECKING:
    from onnx import ModelProto

    from export.from_store import Cluster
    from export.quantise import Decision
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
@click.option("--part-logits", is_flag=True, help="Also what each part adds to the logits.")
@click.option(
    "--int8",
    "holdout",
    type=FILE,
    help="Labelled images: 8-bit weights where they lose at most 0.5 points on these and are faster here.",
)
@click.option(
    "--view", default="", help="Another of the method's models than the one that is served: SM, UM."
)
@click.option("--torchscript", is_flag=True, help="Beside each ONNX file the same as TorchScript (torch).")
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
    with explained():
        for cluster, path in export_all(state, out, input_kind, part_logits, holdout, click.echo, view):
            if torchscript:
                click.echo(save_torchscript(cluster, input_kind, path.with_suffix(".pt")))
            accuracy = "never evaluated" if cluster.accuracy is None else f"{100 * cluster.accuracy:.1f} %"
            click.echo(
                f"{path}  round {cluster.model.metadata['round']}, sites {', '.join(cluster.sites)}, "
                f"hold-out {accuracy}, {f'view {view}, ' if view else ''}{path.stat().st_size / 1000:.0f} kB"
            )


def export_all(
    state: Path,
    out: Path,
    input_kind: InputKind = "uint8",
    part_logits: bool = False,
    holdout: Path | None = None,
    say: Callable[[str], object] = lambda text: None,
    view: str = "",
) -> list[tuple[Cluster, Path]]:
    """Write OUT/cluster-K.onnx for every active cluster, or cluster-K-VIEW.onnx of a view asked for by name.

    Files of clusters left since are removed, those of other views are let be. With labelled images at
    `holdout`, in int8 where that pays; `say` is told each decision. Beside them go the parts as they are, for
    another federation to begin from (`fedbac init --from OUT`).
    """
    from export import from_store, graph
    from export.files import write_bytes
    from fedbac_edge import beginnings
    from fedbac_edge.store import Store

    store = Store(from_store.cloud_store(state), read_only=True)
    try:
        found = from_store.clusters(store, view)
        parts = beginnings.encode(from_store.weights(store))
    finally:
        store.close()
    out.mkdir(parents=True, exist_ok=True)
    write_bytes(parts, out / beginnings.EXPORTED)
    written = []
    for cluster in found:
        if holdout is None:
            proto = _in_float(cluster, input_kind, part_logits)
        else:
            proto, decision = _decided(cluster, holdout)
            say(f"cluster {cluster.number}: {decision}")
        name = f"cluster-{cluster.number}-{view}.onnx" if view else f"cluster-{cluster.number}.onnx"
        written.append((cluster, graph.write(proto, out / name)))
    current = {path for _, path in written}
    own = re.compile(rf"cluster-\d+{re.escape(f'-{view}' if view else '')}\.onnx")
    for path in set(out.glob("cluster-*.onnx")) - current:
        if own.fullmatch(path.name):
            path.unlink()
    return written


def save_torchscript(cluster: Cluster, input_kind: InputKind, path: Path) -> Path:
    """The same model as frozen TorchScript."""
    from export import torchscript

    return torchscript.save(
        torchscript.build(cluster.model, input_kind=input_kind), cluster.model, input_kind, path
    )


def _in_float(cluster: Cluster, input_kind: InputKind, part_logits: bool) -> ModelProto:
    from export import graph

    if graph.writes(cluster.model):
        return graph.build(cluster.model, input_kind=input_kind, part_logits=part_logits)
    from export import exporter  # needs torch

    return exporter.build(cluster.model, input_kind=input_kind, part_logits=part_logits)


def _decided(cluster: Cluster, holdout: Path) -> tuple[ModelProto, Decision]:
    from export import quantise
    from fedbac_edge.datasets import sources

    model = cluster.model
    images = sources.load(holdout, classes=model.classes, input_shape=model.architecture.input_shape)
    return quantise.decide(model, images.x, images.y)
