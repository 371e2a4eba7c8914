"""What `fedbac init --from` takes from an earlier federation: weights, settings, where its sites were."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from export import from_store
from fedbac_edge.federation_file import beginnings
from fedbac_edge.federation_file.beginnings import BadWeights, Weights
from fedbac_edge.node.store import Store
from fedbac_edge.parts.part import digest
from fedbac_edge.settings.federation import Federation


def earlier(place: Path) -> Weights:
    """The weights at `place`: a cloud's state, or a folder of `fedbac export`.

    Raises BadWeights, StoreError, ExportError.
    """
    exported = place / beginnings.EXPORTED if place.is_dir() else place
    if exported.suffix == ".weights" and exported.is_file():
        return beginnings.decode(exported.read_bytes())
    if place.suffix == ".onnx" or (place.is_dir() and any(place.glob("*.onnx"))):
        raise BadWeights(
            f"{place} holds models and no {beginnings.EXPORTED}: in an ONNX file the networks are one. "
            "Export again with this software, or give the cloud's state"
        )
    store = Store(from_store.cloud_store(place), read_only=True)
    try:
        return from_store.weights(store)
    finally:
        store.close()


def succeeding(weights: Weights, name: str | None) -> Federation:
    """The earlier settings under a new name, its weights to begin from, each site where it was."""
    before = weights.federation
    known = {site: k for site, k in weights.places.items() if not before.gateways or site in before.gateways}
    clusters = before.cluster_count
    return msgspec.structs.replace(
        before,
        name=name or _next(before.name),
        model=msgspec.structs.replace(before.model, start=digest(beginnings.encode(weights))),
        method=msgspec.structs.replace(
            before.method, clusters=clusters, places={site: k for site, k in known.items() if k < clusters}
        ),
    )


def with_more_classes(federation: Federation, found: tuple[str, ...]) -> Federation:
    """Those that were known keep their place, new ones follow."""
    known = federation.model.classes
    grown = (*known, *(name for name in found if name not in known))
    return msgspec.structs.replace(federation, model=msgspec.structs.replace(federation.model, classes=grown))


def _next(name: str) -> str:
    """orchard, orchard-2, orchard-3 ..."""
    numbered = re.fullmatch(r"(.+)-([0-9]{1,6})", name)
    stem, number = (numbered[1], int(numbered[2])) if numbered else (name, 1)
    return f"{stem[:56]}-{number + 1}"
