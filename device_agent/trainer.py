"""The training process: `python -m device_agent.trainer FD`, started only by `worker`.

It reads the data, imports torch at the first job, and does one job after another. It lives exactly as long
as the other end of its socket: when the agent goes, however it goes, this process goes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from device_agent import pipe
from device_agent.data import DeviceData
from fedbac_edge.datasets.samples import DataError
from fedbac_edge.learning.jobs import JobError, perform
from fedbac_edge.learning.outcomes import Cancelled
from fedbac_edge.methods import method
from fedbac_edge.parts.part import PartError
from fedbac_edge.protocol.events import Job, Trained

log = logging.getLogger(__name__)


class Trainer:
    """Obeys one agent. The main thread works; a second one listens, so that jobs can be cancelled."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._orders: queue.SimpleQueue[pipe.Open | pipe.Do] = queue.SimpleQueue()
        self._cancelled = 0
        self._device = "cpu"
        self._order: pipe.Open | None = None
        self._data: DeviceData | DataError = DataError("data", "not read yet", "")
        self._loaded = False

    def run(self) -> None:
        """Work until the agent closes the connection; never returns by itself."""
        threading.Thread(target=self._listen, name="orders", daemon=True).start()
        while True:
            order = self._orders.get()
            if isinstance(order, pipe.Open):
                pipe.send(self._connection, self._open(order))
                continue
            if isinstance(self._data, DataError) and self._order is not None:
                # What was wrong may have been mended since; the agent must know before the job's answer.
                pipe.send(self._connection, self._open(self._order))
            pipe.send(self._connection, self._do(order))

    def _listen(self) -> None:
        while True:
            try:
                order = pipe.receive_order(self._connection)
            except (EOFError, OSError):
                os._exit(0)  # the agent is gone: end, even in the middle of a step
            if isinstance(order, pipe.Cancel):
                self._cancelled = order.number
            else:
                self._orders.put(order)

    def _open(self, order: pipe.Open) -> pipe.FromTrainer:
        self._order, self._device = order, order.device
        self._data = DataError("data", "not read yet", "")  # never two of them in memory
        model = order.federation.model
        try:
            if order.device == "cuda" and not _has_cuda():
                raise DataError(
                    "--device cuda", "torch sees no CUDA device here", "Use --device auto or --device cpu"
                )
            data = DeviceData.open(
                os.fsdecode(order.path),
                classes=model.classes,
                input_shape=model.input,
                resize=order.resize,
                strict=order.strict,
                takes_unlabelled=method(order.federation).takes_unlabelled,
                method=order.federation.method.name,
            )
        except DataError as error:
            self._data = error
            return pipe.NotOpened(where=error.where, what=error.what, remedy=error.remedy)
        self._data = data
        return pipe.Opened(
            samples=len(data.train),
            labelled=len(data.train.labelled()),
            holdout=len(data.holdout.labelled()),
            summary=data.summary(),
        )

    def _do(self, order: pipe.Do) -> pipe.FromTrainer:
        number = order.number
        job: Job | None = order.train or order.evaluate
        assert job is not None
        assert self._order is not None
        if isinstance(self._data, DataError):
            return pipe.Failed(number=number, reason=str(self._data))
        if problem := self._load():
            return pipe.Failed(number=number, reason=problem)
        if self._device == "auto":
            self._device = "cuda" if _has_cuda() else "cpu"
        try:
            result = perform(
                job,
                order.blobs,
                self._order.federation,
                self._data.train,
                self._data.holdout,
                self._device,
                lambda: self._cancelled >= number,
            )
        except Cancelled:
            return pipe.Dropped(number=number)
        except (JobError, PartError) as error:
            return pipe.Failed(number=number, reason=str(error))
        except MemoryError:
            return pipe.Failed(number=number, reason="not enough memory for this job")
        except Exception as error:  # whatever a job meets, the next one gets its chance
            log.exception("job %s failed", job.id)
            return pipe.Failed(number=number, reason=f"{type(error).__name__}: {error}"[:400])
        if isinstance(result, Trained):
            return pipe.Done(number=number, trained=result)
        return pipe.Done(number=number, evaluated=result)

    def _load(self) -> str:
        """Load torch, once; why it cannot be loaded, or "". The agent is told: it waits for this."""
        if self._loaded:
            return ""
        pipe.send(self._connection, pipe.Loading())
        problem = ""
        try:
            import torch  # noqa: F401
        except Exception as error:  # a missing library, a wrong version of numpy ...
            problem = f"torch cannot be imported ({type(error).__name__}: {error})"[:300]
        self._loaded = not problem
        pipe.send(self._connection, pipe.Loaded(problem=problem))
        return problem


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def main() -> None:
    """Take the socket whose number is the only argument. The agent alone ends this process."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        # When memory runs out, the kernel shall end the training and not the agent, which can say why.
        Path("/proc/self/oom_score_adj").write_text("500")
    logging.basicConfig(format="trainer: %(message)s")
    with contextlib.suppress(OSError):  # the agent is gone
        Trainer(Connection(int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
