"""ResNet-8: exact counts, PyTorch's own layers, running statistics in training, averages and encodings."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from export.clusters import export_all
from export.session import Session
from fedbac_edge.datasets import cifar
from fedbac_edge.datasets.samples import Samples
from fedbac_edge.federation_file import reading
from fedbac_edge.federation_file.reading import FederationError
from fedbac_edge.lab.fleet.world import Process, World
from fedbac_edge.learning.evaluation import evaluate
from fedbac_edge.learning.jobs import perform
from fedbac_edge.learning.local import best_backend, train_jointly
from fedbac_edge.learning.normalise import normalise
from fedbac_edge.models.additive import dump, load, network
from fedbac_edge.models.catalog import LeNet, architecture, float_count, parameter_count, shrunk
from fedbac_edge.models.description import UnknownArchitecture, buffers
from fedbac_edge.models.resnet import ResNet8
from fedbac_edge.models.resnet_module import Norm
from fedbac_edge.node import assemble
from fedbac_edge.node.store import Store
from fedbac_edge.parts.aggregation import Contribution, weighted_mean
from fedbac_edge.parts.encodings import NAMES, Encoding, decode, encode
from fedbac_edge.parts.part import Part, PartError, has_variances, is_statistic, pack, unpack
from fedbac_edge.parts.robust import Rule, combine
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.device.state import Profile
from fedbac_edge.protocol.events import Event, Job
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.training import LocalTraining, Normalisation

FULL = ResNet8()
SMALL = ResNet8(input_shape=(3, 16, 16), widths=(4, 8, 16))
RGB = Normalisation(mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))


@pytest.mark.parametrize(
    ("sixteenths", "classes", "count"),
    [
        (1, 10, 5_214),
        (2, 10, 19_954),
        (4, 10, 78_042),
        (8, 10, 308_650),
        (16, 10, 1_227_594),
        (4, 100, 83_892),
        (16, 100, 1_250_724),
    ],
)
def test_trainable_weights_of_every_width(sixteenths: int, classes: int, count: int) -> None:
    model = shrunk(architecture("resnet8", (3, 32, 32), classes), sixteenths)
    assert parameter_count(model) == count
    assert sum(parameter.numel() for parameter in network(model).parameters()) == count


def test_slim_is_the_network_with_a_quarter_of_its_channels() -> None:
    assert architecture("resnet8-slim", (3, 32, 32), 10) == shrunk(
        architecture("resnet8", (3, 32, 32), 10), 4
    )


def test_what_travels_is_more_than_what_is_trained() -> None:
    measured = sum(int(np.prod(FULL.schema()[name])) for name in buffers(FULL))
    assert measured == 2 * 3 * (64 + 128 + 256) == float_count(FULL) - parameter_count(FULL)
    assert not buffers(LeNet())


@pytest.mark.parametrize("model", [FULL, SMALL, ResNet8(input_shape=(1, 28, 28), classes=7)])
def test_state_dict_and_schema_agree_in_names_order_and_shapes(model: ResNet8) -> None:
    state = network(model).state_dict()
    assert [(name, tuple(t.shape)) for name, t in state.items()] == list(model.schema().items())
    assert {t.dtype for t in state.values()} == {torch.float32}, "no counters in a part"


def test_fresh_weights_are_distributed_as_torchs_own() -> None:
    torch.manual_seed(1)
    ours, theirs = FULL.init(np.random.default_rng(3)), dump(network(FULL))
    for name, tensor in ours.items():
        if "norm" in name:
            assert np.array_equal(tensor, theirs[name])
        else:
            near = 0.03 if tensor.size > 1000 else 0.5
            assert np.abs(tensor).max() == pytest.approx(np.abs(theirs[name]).max(), rel=near)
            assert tensor.std() == pytest.approx(theirs[name].std(), rel=near)


def test_our_batch_normalisation_is_torchs() -> None:
    torch.manual_seed(1)
    ours, theirs = Norm(5), nn.BatchNorm2d(5)
    for _ in range(3):
        x = torch.randn(4, 5, 3, 3) * 3 + 1
        torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_images_too_small_for_it_are_refused() -> None:
    with pytest.raises(UnknownArchitecture, match="at least 8x8"):
        architecture("resnet8", (3, 7, 32), 10)


# --- training --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photographs() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """384 test images of CIFAR-10 at half their size, (384, 16, 16, 3)."""
    places = [p / "shared" / "data" / "cifar-10-binary.tar.gz" for p in Path(__file__).resolve().parents]
    found = [place for place in places if place.is_file()]
    if not found:
        pytest.skip("CIFAR-10's archive is not here")
    test = cifar.read(found[0], [str(n) for n in range(10)], "test").take(np.arange(384))
    halved = test.x.reshape(384, 16, 2, 16, 2, 3).mean(axis=(2, 4))
    return halved.astype(np.uint8), test.y


def settings(epochs: int = 1, **changes: object) -> LocalTraining:
    plain = LocalTraining(
        epochs=epochs, batch_size=64, learning_rate=0.05, momentum=0.9, weight_decay=0, clip_norm=5.0, l2={}
    )
    return msgspec.structs.replace(plain, **changes)


Photographs = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def test_it_learns_real_images_and_its_statistics_follow(photographs: Photographs) -> None:
    x, y = photographs
    start = SMALL.init(np.random.default_rng(1))
    assert best_backend(SMALL) == "reference"
    update = train_jointly(SMALL, {"w": start}, x, y, settings(25, learning_rate=0.1), RGB, [1])
    before, after = (
        evaluate(SMALL, [(part, 1.0)], x, y, RGB).correct / len(y) for part in (start, update.parts["w"])
    )
    assert before < 0.25 < 0.5 < after
    assert not np.array_equal(update.parts["w"]["norm.running_mean"], start["norm.running_mean"])
    unpack(pack(update.parts["w"]), SMALL.schema())


def test_a_frozen_part_keeps_its_statistics(photographs: Photographs) -> None:
    x, y = photographs[0][:32], photographs[1][:32]
    parts = {role: SMALL.init(np.random.default_rng(i)) for i, role in enumerate("ab")}
    update = train_jointly(SMALL, parts, x, y, settings(frozen=("a",)), RGB, [1])
    assert pack(update.parts["a"]) == pack(parts["a"])
    assert pack(update.parts["b"]) != pack(parts["b"])


def test_one_sample_is_enough_for_a_step(photographs: Photographs) -> None:
    x, y = photographs[0][:1], photographs[1][:1]
    update = train_jointly(SMALL, {"w": SMALL.init(np.random.default_rng(1))}, x, y, settings(), RGB, [1])
    assert all(np.isfinite(tensor).all() for tensor in update.parts["w"].values())


def test_paths_that_train_lenets_only_are_refused_in_the_federations_file() -> None:
    text = (
        'name = "t"\n[model]\narchitecture = "resnet8"\ninput = [3, 32, 32]\nclasses = ["a", "b"]\n'
        'mean = [0.5, 0.5, 0.5]\nstd = [0.5, 0.5, 0.5]\n[training]\nbackend = "{}"\n'
    )
    for backend in ("auto", "reference"):
        assert reading.parse(text.format(backend)).training.backend == backend
    for backend in ("compiled", "fused"):
        with pytest.raises(FederationError, match=r"\[training\] backend.*LeNets only; for resnet8 say"):
            reading.parse(text.format(backend))


FEDERATION = """
name = "r"
rounds = 1
eligibility = "roster"
[model]
architecture = "resnet8"
input = [3, 16, 16]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
mean = [0.49, 0.48, 0.45]
std = [0.25, 0.24, 0.26]
[method]
name = "METHOD"
[training]
epochs = 1
batch_size = 16
[gateways]
gw1 = ["d1", "d2"]
"""


def campaign(federation: Federation, place: Path, samples: Samples) -> tuple[CloudState, Store]:
    """The federation in the virtual world with real training on a handful of samples."""
    world = World()
    spec = Spec(federation=federation, instance="0badcafe", software="")
    store = Store(place / "cloud.sqlite")
    cloud = Process("cloud", lambda s: assemble.cloud(federation, "0badcafe", s), store)
    world.add(cloud)
    world.add(Process("gw1", lambda s: assemble.gateway("r", "gw1", s), Store(None)))
    for number, name in enumerate(("d1", "d2")):
        train = samples.take(np.arange(20 * number, 20 * number + 16))
        holdout = samples.take(np.arange(20 * number + 16, 20 * number + 20))

        def work(
            job: Job, s: Store, train: Samples = train, holdout: Samples = holdout
        ) -> tuple[float, Event]:
            return 1.0, perform(job, s.blobs, federation, train, holdout)

        def member(s: Store, name: str = name) -> object:
            return assemble.device(spec, "gw1", name, Profile(samples=16, labelled=16, holdout=4), s)

        world.add(Process(name, member, Store(None), work))  # type: ignore[arg-type]

    def state() -> CloudState:
        assert cloud.node is not None
        found: CloudState = cloud.node.machine.state
        return found

    assert world.run(lambda: cloud.node is not None and state().phase == "finished")
    return state(), store


@pytest.mark.parametrize("method", ["hierfavg", "fedbac"])
def test_a_federation_trains_it(method: str, photographs: Photographs, tmp_path: Path) -> None:
    federation = reading.parse(FEDERATION.replace("METHOD", method))
    model = architecture("resnet8", (3, 16, 16), 10)
    state, store = campaign(federation, tmp_path, Samples(*photographs))
    images = photographs[0][:20]
    x = torch.from_numpy(normalise(images, RGB))
    total = torch.zeros(20, 10)
    for name, reference in state.parts.items():
        part = unpack(store.blobs[reference.hash], model.schema())
        assert not np.array_equal(part["stage3.norm2.running_var"], np.ones(256)), name
        assert has_variances(part)
        module = network(model).eval()
        load(module, part)
        total += module(x).detach()
    store.close()
    ((_, path),) = export_all(tmp_path, tmp_path / "models")
    np.testing.assert_allclose(Session(path).logits(images), total.numpy(), atol=1e-3, rtol=1e-3)


# --- averages and encodings -------------------------------------------------------------------------


def moved(base: Part, seed: int, weights: float = 0.01, statistics: float = 0.4) -> Part:
    """`base` after a step; variances stay above zero, some of them closely."""
    rng = np.random.default_rng(seed)
    part = {}
    for name, tensor in base.items():
        step = (statistics if is_statistic(name) else weights) * rng.standard_normal(tensor.shape)
        part[name] = np.asarray(tensor + step, np.float32)
        if name.endswith("running_var"):
            part[name] = np.maximum(part[name], np.float32(1e-4))
    return part


def test_statistics_are_averaged_with_the_same_weights() -> None:
    base = SMALL.init(np.random.default_rng(0))
    one, other = moved(base, 1), moved(base, 2)
    mean = weighted_mean([(one, 3.0), (other, 1.0)])
    assert mean is not None
    for name in ("conv.weight", "norm.running_mean", "norm.running_var"):
        np.testing.assert_allclose(mean[name], 0.75 * one[name] + 0.25 * other[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("encoding", NAMES)
def test_statistics_travel_as_they_are(encoding: Encoding) -> None:
    base = SMALL.init(np.random.default_rng(0))
    part = moved(base, 1)
    data, left = encode(encoding, part, base, None)
    again, _ = encode(encoding, part, base, left)
    for sent in (data, again):
        found = decode(encoding, sent, base, SMALL.schema())
        assert all(np.array_equal(found[name], part[name]) for name in SMALL.buffers)
        assert has_variances(found)
        assert np.abs(found["fc.weight"] - part["fc.weight"]).max() < 1e-3
    if left is not None:
        unpack(pack(left), SMALL.schema())
    full = ResNet8().init(np.random.default_rng(0))
    size = len(encode(encoding, moved(full, 1), full, None)[0])
    assert size < {"float32": 4.02, "float16": 2.02, "int8": 1.02}[encoding] * 1_230_282


@pytest.mark.parametrize("encoding", NAMES)
def test_a_variance_below_zero_is_refused(encoding: Encoding) -> None:
    base = SMALL.init(np.random.default_rng(0))
    bad = {**base, "norm.running_var": np.array([1, 1, -1e-3, 1], np.float32)}
    data, _ = encode(encoding, bad, base, None)
    with pytest.raises(PartError, match="variance below zero"):
        decode(encoding, data, base, SMALL.schema())


@pytest.mark.parametrize("name", ["clip", "trimmed-mean", "median", "multi-krum"])
def test_robust_rules_bound_weights_and_statistics_alike(name: str) -> None:
    """One of seven sends a thousandfold step in both; statistics alone must not hide the weights' either."""
    base = SMALL.init(np.random.default_rng(0))
    honest = [moved(base, seed) for seed in range(6)]
    hostile = moved(base, 9, weights=10.0, statistics=400.0)
    updates = [Contribution(1.0, lambda p=part: p) for part in (*honest, hostile)]  # type: ignore[misc]
    part = combine(Rule(name), updates, base)  # type: ignore[arg-type]
    assert part is not None
    assert has_variances(part)
    for tensor, most in (("stage3.conv2.weight", 0.03), ("stage3.norm2.running_mean", 1.5)):
        assert np.abs(part[tensor] - base[tensor]).max() < most


def test_clipping_takes_weights_and_statistics_by_themselves() -> None:
    base: Part = {"w": np.zeros(1, np.float32), "n.running_mean": np.zeros(1, np.float32)}
    updates = [
        Contribution(1.0, lambda w=w, s=s: {"w": np.full(1, w), "n.running_mean": np.full(1, s)})  # type: ignore[misc]
        for w, s in ((1, 10), (2, 20), (9, 90))
    ]
    part = combine(Rule("clip"), updates, base)
    assert part is not None
    assert (part["w"][0], part["n.running_mean"][0]) == (pytest.approx(5 / 3), pytest.approx(50 / 3))


def test_a_part_survives_load_and_dump() -> None:
    part = moved(SMALL.init(np.random.default_rng(1)), 5)
    module = network(SMALL)
    load(module, part)
    assert pack(dump(module)) == pack(part)
