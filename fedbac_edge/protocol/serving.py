"""The state machine of a device that answers: take its site's newer releases, keep the last good one.

    release -> judged (key, signature, federation, site, number, size) -> fetched -> tried -> current
                  |_ refused                                 |_ again later     |_ refused, the old one stays

A model becomes the current one only after it was opened and passed its self-test on this device. The one
before stays; a current model that stops working, or cannot be opened after a restart, gives way to it. Every
trial's outcome counts, also when the next one has begun: at a start that of the current model comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import msgspec

from fedbac_edge import __version__
from fedbac_edge.parts.part import digest
from fedbac_edge.protocol.cloud import restoration
from fedbac_edge.protocol.events import (
    Action,
    Channel,
    Event,
    Fetched,
    Hello,
    JobFailed,
    Log,
    ModelFailed,
    Received,
    Send,
    Spoiled,
    Stalled,
    Started,
    TimerFired,
    TrialJob,
    Tried,
    Work,
)
from fedbac_edge.protocol.messages import Missing, Release, ServingStatus
from fedbac_edge.signing import keys
from fedbac_edge.signing.manifest import MANIFEST, Manifest, Unreadable, read
from fedbac_edge.vocabulary.terms import PartRef

SIZE_LIMIT = 64 * 2**20
"""Largest model that is fetched, in bytes; the session opens no larger one."""
ATTEMPTS = 3
"""Trials that may end with the death of the process, before the model is held responsible."""
FETCH_AGAIN_S = 30.0
FETCH_AGAIN_MOST_S = 3600.0
"""A file that came damaged is fetched again after 30 s, then after twice as long each time."""
REASON_LENGTH = 400


class ServingState(msgspec.Struct, kw_only=True):
    """All that a serving device remembers between events."""

    federation: str = ""
    session: int = 0
    key: bytes = b""
    """The public key that releases must be signed with; empty until one is given or pinned."""
    current: Manifest | None = None
    previous: Manifest | None = None
    pending: Manifest | None = None
    """Judged good, and being fetched or tried."""
    newest: tuple[int, int] = (0, 0)
    """`Manifest.order` of the newest release that was judged good, whatever became of it."""
    judged: str = ""
    """sha256 of the message judged last: brokers repeat it."""
    attempts: int = 0
    """Trials begun of the pending model, or of the current one after a start, without an outcome."""
    spoiled: int = 0
    refused: str = ""
    """Why the last release that was refused was."""
    timers: dict[str, float] = {}


class Refused(ValueError):
    """A release is not taken; the message is the reason."""


class Serving:
    """The machine. `key` is the one given by the device's owner, `blobs` the store's view by content hash."""

    def __init__(
        self,
        federation: str,
        gateway: str,
        name: str,
        key: bytes | None,
        blobs: Mapping[str, bytes],
        state: ServingState,
    ) -> None:
        self.federation, self.gateway, self.name, self.blobs = federation, gateway, name, blobs
        if state.federation != federation:
            state = ServingState(federation=federation, session=state.session)
        if key is not None and key != state.key:
            state.key, state.judged = key, ""
        self.state = state

    # --- what the runner asks ---

    def timers(self) -> Mapping[str, float]:
        """When a damaged file is fetched again."""
        return self.state.timers

    def wanted(self) -> Mapping[str, PartRef]:
        """The file of the pending release, unless it is here or came damaged a moment ago."""
        pending = self.state.pending
        if pending is None or self.state.timers or pending.hash in self.blobs:
            return {}
        return {pending.hash: PartRef("release", pending.hash, pending.size)}

    def kept(self) -> Set[str]:
        """The files of the current, the previous and the pending model."""
        return {each.hash for each in (self.state.current, self.state.previous, self.state.pending) if each}

    def status(self, state: str) -> Send:
        """Which release answers, and what was refused; with "offline" the will."""
        own, current = self.state, self.state.current
        message = ServingStatus(
            state=state,
            session=own.session,
            number=current.number if current else 0,
            model=current.model if current else 0,
            cluster=current.cluster if current else 0,
            round=current.round if current else 0,
            hash=current.hash if current else "",
            doing=self._doing(),
            refused=own.refused,
            software=__version__,
        )
        return Send(Channel("serving", self.gateway, self.name), message, retain=True)

    # --- events ---

    def handle(self, event: Event, now: float) -> list[Action]:
        """One event in, actions out; see the picture on top."""
        if isinstance(event, TimerFired):
            self.state.timers = {k: when for k, when in self.state.timers.items() if k != event.name}
        match event:
            case Started():
                self.state.session += 1
                return self._open_current() or self._go_on()
            case Hello(repeated=repeated):
                # Without a model after a while it may have missed a release: not every broker of a cluster
                # knows what another one retains.
                bare = repeated and self.state.current is None and self.state.pending is None
                return [self._tell(), *([self._ask(Missing(release=True))] if bare else [])]
            case Stalled(hashes=hashes):
                return [self._ask(Missing(hashes=hashes))]
            case Received(message=Release() as release):
                return self._judge(release)
            case Fetched() | TimerFired():
                return self._go_on()
            case Spoiled():
                return self._fetch_later(event, now)
            case Tried():
                return self._passed(event.job)
            case JobFailed():
                return self._failed(event.job, event.reason)
            case ModelFailed():
                current = self.state.current
                if current is not None and current.hash == event.hash:
                    return self._go_back(event.reason)
        return []

    # --- a release arrives ---

    def _judge(self, release: Release) -> list[Action]:
        seen = digest(release.signature + release.manifest)
        if seen == self.state.judged:
            return []
        self.state.judged = seen
        try:
            manifest = self._read(release)
        except Refused as refusal:
            return self._refuse(str(refusal))
        if manifest in (self.state.current, self.state.pending):
            return []
        if manifest.order <= self.state.newest:
            founded, number = self.state.newest
            older = f"release {manifest.number} is not newer than release {number}"
            if manifest.founded != founded:
                older = f"release {manifest.number} is of an earlier federation of this name"
            return self._refuse(older)
        anew = self._begun_anew(manifest)
        self.state.newest = manifest.order
        if manifest.size > SIZE_LIMIT:
            large = f"release {manifest.number} has {manifest.size} bytes, over the limit of {SIZE_LIMIT}"
            return [*anew, *self._refuse(large)]
        self.state.pending = manifest
        self.state.attempts, self.state.spoiled, self.state.timers = 0, 0, {}
        return [*anew, *self._pin(release.key), *self._go_on(), self._tell()]

    def _begun_anew(self, manifest: Manifest) -> list[Action]:
        """Releases are counted anew: after the cloud was restored from a backup, or founded again."""
        (founded, number), latest = self.state.newest, self.state.pending or self.state.current
        if not founded or manifest.founded == founded or latest is None:
            return []
        kind = "restored" if restoration.is_kin(manifest.instance, latest.instance) else "new federation"
        return [Log(kind, manifest.instance, manifest.round, {"number": manifest.number, "before": number})]

    def _read(self, release: Release) -> Manifest:
        """The manifest, when it is signed and meant for this device. Raises Refused."""
        key = self.state.key or release.key
        if not keys.verify(key, MANIFEST, release.manifest, release.signature):
            if release.key != key:
                raise Refused(
                    f"bad signature: signed with the key {keys.fingerprint(release.key)}, and this device "
                    f"trusts {keys.fingerprint(key)}"
                )
            raise Refused("bad signature")
        try:
            manifest = read(release.manifest, Manifest)
        except Unreadable as error:
            raise Refused(str(error)) from error
        if manifest.federation != self.federation:
            raise Refused(f"it is a release of the federation {manifest.federation}, not {self.federation}")
        if manifest.site != self.gateway:
            raise Refused(f"it is a release for the site {manifest.site}, not {self.gateway}")
        return manifest

    def _pin(self, key: bytes) -> list[Action]:
        """Without a key from its owner, a device trusts the first that comes, and from then on no other."""
        if self.state.key:
            return []
        self.state.key = key
        return [Log("pinned", keys.fingerprint(key), 0, {"key": keys.to_text(key)})]

    # --- fetched, tried, current ---

    def _go_on(self) -> list[Action]:
        """Try the pending model once its file is here."""
        pending = self.state.pending
        if pending is None or self.state.timers or pending.hash not in self.blobs:
            return []
        if self.state.attempts >= ATTEMPTS:
            return self._failed(self._job(pending).id, f"this device died {ATTEMPTS} times trying it")
        self.state.attempts += 1
        return [Work(self._job(pending)), self._tell()]

    def _open_current(self) -> list[Action]:
        """After a start: the current model must be opened before it answers; the pending one comes after."""
        current = self.state.current
        if current is None:
            return []
        if self.state.pending is None:
            self.state.attempts += 1
            if self.state.attempts > ATTEMPTS:
                return self._go_back(f"this device died {ATTEMPTS} times opening it")
        return [Work(self._job(current))]

    def _passed(self, job: str) -> list[Action]:
        state, pending, current = self.state, self.state.pending, self.state.current
        if pending is not None and job == self._job(pending).id:
            if current is not None and current.hash != pending.hash:
                state.previous = current
            state.current, state.pending, state.attempts, state.refused = pending, None, 0, ""
            return [Log("serving", str(pending.number), pending.round, _detail(pending)), self._tell()]
        if current is not None and job == self._job(current).id:
            if pending is None:
                state.attempts = 0
            return [Log("opened", str(current.number), current.round), *self._go_on(), self._tell()]
        return []

    def _failed(self, job: str, reason: str) -> list[Action]:
        pending, current = self.state.pending, self.state.current
        if pending is not None and job == self._job(pending).id:
            self.state.pending, self.state.attempts = None, 0
            return self._refuse(f"release {pending.number}: {reason}")
        if current is not None and job == self._job(current).id:
            return self._go_back(reason)
        return []

    def _go_back(self, reason: str) -> list[Action]:
        """The current model does not work: the one before answers, until a newer release comes."""
        state = self.state
        current, state.current, state.previous, state.attempts = state.current, state.previous, None, 0
        assert current is not None
        state.refused = f"release {current.number}: {reason}"[:REASON_LENGTH]
        to = state.current.number if state.current else 0
        line = Log("went back", str(current.number), current.round, {"why": state.refused, "to": to})
        return [line, *(self._open_current() or self._go_on()), self._tell()]

    def _fetch_later(self, event: Spoiled, now: float) -> list[Action]:
        pending = self.state.pending
        if pending is None or pending.hash != event.hash or self.state.timers:
            return []
        wait = min(FETCH_AGAIN_MOST_S, FETCH_AGAIN_S * 2.0 ** min(self.state.spoiled, 16))
        self.state.spoiled += 1
        self.state.timers = {"fetch": now + wait}
        return self._refuse(f"release {pending.number}: its file came damaged: {event.reason}")

    def _refuse(self, reason: str) -> list[Action]:
        self.state.refused = reason[:REASON_LENGTH]
        return [Log("refused", "release", 0, {"why": self.state.refused}), self._tell()]

    # --- for people ---

    def _tell(self) -> Send:
        return self.status("serving" if self.state.current else "empty")

    def _ask(self, missing: Missing) -> Send:
        return Send(Channel("reply", self.gateway, self.name), missing)

    def _doing(self) -> str:
        pending = self.state.pending
        if pending is None:
            return ""
        return f"{'trying' if self.state.attempts else 'fetching'} {pending.number}"

    def _job(self, manifest: Manifest) -> TrialJob:
        return TrialJob(f"{manifest.founded}-{manifest.number}", manifest)


def _detail(manifest: Manifest) -> dict[str, object]:
    return {
        "model": manifest.model,
        "cluster": manifest.cluster,
        "hash": manifest.hash,
        "bytes": manifest.size,
        "accuracy": manifest.accuracy,
    }
