"""The training process: real jobs, cancelled, crashed and idle ones. It never outlives its worker."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from device_agent import pipe
from device_agent.worker import DataSource, TrainingWorker, WorkerError
from fedbac_edge.datasets.samples import DataError
from fedbac_edge.methods import method
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import digest, pack
from fedbac_edge.protocol.events import Evaluated, EvaluateJob, Event, JobFailed, Trained, TrainJob
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.training import LocalTraining

MakeWorker = Callable[..., TrainingWorker]


@pytest.fixture
def make_worker(data: Path, federation: Federation) -> Iterator[MakeWorker]:
    """Makes workers on the small slice of Fashion-MNIST; closes them."""
    made: list[TrainingWorker] = []

    def make(path: Path = data, idle_s: float = 60.0, device: str = "cpu") -> TrainingWorker:
        made.append(TrainingWorker(DataSource(str(path), device=device), federation, idle_s))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


@pytest.fixture
def blobs(federation: Federation) -> dict[str, bytes]:
    """The initial parts by name (for the tests) and by hash (for the jobs)."""
    parts = method(federation).initial(LeNet(), 1)
    packed = {name: pack(part) for name, part in parts.items()}
    return {**packed, **{digest(data): data for data in packed.values()}}


def training(blobs: dict[str, bytes], number: int, epochs: int = 1) -> TrainJob:
    parts = {"global": digest(blobs["global"]), "cluster": digest(blobs["cluster-0"])}
    settings = LocalTraining(
        epochs=epochs, batch_size=32, learning_rate=0.01, momentum=0.9, weight_decay=0, clip_norm=1.0, l2={}
    )
    return TrainJob(f"train-{number}", parts, {}, settings, (1, "device", "dev-1", number, "train"))


def evaluation(blobs: dict[str, bytes]) -> EvaluateJob:
    both = {"global": digest(blobs["global"]), "cluster": digest(blobs["cluster-0"])}
    return EvaluateJob("evaluate-1", {0: both, 1: both})


def test_works_and_outlives_a_crash(make_worker: MakeWorker, blobs: dict[str, bytes]) -> None:
    """Jobs one after another in one process; when it is killed, the job fails and the next one is done."""
    worker, results = make_worker(), queue.SimpleQueue[Event]()
    opened = worker.open()
    assert opened is not None
    first = worker.pid
    worker.start(training(blobs, 1), blobs, results.put)
    trained = results.get(timeout=60)
    assert isinstance(trained, Trained)
    assert (trained.samples, trained.holdout.count) == (opened.samples, opened.holdout)
    worker.start(evaluation(blobs), blobs, results.put)
    evaluated = results.get(timeout=60)
    assert isinstance(evaluated, Evaluated)
    assert evaluated.scores == {0: trained.holdout, 1: trained.holdout}
    assert worker.pid == first  # kept warm
    assert first is not None

    worker.start(training(blobs, 2, epochs=100_000), blobs, results.put)
    time.sleep(0.3)
    os.kill(first, signal.SIGKILL)
    failed = results.get(timeout=10)
    assert isinstance(failed, JobFailed)
    assert failed.job == "train-2"
    assert "memory" in failed.reason
    worker.start(training(blobs, 1), blobs, results.put)
    assert results.get(timeout=60) == trained  # the same bytes from a fresh process
    assert worker.pid != first


def test_cancels_at_once(
    make_worker: MakeWorker, blobs: dict[str, bytes], is_gone: Callable[..., bool]
) -> None:
    """A cancelled job is never heard of again, and the next one does not wait for it."""
    worker, results = make_worker(), queue.SimpleQueue[Event]()
    worker.start(training(blobs, 1), blobs, results.put)
    assert isinstance(results.get(timeout=60), Trained)
    warm = worker.pid
    worker.start(training(blobs, 2, epochs=100_000), blobs, results.put)
    time.sleep(0.3)
    worker.cancel()
    worker.start(training(blobs, 3), blobs, results.put)  # would wait for hours
    third = results.get(timeout=60)
    assert isinstance(third, Trained)
    assert third.job == "train-3"
    assert worker.pid == warm  # it stopped between two steps and was not killed
    # A new job cancels the running one by itself.
    worker.start(training(blobs, 4, epochs=100_000), blobs, results.put)
    worker.start(training(blobs, 5), blobs, results.put)
    fifth = results.get(timeout=60)
    assert isinstance(fifth, Trained)
    assert fifth.job == "train-5"
    # Stopped by the system, it does not hear the wish: it is killed.
    assert worker.pid is not None
    deaf = worker.pid
    worker.start(training(blobs, 6, epochs=100_000), blobs, results.put)
    time.sleep(0.2)
    os.kill(deaf, signal.SIGSTOP)
    worker.cancel()
    assert is_gone(deaf)
    worker.close()
    assert results.empty()


def test_rests_when_idle(make_worker: MakeWorker, is_gone: Callable[..., bool]) -> None:
    """After the idle time there is no training process; the next need starts one."""
    worker = make_worker(idle_s=0.2)
    first = worker.open()
    pid = worker.pid
    assert pid is None or is_gone(pid)
    assert worker.open() == first


def test_close_leaves_nothing(
    make_worker: MakeWorker, blobs: dict[str, bytes], is_gone: Callable[..., bool]
) -> None:
    """Closing in the middle of a job ends its process before it returns; afterwards nothing is called."""
    worker, results = make_worker(), queue.SimpleQueue[Event]()
    worker.open()
    pid = worker.pid
    assert pid is not None
    worker.start(training(blobs, 1, epochs=100_000), blobs, results.put)
    worker.close()
    assert is_gone(pid, 0.01)
    worker.close()
    worker.cancel()
    assert results.empty()


AGENT = """
import sys, queue
from pathlib import Path
import msgspec
from device_agent import pipe
from device_agent.worker import DataSource, TrainingWorker
Orders = tuple[pipe.Open, pipe.Do, pipe.Do]
opening, short, long = msgspec.msgpack.decode(Path(sys.argv[1]).read_bytes(), type=Orders)
worker, results = TrainingWorker(DataSource(opening.path), opening.federation), queue.SimpleQueue()
worker.start(short.train, short.blobs, results.put)
results.get()
worker.start(long.train, long.blobs, results.put)
print(worker.pid, flush=True)
results.get()
"""


def test_goes_with_its_agent(
    data: Path, federation: Federation, blobs: dict[str, bytes], tmp_path: Path, is_gone: Callable[..., bool]
) -> None:
    """kill -9 of the agent: its training process stops in the middle of an epoch, whatever is left to do."""
    opening = pipe.Open(path=os.fsencode(data), resize=False, device="cpu", federation=federation)
    orders = [
        pipe.Do(number=n, blobs=blobs, train=training(blobs, n, epochs)) for n, epochs in ((1, 1), (2, 10**6))
    ]
    (tmp_path / "orders").write_bytes(msgspec.msgpack.encode((opening, *orders)))
    command = [sys.executable, "-c", AGENT, str(tmp_path / "orders")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        trainer = int(agent.stdout.readline())
        time.sleep(0.2)
        agent.kill()
    assert is_gone(trainer)


def test_says_what_is_wrong_with_data(
    make_worker: MakeWorker, tmp_path: Path, blobs: dict[str, bytes]
) -> None:
    """The reader's own error crosses the process border; jobs on such data fail with the same sentence."""
    np.savez(tmp_path / "wrong.npz", x=np.zeros((20, 9, 9), np.uint8), y=np.zeros(20, np.int64))
    worker, results = make_worker(tmp_path / "wrong.npz"), queue.SimpleQueue[Event]()
    with pytest.raises(DataError, match="9x9") as raised:
        worker.open()
    worker.start(training(blobs, 1), blobs, results.put)
    failed = results.get(timeout=20)
    assert failed == JobFailed("train-1", str(raised.value))


