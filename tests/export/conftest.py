"""Real images and briefly trained parts, shared by the export tests."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.nn.functional import cross_entropy

from export.served import ServedModel, Term
from fedbac_edge.models.additive import dump, network
from fedbac_edge.models.catalog import architecture

FASHION = Path("/usr/share/datasets/fashion-mnist")
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

Images = npt.NDArray[np.uint8]
MakeModel = Callable[..., ServedModel]


def _idx(name: str, header: int) -> Images:
    path = FASHION / name
    if not path.is_file():
        pytest.skip(f"no Fashion-MNIST under {FASHION}")
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


@pytest.fixture(scope="session")
def test_images() -> Images:
    """(10000, 28, 28, 1)."""
    return _idx("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1)


@pytest.fixture(scope="session")
def test_labels() -> Images:
    return _idx("t10k-labels-idx1-ubyte.gz", 8)


@pytest.fixture(scope="session")
def trained(test_images: Images, test_labels: Images) -> ServedModel:
    """A global and a cluster part trained together for 120 steps on images outside the first 2,000."""
    torch.manual_seed(5)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small batches gain nothing from more, and lose much on a busy machine
    lenet = architecture("lenet", (1, 28, 28), 10)
    networks = [network(lenet) for _ in range(2)]
    pixels = torch.from_numpy(test_images[2000:].copy()).permute(0, 3, 1, 2).float() / 255
    images = (pixels - 0.2860) / 0.3530
    labels = torch.from_numpy(test_labels[2000:].astype(np.int64))
    optimiser = torch.optim.Adam([p for module in networks for p in module.parameters()], 2e-3)
    order = torch.randperm(len(images))
    for step in range(120):
        chosen = order[step * 64 : step * 64 + 64]
        logits = networks[0](images[chosen]) + networks[1](images[chosen])
        optimiser.zero_grad()
        cross_entropy(logits, labels[chosen]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    torch.set_num_threads(threads)
    terms = tuple(
        Term(name, dump(module)) for name, module in zip(("global", "cluster-1"), networks, strict=True)
    )
    metadata = {"federation": "shoes", "round": "7", "cluster": "1", "accuracy": "0.78", "version": "0.1.0"}
    return ServedModel(lenet, terms, (0.2860,), (0.3530,), CLASSES, metadata)


@pytest.fixture(scope="session")
def make_model() -> MakeModel:
    """A model with random weights; coefficients give the number of parts."""

    def make(
        name: str = "lenet",
        shape: tuple[int, int, int] = (1, 28, 28),
        coefficients: tuple[float, ...] = (1.0, 1.0),
        seed: int = 1,
    ) -> ServedModel:
        rng = np.random.default_rng(seed)
        chosen = architecture(name, shape, 10)
        terms = tuple(Term(f"part-{i}", chosen.init(rng), c) for i, c in enumerate(coefficients))
        channels = shape[0]
        return ServedModel(
            chosen, terms, (0.49, 0.48, 0.45)[:channels], (0.25, 0.24, 0.26)[:channels], CLASSES
        )

    return make


@pytest.fixture(scope="session")
def photographs(test_images: Images) -> Callable[[tuple[int, int, int]], Images]:
    """1,000 real test images in the wanted shape: gray as they are, or coloured into 32x32 RGB."""

    def take(shape: tuple[int, int, int]) -> Images:
        gray = test_images[:1000]
        if shape == (1, 28, 28):
            return gray
        framed = np.pad(gray, ((0, 0), (2, 2), (2, 2), (0, 0)))
        tints = np.random.default_rng(3).uniform(0.3, 1.0, (1000, 1, 1, 3))
        coloured: Images = (framed * tints + np.roll(framed, 5, axis=1) * (1 - tints)).astype(np.uint8)
        return coloured

    return take
