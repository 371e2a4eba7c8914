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
@click.option("--part-logits", is_flag=True, help="Also what each part adds to the logits.")
def export(state: Path, out: Path, input_kind: InputKind, part_logits: bool) -> None:
    """Write one ONNX file per cluster that sites belong to: the sum of its parts, in one graph.

    \b
    Example:
      fedbac export --state runs/orchard --out models
      fedbac-agent infer --model models/cluster-0.onnx photo.png
    """
    with explained():
        for cluster, path in export_all(state, out, input_kind, part_logits):
            accuracy = "never evaluated" if cluster.accuracy is None else f"{100 * cluster.accuracy:.1f} %"
            click.echo(
                f"{path}  round {cluster.model.metadata['round']}, sites {', '.join(cluster.sites)}, "
                f"hold-out {accuracy}, {path.stat().st_size / 1000:.0f} kB"
            )


def export_all(
    state: Path, out: Path, input_kind: InputKind = "uint8", part_logits: bool = False
) -> list[tuple[Cluster, Path]]:
    """Write OUT/cluster-K.onnx for every active cluster; files of clusters left since are removed."""
    from export import from_store, graph
    from fedbac_edge.models.catalog import LeNet
    from fedbac_edge.store import Store

    store = Store(from_store.cloud_store(state), read_only=True)
    try:
        found = from_store.clusters(store)
    finally:
        store.close()
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for cluster in found:
        if isinstance(cluster.model.architecture, LeNet):
            proto = graph.build(cluster.model, input_kind=input_kind, part_logits=part_logits)
        else:
            from export import exporter  # needs torch

            proto = exporter.build(cluster.model, input_kind=input_kind, part_logits=part_logits)
        written.append((cluster, graph.write(proto, out / f"cluster-{cluster.number}.onnx")))
    current = {path for _, path in written}
    for stale in set(out.glob("cluster-*.onnx")) - current:
        stale.unlink()
    return written
