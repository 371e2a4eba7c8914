"""Releases, as the cloud's machine makes them: when, of what, in which order, and back again.

    due -> ReleaseJob -> (a worker builds) -> Built -> number, signatures, blobs, one manifest per site

The number is drawn when the built models are stored, in the same transaction as what is to be published: a
cloud that is killed before that builds again, and one that is killed after it sends the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import msgspec

from fedbac_edge import __version__
from fedbac_edge.methods.method import Method
from fedbac_edge.parts.part import digest
from fedbac_edge.protocol.cloud import generations
from fedbac_edge.protocol.cloud.state import CloudState, Release, ReleasedModel
from fedbac_edge.protocol.events import (
    Action,
    Built,
    Channel,
    ClusterRelease,
    JobFailed,
    Keep,
    Log,
    Offer,
    ReleaseJob,
    Send,
    Withdraw,
    Work,
)
from fedbac_edge.protocol.messages import Order
from fedbac_edge.protocol.messages import Release as ReleaseMessage
from fedbac_edge.settings.federation import Federation
from fedbac_edge.signing.manifest import MANIFEST, ORDER, Manifest, RollbackOrder, Unreadable, canonical, read

REMEMBERED = 20
"""Releases that are listed."""


class Signer(Protocol):
    """The key of the releases. Signing is a pure function of the bytes."""

    public: bytes

    def sign(self, purpose: str, data: bytes) -> bytes:
        """64 bytes."""
        ...

    def verify(self, purpose: str, data: bytes, signature: bytes) -> bool:
        """True for what this key has signed."""
        ...


# --- making one -----------------------------------------------------------------------------------


def is_due(state: CloudState, federation: Federation) -> bool:
    """After each `every` rounds and after the last one, once per round; and when one waited for a sweep.

    Never before an update has counted.
    """
    if not state.last_update:
        return False  # nothing has counted yet: the models are as they were drawn
    if state.build_again and state.building is None:
        return True
    every = federation.releases.every
    last = state.phase == "finished"
    if state.round == 0 or not (last or (every and state.round % every == 0)):
        return False
    return all(release.round != state.round or release.number != release.model for release in state.releases)


def order(state: CloudState, method: Method, round: int) -> list[Action]:
    """Have the models of all active clusters built, as they are after `round`.

    A build that still runs comes to its end first, and the newest state of affairs is built after it: rounds
    that are quicker than builds must not keep every release from being finished.
    """
    if state.building is not None:
        state.build_again = True
        return []
    members: dict[int, list[str]] = {}
    for site, cluster in sorted(state.assignment.items()):
        members.setdefault(cluster, []).append(site)
    clusters = {}
    for cluster, sites in sorted(members.items()):
        accuracy, after = _accuracy(state, method, cluster)
        parts = {role: ref.hash for role, ref in generations.served(method, state, cluster).items()}
        clusters[cluster] = ClusterRelease(tuple(sites), parts, accuracy, after)
    job = ReleaseJob(f"release-{round}", state.instance, round, clusters)
    state.building, state.build_again = job, False
    return [Work(job)]


def again(state: CloudState) -> list[Action]:
    """After a restart: the build that was under way."""
    return [] if state.building is None else [Work(state.building)]


def failed(state: CloudState, method: Method, event: JobFailed) -> list[Action]:
    """Nothing could be built; the next release, or the next start after the last round, tries again."""
    if state.building is None or event.job != state.building.id:
        return []
    round, state.building = state.building.round, None
    return [Log("release failed", "", round, {"why": event.reason[:400]}), *_follow(state, method)]


def built(
    state: CloudState, federation: Federation, method: Method, event: Built, signer: Signer
) -> list[Action]:
    """Number what was built, keep it, publish it, and clear what is older than those that are kept."""
    job = state.building
    if job is None or event.job != job.id or set(event.models) != set(job.clusters):
        return []
    state.building = None
    number = state.release_number + 1
    release = Release(number=number, model=number, round=job.round, models={})
    keeps: list[Action] = []
    for cluster, made in sorted(event.models.items()):
        ordered = job.clusters[cluster]
        keeps.append(Keep(digest(made.onnx), made.onnx))
        release.models[cluster] = ReleasedModel(
            sites=ordered.sites,
            hash=digest(made.onnx),
            size=len(made.onnx),
            parts=dict(ordered.parts),
            accuracy=ordered.accuracy,
            accuracy_round=ordered.accuracy_round,
            vectors=made.vectors,
        )
    return [*keeps, *_publish(state, federation, release, signer), *_follow(state, method)]


def _follow(state: CloudState, method: Method) -> list[Action]:
    """The release that became due meanwhile. While a round is open its training is not in the parts yet.

    While models are evaluated it waits for the end of that, when there is an accuracy and sites have moved:
    otherwise the last release of a campaign would be of the same parts as the one before.
    """
    if not state.build_again or state.phase == "evaluating":
        return []
    return order(state, method, state.round - 1 if state.phase == "training" else state.round)


def renewed(state: CloudState, federation: Federation, signer: Signer, began: int) -> list[Action]:
    """The cloud was restored from a backup: its newest release goes out again, and counts as the newer one.

    Devices may serve a release from after the backup. They follow the cloud founded later, so that is now:
    `began` is when this process started, in seconds since 1970.
    """
    state.founded = max(state.founded + 1, began)
    if state.building is not None:
        state.building = replace(state.building, instance=state.instance)
    if not state.releases:
        return []
    again = msgspec.structs.replace(state.releases[-1], number=state.release_number + 1)
    return _publish(state, federation, again, signer)


# --- going back -----------------------------------------------------------------------------------


def ordered(state: CloudState, federation: Federation, message: Order, signer: Signer | None) -> list[Action]:
    """An operator's order: publish an earlier model again, under a new number. Refused with a ledger line."""

    def refuse(why: str) -> list[Action]:
        return [Log("refused", "order", state.round, {"why": why[:400]})]

    if signer is None:
        return refuse("this cloud makes no releases")
    if not signer.verify(ORDER, message.order, message.signature):
        return refuse("it is not signed with the key of the releases")
    try:
        wish = read(message.order, RollbackOrder)
    except Unreadable as error:
        return refuse(str(error))
    if (wish.federation, wish.instance) != (federation.name, state.instance):
        return refuse("it is for another federation")
    if wish.after != state.release_number:
        return refuse(f"it follows release {wish.after}, and the newest is {state.release_number}")
    target = next((each for each in state.releases if each.number == wish.to), None)
    if target is None or target.model not in models_kept(state):
        return refuse(f"the files of release {wish.to} are not kept; {can_go_to(state)}")
    back = msgspec.structs.replace(target, number=state.release_number + 1)
    return _publish(state, federation, back, signer)


