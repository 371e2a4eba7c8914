"""A torch that ends its process, hangs or cannot be imported: imitated by a package of this name."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from device_agent.loading import LOAD_S, TRIES
from device_agent.worker import DataSource, TrainingWorker
from fedbac_edge.methods import method
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import digest, pack
from fedbac_edge.protocol.events import Event, JobFailed, Trained, TrainJob
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.training import LocalTraining

BROKEN = {
    "dies": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGILL)",
        "SIGILL: a build for another processor",
    ),
    "hangs": ("import time\ntime.sleep(1000)", "did not come to an end within 2 s"),
    "misses a library": ("raise ImportError('libcudart.so.12: not here')", "libcudart.so.12"),
}
NO_MEMORY = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"

Break = Callable[[str], Path]


@pytest.fixture
def break_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Break:
    """Puts a torch of this source before the real one, for processes that start from here on."""

    def make(source: str) -> Path:
        package = tmp_path / "broken" / "torch"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(source)
        monkeypatch.syspath_prepend(str(package.parent))
        return package

    return make


@pytest.fixture
def load_s() -> float:
    """Seconds after which loading hangs."""
    return LOAD_S


@pytest.fixture
def worker(data: Path, federation: Federation, load_s: float) -> Iterator[TrainingWorker]:
    made = TrainingWorker(DataSource(str(data), device="cpu"), federation, load_s=load_s)
    yield made
    made.close()


@pytest.fixture
def train(worker: TrainingWorker, federation: Federation) -> Callable[[], Event]:
    """Asks for one job and waits for what comes of it."""
    drawn = {name: pack(part) for name, part in method(federation).initial(LeNet(), 1).items()}
    blobs = {digest(data): data for data in drawn.values()}
    parts = {"global": digest(drawn["global"]), "cluster": digest(drawn["cluster-0"])}
    settings = LocalTraining(
        epochs=1, batch_size=32, learning_rate=0.01, momentum=0.9, weight_decay=0, clip_norm=1.0, l2={}
    )

    def ask() -> Event:
        results: queue.SimpleQueue[Event] = queue.SimpleQueue()
        worker.start(TrainJob("train-1", parts, {}, settings, (1,)), blobs, results.put)
        return results.get(timeout=120)

    return ask


@pytest.mark.parametrize("load_s", [2.0])
@pytest.mark.parametrize("how", BROKEN)
def test_after_three_failures_the_verdict_is_final(
    how: str, break_torch: Break, train: Callable[[], Event]
) -> None:
    source, cause = BROKEN[how]
    break_torch(source)
    answers = [train() for _ in range(TRIES + 2)]
    assert all(isinstance(answer, JobFailed) for answer in answers)
    assert [answer.final for answer in answers] == [False, False, True, True, True]  # type: ignore[union-attr]
    assert all(cause in answer.reason for answer in answers)  # type: ignore[union-attr]
    assert "cannot train without it" in answers[-1].reason  # type: ignore[union-attr]


def test_what_has_passed_is_forgotten(break_torch: Break, train: Callable[[], Event]) -> None:
    package = break_torch(BROKEN["dies"][0])
    assert [isinstance(train(), JobFailed) for _ in range(TRIES - 1)] == [True] * (TRIES - 1)
    (package / "__init__.py").rename(package.parent / "away")
    package.rename(package.with_name("away too"))
    assert isinstance(train(), Trained), "mended"


def test_lack_of_memory_is_not_the_end(break_torch: Break, train: Callable[[], Event]) -> None:
    break_torch(NO_MEMORY)
    for _ in range(TRIES + 1):
        answer = train()
        assert isinstance(answer, JobFailed)
        assert not answer.final
        assert "memory" in answer.reason


@pytest.mark.parametrize("load_s", [2.0])
def test_a_cancelled_job_lets_torch_be_loaded(
    tmp_path: Path, break_torch: Break, worker: TrainingWorker, train: Callable[[], Event]
) -> None:
    """Else a machine that loads torch for longer than a round takes would never train."""
    break_torch(f"import time\nopen({str(tmp_path / 'loads')!r}, 'a').write('x')\ntime.sleep(1000)")
    worker.start(TrainJob("train-0", {}, {}, _none(), (1,)), {}, lambda event: None)
    while not (tmp_path / "loads").exists():
        pass
    worker.cancel()
    assert isinstance(train(), JobFailed), "of the second process, after the first one hung"
    assert (tmp_path / "loads").read_text() == "xx"


def _none() -> LocalTraining:
    return LocalTraining(
        epochs=1, batch_size=1, learning_rate=0.01, momentum=0.0, weight_decay=0, clip_norm=1.0, l2={}
    )
