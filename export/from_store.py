"""The served models of a federation, out of its cloud's store.

Only clusters that sites belong to are served. The accuracy in the metadata is that of the last evaluation,
on the hold-outs of the cluster's sites together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from export.served import ExportError, ServedModel, Term, UnknownView
from fedbac_edge import __version__
from fedbac_edge.federation_file.beginnings import Weights
from fedbac_edge.methods import method
from fedbac_edge.methods.method import Method, View
from fedbac_edge.models.catalog import architecture
from fedbac_edge.node.store import Store, StoreError
from fedbac_edge.parts.part import PartError, digest, unpack
from fedbac_edge.protocol.cloud import generations
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.messages import RoundSummary
from fedbac_edge.settings.federation import Federation


@dataclass(frozen=True)
class Cluster:
    """One cluster's model: the sites that it serves, and their hold-out accuracy (None: never evaluated)."""

    number: int
    sites: tuple[str, ...]
    accuracy: float | None
    model: ServedModel


def cloud_store(place: Path) -> Path:
    """The cloud's store at `place`: the file itself, or cloud.sqlite in that directory. Raises StoreError."""
    path = place / "cloud.sqlite" if place.is_dir() else place
    if not path.is_file():
        raise StoreError(f"there is no cloud's store {path}; give the --state of `fedbac cloud run`")
    return path


def clusters(store: Store, view: str = "") -> list[Cluster]:
    """Every active cluster in order, as the method's `view`, "" for the served one.

    Raises StoreError when the store is no cloud's, UnknownView, and ExportError when it has no rounds yet.
    """
    federation, state = read(store)
    used = method(federation)
    if view and view not in (known := [each.name for each in used.views]):
        there = f"--view is one of: {', '.join(known)}" if known else "it has one model: leave --view out"
        raise UnknownView(f"{federation.method.name} has no view {view!r}; {there}")
    if state.clustering is None:
        raise ExportError("this federation has not begun its first round: there is nothing to export yet")
    members: dict[int, list[str]] = {}
    for site, cluster in sorted(state.clustering.assignment.items()):
        members.setdefault(cluster, []).append(site)
    chosen = used.view(view)
    evaluation = _last_evaluation(store) if chosen == used.served_view else None
    return [
        _cluster(store, federation, used, chosen, state, number, tuple(sites), evaluation)
        for number, sites in sorted(members.items())
    ]


def weights(store: Store) -> Weights:
    """All parts as they are, for another federation to begin from. Raises StoreError, ExportError."""
    federation, state = read(store)
    parts = {}
    for name, reference in sorted(state.parts.items()):
        data = store.blobs.get(reference.hash)
        if data is None or digest(data) != reference.hash:
            raise ExportError(f"the part {name} is damaged or missing in the store")
        parts[name] = data
    return Weights(federation=federation, round=_trained(state), places=state.assignment, parts=parts)


def read(store: Store) -> tuple[Federation, CloudState]:
    """What a cloud's store describes. Raises StoreError when it is no cloud's, ExportError when damaged."""
    described, machine = store.read("federation"), store.read("machine")
    if described is None or machine is None:
        raise StoreError("this is not the store of a cloud; give the --state of `fedbac cloud run`")
    try:
        return (
            msgspec.msgpack.decode(described, type=Federation),
            msgspec.msgpack.decode(machine, type=CloudState),
        )
    except msgspec.DecodeError as error:
        raise ExportError(f"the cloud's store cannot be read: {error}") from error


def _last_evaluation(store: Store) -> RoundSummary | None:
    summaries = [line.detail for line in store.ledger(kind="summary") if line.subject == "evaluate"]
    return msgspec.convert(summaries[-1], RoundSummary) if summaries else None


def _cluster(
    store: Store,
    federation: Federation,
    used: Method,
    view: View,
    state: CloudState,
    number: int,
    sites: tuple[str, ...],
    evaluation: RoundSummary | None,
) -> Cluster:
    table = federation.model
    model = architecture(table.architecture, table.input, len(table.classes))
    networks = used.architectures(model)
    coefficients, names = view.coefficients(), used.served(number)
    terms = []
    for role, reference in generations.of_view(used, view, state.parts, state.previous, number).items():
        name, network = names[role], networks[role]
        try:
            data = store.blobs[reference.hash]
            if digest(data) != reference.hash:
                raise PartError("its bytes do not have its hash")
            terms.append(Term(name, unpack(data, network.schema()), coefficients[role], network))
        except (KeyError, PartError) as error:
            raise ExportError(f"the part {name} is damaged or missing in the store: {error}") from error
    accuracy = _accuracy(evaluation, sites)
    metadata = {
        "federation": federation.name,
        "instance": state.instance,
        "method": federation.method.name,
        "round": str(_trained(state)),
        "cluster": str(number),
        "sites": ",".join(sites),
        "version": __version__,
    }
    if used.views:
        metadata["view"] = view.name
    if accuracy is not None and evaluation is not None:
        metadata |= {"holdout_accuracy": f"{accuracy:.6f}", "holdout_round": str(evaluation.round)}
    served = ServedModel(model, tuple(terms), table.mean, table.std, table.classes, metadata)
    return Cluster(number, sites, accuracy, served)


def _trained(state: CloudState) -> int:
    """The last round whose training is in the parts: the open one is not yet."""
    return state.round - 1 if state.phase == "training" else state.round


def _accuracy(evaluation: RoundSummary | None, sites: tuple[str, ...]) -> float | None:
    """Right answers over samples, on the hold-outs of these sites together."""
    if evaluation is None:
        return None
    scored = [
        (site.accuracy, site.holdout)
        for name, site in evaluation.sites.items()
        if name in sites and site.accuracy is not None
    ]
    count = sum(holdout for _, holdout in scored)
    return sum(accuracy * holdout for accuracy, holdout in scored) / count if count else None
