"""The process that builds the models of a release: imports onnx, never torch; one order in, one answer out.

`python -m fedbac_edge.releases.builder` reads an `Order` from standard input until its end, and writes an
`Answer` to standard output, both as MessagePack. The same order gives the same bytes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import msgspec

from export import graph
from export.served import ExportError, ServedModel, Term
from fedbac_edge import __version__
from fedbac_edge.methods import method
from fedbac_edge.models.catalog import LeNet, architecture
from fedbac_edge.models.description import Architecture
from fedbac_edge.models.resnet import ResNet8
from fedbac_edge.parts.part import PartError, digest, unpack
from fedbac_edge.protocol.events import BuiltModel, ClusterRelease, ReleaseJob
from fedbac_edge.releases import vectors
from fedbac_edge.settings.federation import Federation

LARGEST_ORDER = 2 * 2**30


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be built, and the parts that it is made of."""

    federation: Federation
    job: ReleaseJob
    blobs: dict[str, bytes]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Cluster -> its model, or why there is none."""

    models: dict[int, BuiltModel] = {}
    failed: str = ""


def build(order: Order) -> dict[int, BuiltModel]:
    """The models of all clusters. Raises ExportError or PartError."""
    table = order.federation.model
    model = architecture(table.architecture, table.input, len(table.classes))
    if not isinstance(model, (LeNet, ResNet8)):
        raise ExportError(
            f"releases are built for the catalogue's networks; export {table.architecture} with "
            "`fedbac export`"
        )
    return {
        number: _cluster(order, model, number, cluster)
        for number, cluster in sorted(order.job.clusters.items())
    }


def _cluster(order: Order, model: Architecture, number: int, cluster: ClusterRelease) -> BuiltModel:
    federation, job = order.federation, order.job
    used = method(federation)
    networks, names = used.architectures(model), used.served(number)
    terms = []
    for term in used.served_view.terms:
        role, hash, network = term.role, cluster.parts[term.role], networks[term.role]
        data = order.blobs[hash]
        if digest(data) != hash:
            raise PartError(f"the bytes of {names[role]} do not have its hash")
        terms.append(Term(names[role], unpack(data, network.schema()), term.coefficient, network))
    metadata = {
        "federation": federation.name,
        "instance": job.instance,
        "method": federation.method.name,
        "round": str(job.round),
        "cluster": str(number),
        "sites": ",".join(cluster.sites),
        "version": __version__,
    }
    if used.views:
        metadata["view"] = used.served_view.name
    if cluster.accuracy is not None:
        metadata |= {
            "holdout_accuracy": f"{cluster.accuracy:.6f}",
            "holdout_round": str(cluster.accuracy_round),
        }
    table = federation.model
    served = ServedModel(model, tuple(terms), table.mean, table.std, table.classes, metadata)
    onnx = graph.build(served).SerializeToString(deterministic=True)
    return BuiltModel(onnx, vectors.of_model(served))


def main() -> None:
    """Answer the one order."""
    with contextlib.suppress(OSError):
        # When memory runs out, the kernel shall end the building and not the cloud.
        Path("/proc/self/oom_score_adj").write_text("500")
    data = sys.stdin.buffer.read(LARGEST_ORDER)
    answer = sys.stdout.buffer
    sys.stdout = sys.stderr  # whatever a library prints must not get into the answer
    try:
        models = build(msgspec.msgpack.decode(data, type=Order))
        written = Answer(models=models)
    except (ExportError, PartError, KeyError, msgspec.MsgspecError) as error:
        written = Answer(failed=str(error)[:400])
    answer.write(msgspec.msgpack.encode(written))
    answer.flush()
    os._exit(0)  # onnx has nothing to tidy up, and interpreters that go down slowly only cost time


if __name__ == "__main__":
    main()