def models_kept(state: CloudState) -> list[int]:
    """Releases that brought the newest models, newest use first: their files are here."""
    models = list(dict.fromkeys(release.model for release in reversed(state.releases)))
    return models[: state.models_kept]


def can_go_to(state: CloudState) -> str:
    """In words: which releases may be named."""
    current = state.releases[-1].model if state.releases else 0
    others = [model for model in models_kept(state) if model != current]
    return f"one can go back to: {', '.join(map(str, others))}" if others else "there is none to go back to"


def kept(state: CloudState) -> set[str]:
    """Hashes of blobs: the files of the newest models, and the parts that are being built from."""
    needed = (
        {hash for each in state.building.clusters.values() for hash in each.parts.values()}
        if (state.building is not None)
        else set()
    )
    return needed | _files(state)


# --- both -----------------------------------------------------------------------------------------


def _publish(state: CloudState, federation: Federation, release: Release, signer: Signer) -> list[Action]:
    before = _files(state)
    state.models_kept = federation.releases.keep
    state.release_number = release.number
    state.releases = [*state.releases, release][-REMEMBERED:]
    offers = [
        Offer(
            model.hash,
            tuple(_send(state, federation, release, cluster, site, signer) for site in model.sites),
        )
        for cluster, model in sorted(release.models.items())
    ]
    detail = {
        "number": release.number,
        "model": release.model,
        "clusters": {
            str(cluster): {
                "sites": list(model.sites),
                "hash": model.hash,
                "bytes": model.size,
                "accuracy": model.accuracy,
            }
            for cluster, model in sorted(release.models.items())
        },
    }
    withdrawn = [Withdraw(hash) for hash in sorted(before - _files(state))]
    return [*offers, *withdrawn, Log("released", str(release.number), release.round, detail)]


def _send(
    state: CloudState, federation: Federation, release: Release, cluster: int, site: str, signer: Signer
) -> Send:
    model = release.models[cluster]
    manifest = canonical(
        Manifest(
            federation=federation.name,
            instance=state.instance,
            founded=state.founded,
            number=release.number,
            model=release.model,
            site=site,
            cluster=cluster,
            round=release.round,
            hash=model.hash,
            size=model.size,
            parts=model.parts,
            accuracy=model.accuracy,
            accuracy_round=model.accuracy_round,
            input=federation.model.input,
            vectors=model.vectors,
            created_by=__version__,
        )
    )
    signed = ReleaseMessage(manifest=manifest, signature=signer.sign(MANIFEST, manifest), key=signer.public)
    return Send(Channel("release", site), signed, retain=True)


def _files(state: CloudState) -> set[str]:
    models = models_kept(state)
    return {
        model.hash
        for release in state.releases
        if release.model in models
        for model in release.models.values()
    }


def _accuracy(state: CloudState, method: Method, cluster: int) -> tuple[float | None, int | None]:
    """Right answers over samples on the hold-outs of a cluster's sites, and after which round that was.

    A training round scores the model that it starts from, an evaluation the one that it ends with. Where that
    model is another view than the served one, only an evaluation counts.
    """
    last = state.last
    if last is None or (last.phase == "train" and method.judged):
        return None, None
    scored: Mapping[str, tuple[float, int]] = {
        name: (site.accuracy, site.holdout)
        for name, site in last.sites.items()
        if site.accuracy is not None and site.cluster == cluster and state.assignment.get(name) == cluster
    }
    count = sum(holdout for _, holdout in scored.values())
    if not count:
        return None, None
    right = sum(accuracy * holdout for accuracy, holdout in scored.values())
    return right / count, last.round if last.phase == "evaluate" else last.round - 1
