"""Real Fashion-MNIST for the tests of learning, and settings that every test may vary."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedbac_edge.learning.compiled import kernel_for
from fedbac_edge.learning.compiler import NoKernel
from fedbac_edge.learning.local import train_jointly
from fedbac_edge.learning.outcomes import LocalUpdate
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import Part
from fedbac_edge.vocabulary.training import Backend, LocalTraining, Normalisation

FASHION = Path("/usr/share/datasets/fashion-mnist")
Labelled = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def _read(images: str, labels: str, count: int) -> Labelled:
    if not (FASHION / images).exists():
        pytest.skip(f"Fashion-MNIST is not at {FASHION} (Debian package dataset-fashion-mnist)")
    with gzip.open(FASHION / images) as stream:
        x = np.frombuffer(stream.read(16 + count * 784), dtype=np.uint8)[16:].reshape(count, 28, 28, 1)
    with gzip.open(FASHION / labels) as stream:
        y = np.frombuffer(stream.read(8 + count), dtype=np.uint8)[8:].astype(np.int64)
    return x, y


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Several threads on small tensors mostly wait for each other; tests of threads ask for theirs."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def fashion() -> Labelled:
    """600 training images (600, 28, 28, 1) and their labels."""
    return _read("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", 600)


@pytest.fixture(scope="session")
def fashion_test() -> Labelled:
    """300 test images and their labels."""
    return _read("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz", 300)


@pytest.fixture(scope="session")
def colour(fashion: Labelled) -> Labelled:
    """200 RGB images (200, 32, 32, 3): three different garments as the three channels, framed in black."""
    x, y = fashion
    framed = np.zeros((200, 32, 32, 3), dtype=np.uint8)
    for channel in range(3):
        framed[:, 2:30, 2:30, channel] = x[channel * 200 : channel * 200 + 200, :, :, 0]
    return framed, y[:200]


@pytest.fixture(scope="session")
def gray() -> Normalisation:
    return Normalisation(mean=(0.286,), std=(0.353,))


@pytest.fixture(scope="session")
def rgb() -> Normalisation:
    return Normalisation(mean=(0.286, 0.3, 0.25), std=(0.353, 0.34, 0.36))


@pytest.fixture
def make_parts() -> Callable[..., dict[str, Part]]:
    """Different random parts for the roles given."""

    def make(model: LeNet, *roles: str) -> dict[str, Part]:
        return {role: model.init(np.random.default_rng([7, index])) for index, role in enumerate(roles)}

    return make


@pytest.fixture
def make_settings() -> Callable[..., LocalTraining]:
    """The paper's settings for one epoch, with changes."""

    def make(**changes: Any) -> LocalTraining:
        values: dict[str, Any] = {
            "epochs": 1,
            "batch_size": 64,
            "learning_rate": 0.01,
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "clip_norm": 1.0,
            "l2": {},
        }
        return LocalTraining(**{**values, **changes})

    return make


@pytest.fixture(scope="session")
def kernel() -> None:
    """Skip where no kernel can be compiled; elsewhere a kernel that fails its own check is a failure."""
    try:
        kernel_for(LeNet())
    except NoKernel as reason:
        if "C compiler" in str(reason) or "FEDBAC_KERNEL" in str(reason):
            pytest.skip(str(reason))
        raise


@pytest.fixture(params=["fused", "compiled"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """The fast paths in turn."""
    if request.param == "compiled":
        request.getfixturevalue("kernel")
    return cast(Backend, request.param)


@pytest.fixture(params=["reference", "fused", "compiled"])
def train(request: pytest.FixtureRequest) -> Callable[..., LocalUpdate]:
    """train_jointly on each path in turn."""
    if request.param == "compiled":
        request.getfixturevalue("kernel")
    return partial(train_jointly, backend=request.param)
