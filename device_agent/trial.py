"""Trying a release's model on the device that shall serve it: open it, hold it to its manifest, ask it.

A `fedbac_edge.node.runtime.Worker`: what passes stays open under its hash, ready to answer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Set

import numpy as np

from export.session import ModelError, Session
from fedbac_edge.parts.part import digest
from fedbac_edge.protocol.events import AnyJob, Event, JobFailed, TrialJob, Tried
from fedbac_edge.releases import vectors
from fedbac_edge.signing.manifest import Manifest


class TrialWorker:
    """Trials in turn, each on a thread of its own. They are short: none is cancelled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._ready: dict[str, Session] = {}

    def start(self, job: AnyJob, blobs: Mapping[str, bytes], done: Callable[[Event], None]) -> None:
        """See Worker.start; a trial that runs comes to its end first."""
        assert isinstance(job, TrialJob)
        manifest, data, before = job.manifest, blobs[job.manifest.hash], self._thread

        def run() -> None:
            if before is not None:
                before.join()
            try:
                session = self.ready(manifest.hash) or _open(data, manifest)
                check(session, manifest)
            except Exception as error:  # a runtime raises what it likes; whatever it is, the model is no good
                event: Event = JobFailed(job.id, _reason(error))
            else:
                event = Tried(job.id)
                with self._lock:
                    self._ready[manifest.hash] = session
            if not self._closed:
                done(event)

        self._thread = threading.Thread(target=run, name="trial", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """See Worker.cancel; does nothing, see the class."""

    def close(self) -> None:
        """See Worker.close. A trial that hangs inside the runtime ends with the process."""
        self._closed = True
        if self._thread is not None:
            self._thread.join(1.0)

    def ready(self, hash: str) -> Session | None:
        """The open model with this hash, once it has passed."""
        with self._lock:
            return self._ready.get(hash)

    def keep(self, hashes: Set[str]) -> None:
        """Close what is no longer needed."""
        with self._lock:
            self._ready = {hash: session for hash, session in self._ready.items() if hash in hashes}


def _open(data: bytes, manifest: Manifest) -> Session:
    if len(data) != manifest.size or digest(data) != manifest.hash:
        raise ModelError("wrong hash: the file is not the one of the manifest")
    return Session(data)


def check(session: Session, manifest: Manifest) -> None:
    """Raise ModelError when the model is not the one of the manifest, or does not pass its self-test."""
    _identify(session, manifest)
    inputs = np.stack([vectors.image(manifest.input, vector.index) for vector in manifest.vectors])
    found = session.logits(inputs)
    for vector, logits in zip(manifest.vectors, found, strict=True):
        expected = np.asarray(vector.logits)
        if expected.shape != logits.shape:
            raise ModelError(f"self-test {vector.index}: {len(logits)} logits instead of {len(expected)}")
        difference = float(np.abs(logits - expected).max())
        if not difference <= vectors.TOLERANCE:
            raise ModelError(
                f"self-test {vector.index}: a logit differs by {difference:.3g}, over {vectors.TOLERANCE:g}"
            )
        if logits.argmax() != expected.argmax():
            raise ModelError(
                f"self-test {vector.index}: class {logits.argmax()} instead of {expected.argmax()}"
            )


def _identify(session: Session, manifest: Manifest) -> None:
    """The file says itself what it is; that must be what was signed."""
    said = session.metadata
    for key, expected in (("federation", manifest.federation), ("cluster", str(manifest.cluster))):
        if said.get(key) != expected:
            raise ModelError(f"foreign {key}: the file is of {key} {said.get(key)}, not {expected}")
    if manifest.site not in said.get("sites", "").split(","):
        raise ModelError(f"foreign site: the file is for {said.get('sites')}, not {manifest.site}")
    parts = {part["hash"] for part in json.loads(said["parts"])}
    if parts != set(manifest.parts.values()):
        raise ModelError("the file is made of other parts than the manifest says")
    if session.input_kind != "uint8" or session.input_shape != manifest.input:
        raise ModelError(
            f"the file takes {session.input_kind} images of shape {session.input_shape}, "
            f"not raw ones of shape {manifest.input}"
        )


def _reason(error: Exception) -> str:
    text = str(error) if isinstance(error, ModelError) else f"{type(error).__name__}: {error}"
    return text[:400]
