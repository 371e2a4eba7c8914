"""Worker processes of a run: left in the middle of a client's work, they do not finish it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from fedbac_edge.datasets.annotation import annotate
from fedbac_edge.datasets.sources import load
from fedbac_edge.semi.hall import lay_out
from fedbac_edge.semi.study import Study, Training
from fedbac_edge.semi.workers import Workers

CLASSES = tuple("0123456789")


@pytest.mark.timeout(60)
def test_an_exception_does_not_wait_for_a_client(
    data: Path, make_study: Callable[..., Study], tmp_path: Path
) -> None:
    """Without an end put to it, this client would train for hours."""
    study = make_study("fedavg", training=Training(epochs=1_000_000, batch_size=64, learning_rate=0.01))
    train = load(data, classes=CLASSES, input_shape=(1, 28, 28))
    test = load(data, classes=CLASSES, input_shape=(1, 28, 28), split="test")
    split = annotate(train.y, clients=6, setting="6/0/0", share=1.0, alpha=1.0, seed=1)
    hall = lay_out(tmp_path / "scratch", study, split, train, test)
    state = hall.method.begin(hall.bench)
    with contextlib.suppress(KeyboardInterrupt), Workers(hall.folder, 1) as pool:
        pool.score(state, hall.method.views(state))  # it is up
        work = pool.learn(0, state, 1, 0)
        time.sleep(0.5)
        raise KeyboardInterrupt
    assert isinstance(work.exception(), BrokenProcessPool)