def test_reading_can_be_given_up(make_worker: MakeWorker) -> None:
    """A device that is told to leave while it reads its data does not wait for them."""
    worker = make_worker()
    assert worker.open(lambda: True) is None


def test_reader_dies(make_worker: MakeWorker) -> None:
    """A process that dies over the data, for want of memory say, is told as a sentence."""
    worker = make_worker()
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(worker.open)
        while (pid := worker.pid) is None:
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)  # it has not even imported numpy yet
        with pytest.raises(WorkerError, match="signal 9"):
            opening.result(timeout=20)


def test_settings_travel_whole(federation: Federation) -> None:
    """What the pipe carries comes out as it went in: numbers as keys, tuples, nested values."""
    job = EvaluateJob("evaluate-3", {7: {"global": "a" * 64}})
    order = pipe.Do(number=3, blobs={"a" * 64: b"\0\1"}, evaluate=job)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=pipe.Open | pipe.Do) == order
    opening = pipe.Open(path=b"x", resize=True, device="cpu", federation=federation)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(opening), type=pipe.Open | pipe.Do) == opening


def test_a_new_process_says_what_it_read_before_it_answers(
    make_worker: MakeWorker, blobs: dict[str, bytes], data: Path, tmp_path: Path
) -> None:
    """The data have grown while no process was there: the counts must be known before the update is."""
    arrays = dict(np.load(data))
    few, all_of_them = {name: array[:200] for name, array in arrays.items()}, arrays
    np.savez(tmp_path / "data.npz", **few)
    worker, results = make_worker(tmp_path / "data.npz"), queue.SimpleQueue[object]()
    opened = worker.open()
    assert opened is not None
    worker.on_read(results.put)
    np.savez(tmp_path / "data.npz", **all_of_them)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    while worker.pid is not None:
        time.sleep(0.01)
    worker.start(training(blobs, 1), blobs, results.put)
    found, trained = results.get(timeout=60), results.get(timeout=60)
    assert isinstance(found, pipe.Opened)
    assert found.samples > opened.samples
    assert isinstance(trained, Trained)
    assert trained.data == found.samples
    again = worker.open(again=True)
    assert again is not None
    assert again.samples == found.samples
    assert results.get(timeout=10) == found


def test_what_was_wrong_with_the_data_is_forgotten_once_it_is_mended(
    make_worker: MakeWorker, blobs: dict[str, bytes], data: Path, tmp_path: Path
) -> None:
    place = tmp_path / "data.npz"
    place.write_bytes(data.read_bytes()[:-200])
    worker, results = make_worker(place), queue.SimpleQueue[Event]()
    with pytest.raises(DataError):
        worker.open()
    first = worker.pid
    worker.start(training(blobs, 1), blobs, results.put)
    assert isinstance(results.get(timeout=60), JobFailed)
    place.write_bytes(data.read_bytes())
    worker.start(training(blobs, 2), blobs, results.put)
    assert isinstance(results.get(timeout=60), Trained)
    assert worker.pid == first, "the same process, still warm"


def test_a_path_that_is_no_text(make_worker: MakeWorker, data: Path, tmp_path: Path) -> None:
    """Its name could not be sent to the training process, and `join` waited for ever."""
    place = tmp_path / os.fsdecode(b"caf\xe9.npz")
    place.write_bytes(data.read_bytes())
    assert make_worker(place).open() is not None
    with pytest.raises(DataError, match=r"gone\\xe9: there is no such file"):
        make_worker(tmp_path / os.fsdecode(b"gone\xe9")).open()
