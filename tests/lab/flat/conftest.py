"""A small copy of real Fashion-MNIST as files, a bench with a small network, and studies that end soon."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbac_edge.datasets.samples import UNLABELLED, Samples
from fedbac_edge.lab.flat.method import Bench, Client
from fedbac_edge.lab.flat.study import Study, Training
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.vocabulary.training import Normalisation

FASHION = Path("/usr/share/datasets/fashion-mnist")
SIZES = {"train": 600, "t10k": 200}


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of IDX pairs: 600 training and 200 test samples."""
    folder = tmp_path_factory.mktemp("fashion")
    for name, count in SIZES.items():
        for kind, head, size in (("images-idx3", 16, 784), ("labels-idx1", 8, 1)):
            source = FASHION / f"{name}-{kind}-ubyte.gz"
            if not source.exists():
                pytest.skip(f"Fashion-MNIST is not at {FASHION} (Debian package dataset-fashion-mnist)")
            with gzip.open(source) as stream:
                content = bytearray(stream.read(head + count * size))
            content[4:8] = count.to_bytes(4, "big")
            (folder / f"{name}-{kind}-ubyte").write_bytes(bytes(content))
    return folder


@pytest.fixture(scope="session")
def pictures(data: Path) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, np.dtype[np.int64]]]:
    """600 images (600, 28, 28, 1) and their labels."""
    x = np.frombuffer((data / "train-images-idx3-ubyte").read_bytes(), np.uint8)[16:]
    y = np.frombuffer((data / "train-labels-idx1-ubyte").read_bytes(), np.uint8)[8:]
    return x.reshape(-1, 28, 28, 1), y.astype(np.int64)


@pytest.fixture(scope="session")
def make_bench() -> Callable[..., Bench]:
    """A bench with a small LeNet; changes go to the training."""

    def make(**changes: Any) -> Bench:
        settings = {"epochs": 1, "batch_size": 32, "learning_rate": 0.02, **changes}
        return Bench(
            model=LeNet(widths=(2, 4, 12, 10)),
            normalisation=Normalisation(mean=(0.286,), std=(0.353,)),
            training=Training(**settings),
            rounds=4,
            seed=3,
            backend="reference",
        )

    return make


@pytest.fixture(scope="session")
def make_client(
    pictures: tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, np.dtype[np.int64]]],
) -> Callable[[int, int], Client]:
    """A client with so many labelled and so many unlabelled samples."""
    x, y = pictures

    def make(labelled: int, unlabelled: int) -> Client:
        stop = labelled + unlabelled
        hidden = np.full(unlabelled, UNLABELLED, np.int64)
        return Client(1, Samples(x[:labelled], y[:labelled]), Samples(x[labelled:stop], hidden))

    return make


@pytest.fixture(scope="session")
def make_study() -> Callable[..., Study]:
    """Six clients, three of them in each of two rounds, one epoch."""

    def make(method: str, **changes: Any) -> Study:
        values: dict[str, Any] = {
            "clients": 6,
            "selected": 3,
            "rounds": 2,
            "labels": 0.3,
            "alpha": 1.0,
            "training": Training(epochs=1, batch_size=64, learning_rate=0.02),
        }
        return Study(method=method, **{**values, **changes})

    return make
