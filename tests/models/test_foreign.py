"""A model of the user's own, "module:factory": allowed by name only, trained and exported like ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from export.clusters import export_all
from export.session import Session
from fedbac_edge.datasets.samples import Samples
from fedbac_edge.federation_file import reading
from fedbac_edge.lab.fleet.world import Process, World
from fedbac_edge.learning.jobs import perform
from fedbac_edge.models.catalog import architecture
from fedbac_edge.models.description import UnknownArchitecture
from fedbac_edge.node import assemble
from fedbac_edge.node.store import Store
from fedbac_edge.parts.part import unpack
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.device.state import Profile
from fedbac_edge.protocol.events import Event, Job
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.settings.federation import Federation

MODULE = '''
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Perceptron:
    """One hidden layer."""

    input_shape: tuple[int, int, int]
    classes: int

    def schema(self):
        size = int(np.prod(self.input_shape))
        last = {"3.weight": (self.classes, 16), "3.bias": (self.classes,)}
        return {"1.weight": (16, size), "1.bias": (16,), **last}

    def init(self, rng):
        return {n: rng.uniform(-0.1, 0.1, shape).astype(np.float32) for n, shape in self.schema().items()}

    def network(self):
        from torch import nn

        size = int(np.prod(self.input_shape))
        return nn.Sequential(nn.Flatten(), nn.Linear(size, 16), nn.ReLU(), nn.Linear(16, self.classes))


def other_classes(input_shape, classes):
    return Perceptron(input_shape, classes + 1)


def nothing(input_shape, classes):
    return "no model"
'''

FEDERATION = """
name = "own"
rounds = 3
eligibility = "roster"
[model]
architecture = "own_models:Perceptron"
input = [1, 8, 8]
classes = ["dark", "light"]
[training]
epochs = 2
learning_rate = 0.05
[gateways]
gw1 = ["d1", "d2"]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The module on the path, and its model allowed."""
    (tmp_path / "own_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FEDBAC_MODELS", "own_models:Perceptron")
    yield "own_models:Perceptron"
    sys.modules.pop("own_models", None)


def samples(seed: int) -> Samples:
    """Dark and light pictures."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, 80).astype(np.int64)
    x = rng.integers(0, 120, (80, 8, 8, 1)) + 130 * y[:, None, None, None]
    return Samples(x.astype(np.uint8), y)


def campaign(federation: Federation, place: Path) -> CloudState:
    """The federation in the virtual world with real training; the cloud's store is left at `place`."""
    world = World()
    spec = Spec(federation=federation, instance="0badcafe", software="")
    cloud = Process(
        "cloud", lambda s: assemble.cloud(federation, "0badcafe", s), Store(place / "cloud.sqlite")
    )
    world.add(cloud)
    world.add(Process("gw1", lambda s: assemble.gateway("own", "gw1", s), Store(None)))

    def add(name: str, seed: int) -> None:
        train, holdout = samples(seed), samples(seed + 100)
        profile = Profile(samples=len(train), labelled=len(train), holdout=len(holdout))

        def work(job: Job, store: Store) -> tuple[float, Event]:
            return 1.0, perform(job, store.blobs, federation, train, holdout)

        world.add(Process(name, lambda s: assemble.device(spec, "gw1", name, profile, s), Store(None), work))

    add("d1", 1)
    add("d2", 2)

    def state() -> CloudState:
        assert cloud.node is not None
        found: CloudState = cloud.node.machine.state
        return found

    assert world.run(lambda: cloud.node is not None and state().phase == "finished")
    cloud.store.close()
    return state()


def test_it_learns_in_a_federation_and_exports_as_a_sum(own: str, tmp_path: Path) -> None:
    federation = reading.parse(FEDERATION)
    state = campaign(federation, tmp_path)
    ((_, path),) = export_all(tmp_path, tmp_path / "models")
    images = samples(7)
    logits = Session(path).logits(images.x)
    assert (logits.argmax(axis=1) == images.y).mean() > 0.9

    store = Store(tmp_path / "cloud.sqlite", read_only=True)
    model = architecture(own, (1, 8, 8), 2)
    x = torch.from_numpy(((images.x / 255.0 - 0.5) / 0.5).astype(np.float32).transpose(0, 3, 1, 2))
    total = torch.zeros(len(images), 2)
    for name in ("global", "cluster-0"):
        part = unpack(store.blobs[state.parts[name].hash], model.schema())
        network = model.network()  # type: ignore[attr-defined]
        network.load_state_dict({key: torch.from_numpy(tensor) for key, tensor in part.items()})
        total += network(x).detach()
    store.close()
    np.testing.assert_allclose(logits, total.numpy(), atol=1e-4)


def test_nothing_is_imported_that_the_machine_does_not_allow(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name may have come over the wire."""
    monkeypatch.delenv("FEDBAC_MODELS")
    with pytest.raises(UnknownArchitecture, match="set FEDBAC_MODELS=own_models:Perceptron"):
        architecture(own, (1, 8, 8), 2)
    assert "own_models" not in sys.modules
    with pytest.raises(reading.FederationError, match="does not allow"):
        reading.parse(FEDERATION)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("own_models:other_classes", "tells 3 classes apart"),
        ("own_models:nothing", "no description"),
        ("own_models:absent", "cannot be made here"),
        ("no_such_module:Model", "No module named"),
    ],
)
def test_what_does_not_fit_is_refused(own: str, name: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDBAC_MODELS", f"{own}, {name}")
    with pytest.raises(UnknownArchitecture, match=why):
        architecture(name, (1, 8, 8), 2)
