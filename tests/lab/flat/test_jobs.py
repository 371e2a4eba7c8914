"""The flat laboratory's work on an engine: parts keep their bits, and an end does not wait for a client."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedbac_edge.datasets.annotation import annotate
from fedbac_edge.datasets.sources import load
from fedbac_edge.lab.engine import PoolError
from fedbac_edge.lab.flat.hall import lay_out
from fedbac_edge.lab.flat.jobs import Workers, read_part, write_part
from fedbac_edge.lab.flat.study import Study, Training
from fedbac_edge.lab.pool import Pool

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
    with contextlib.suppress(KeyboardInterrupt), Pool(1) as engine:
        workers = Workers(engine, hall)
        workers.score(state, hall.method.views(state))  # it is up
        work = workers.learn(0, state, 1, 0)
        time.sleep(0.5)
        raise KeyboardInterrupt
    assert isinstance(work.exception(), PoolError)


def test_a_part_keeps_its_bits_and_the_order_of_its_tensors() -> None:
    part = {
        "last": np.array([[-0.0, np.nan], [np.inf, 1e-45]], np.float32),
        "first": np.array(1.5, np.float32),
        "none": np.zeros((0, 3), np.float32),
    }
    back = read_part(write_part(part))
    assert list(back) == ["last", "first", "none"]
    for name, tensor in part.items():
        assert back[name].dtype == np.float32
        assert back[name].shape == tensor.shape
        assert back[name].tobytes() == tensor.tobytes()
        back[name][...] = 0  # a client may change what it was sent
