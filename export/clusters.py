"""Every cluster of a store as an ONNX file, in float or in int8 where that pays."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

    from export.from_store import Cluster
    from export.quantise import Decision
    from export.served import InputKind


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
    from fedbac_edge.federation_file import beginnings
    from fedbac_edge.host.files import write_bytes
    from fedbac_edge.node.store import Store

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
