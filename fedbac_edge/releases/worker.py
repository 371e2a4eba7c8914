"""The cloud's worker: a fresh process for every release, so that the cloud itself never imports onnx."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping

import msgspec

from fedbac_edge.protocol.events import AnyJob, Built, BuiltModel, Event, JobFailed, ReleaseJob
from fedbac_edge.settings.federation import Federation

BUILD_LIMIT_S = 600.0
NEEDED = ("onnx", "cryptography")


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`builder.Answer`, without importing what builds."""

    models: dict[int, BuiltModel] = {}
    failed: str = ""


def missing() -> list[str]:
    """Packages that a cloud needs to make releases, and does not have."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


class ReleaseWorker:
    """A `fedbac_edge.node.runtime.Worker` that builds releases."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._number = 0

    def start(self, job: AnyJob, blobs: Mapping[str, bytes], done: Callable[[Event], None]) -> None:
        """See Worker.start. The blobs are read here, on the caller's thread."""
        assert isinstance(job, ReleaseJob)
        self.cancel()
        needed = {hash for cluster in job.clusters.values() for hash in cluster.parts.values()}
        order = msgspec.msgpack.encode(
            {
                "federation": self._federation,
                "job": job,
                "blobs": {hash: blobs[hash] for hash in sorted(needed)},
            }
        )
        with self._lock:
            self._number += 1
            number = self._number
        self._thread = threading.Thread(
            target=self._build, args=(number, job, order, done), name="release", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """See Worker.cancel."""
        with self._lock:
            self._number += 1
            process, thread = self._process, self._thread
            if process is not None:
                process.kill()
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """See Worker.close."""
        self.cancel()

    def _build(self, number: int, job: ReleaseJob, order: bytes, done: Callable[[Event], None]) -> None:
        event = self._ask(number, job, order)
        with self._lock:
            wanted = event is not None and number == self._number
        if wanted and event is not None:
            done(event)

    def _ask(self, number: int, job: ReleaseJob, order: bytes) -> Event | None:
        with self._lock:
            if number != self._number:
                return None
            try:
                self._process = process = subprocess.Popen(
                    [sys.executable, "-m", "fedbac_edge.releases.builder"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    env={
                        **os.environ,
                        "PYTHONSAFEPATH": "1",
                        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    },
                )
            except OSError as error:
                return JobFailed(job.id, f"the building process could not be started ({error})")
        try:
            out, _ = process.communicate(order, BUILD_LIMIT_S)
            answer = msgspec.msgpack.decode(out, type=_Answer)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return JobFailed(job.id, f"building took longer than {BUILD_LIMIT_S:.0f} s")
        except (msgspec.MsgspecError, OSError):
            return JobFailed(job.id, f"the building process ended with exit code {process.wait()}")
        finally:
            with self._lock:
                self._process = None
        return JobFailed(job.id, answer.failed) if answer.failed else Built(job.id, answer.models)
