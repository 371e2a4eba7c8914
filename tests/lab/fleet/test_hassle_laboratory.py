"""HASSLE in the laboratory: real training, annotation splits, every view measured, hashes that hold."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from export import from_store
from export.clusters import export_all
from export.served import ExportError
from export.session import Session
from fedbac_edge.datasets.annotation import Annotation, annotate
from fedbac_edge.datasets.sources import load
from fedbac_edge.lab import presets
from fedbac_edge.lab.engine import PoolError
from fedbac_edge.lab.fleet import journal, run
from fedbac_edge.lab.pool import Pool
from fedbac_edge.lab.scenario import Cut, Scenario, ScenarioError, check, roster
from fedbac_edge.methods import method
from fedbac_edge.node.store import Store
from fedbac_edge.protocol.cloud import releasing
from fedbac_edge.protocol.events import ReleaseJob, Work
from fedbac_edge.releases import builder
from fedbac_edge.settings.federation import (
    Federation,
    HassleTable,
    MethodTable,
    ModelTable,
    SelectionTable,
    TrainingTable,
)

TRAIN, TEST = 480, 240


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.tobytes())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """IDX files of 16x16 images: class c has a bright square in corner c, on noise."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(3)
    for name, count in (("train", TRAIN), ("t10k", TEST)):
        labels = rng.integers(0, 4, count).astype(np.uint8)
        images = rng.integers(0, 120, (count, 16, 16)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            top, left = 8 * (label // 2), 8 * (label % 2)
            image[top : top + 8, left : left + 8] += 90
        write_idx(folder / f"{name}-images-idx3-ubyte", images)
        write_idx(folder / f"{name}-labels-idx1-ubyte", labels)
    return folder


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(2) as pool:
        yield pool


def scenario(gateways: int = 2, **changes: object) -> Scenario:
    """Eight devices: one with labels only, three with some, four with none."""
    federation = Federation(
        name="tiny",
        seed=5,
        rounds=3,
        eligibility="roster",
        evaluation="test",
        model=ModelTable(classes=("a", "b", "c", "d"), input=(1, 16, 16)),
        method=MethodTable(name="hassle", cloud_weight="participants"),
        training=TrainingTable(
            epochs=2, batch_size=16, learning_rate=0.05, learning_rate_decay=1.0, weight_decay=0.0
        ),
        selection=SelectionTable(method="random", participation=0.75),
        hassle=HassleTable(residual_steps=10),
        gateways=roster(gateways, 8 // gateways),
    )
    cut = Cut(data="corners", form="annotation", annotation="1/3/4", labelled=0.3, alpha_client=1.0)
    federation = msgspec.structs.replace(federation, **changes)
    return check(Scenario(method="hassle", federation=federation, cut=cut))


@pytest.fixture(scope="module")
def undisturbed(data: Path, pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, run.Result]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, run.simulate(scenario(), folder, data, pool)


def figures(folder: Path) -> list[dict[str, object]]:
    """The rows without how long they took."""
    rows = [msgspec.to_builtins(row) for row in journal.read(folder / "metrics.jsonl")]
    return [{k: v for k, v in row.items() if k not in ("wall_s", "virtual_s")} for row in rows]


def test_any_number_of_workers_gives_the_same_bits(
    data: Path, undisturbed: tuple[Path, run.Result], tmp_path: Path
) -> None:
    with Pool(1) as one:
        assert run.simulate(scenario(), tmp_path, data, one) == undisturbed[1]
    assert figures(tmp_path) == figures(undisturbed[0])


def test_rows_measure_every_view_and_their_accuracy_is_that_of_the_ensemble(
    undisturbed: tuple[Path, run.Result],
) -> None:
    rows = [row for row in journal.read(undisturbed[0] / "metrics.jsonl") if row.phase == "train"]
    assert len(rows) == 3
    for row in rows:
        assert set(row.views) == {"EM", "SM", "UM"}
        assert row.views["EM"] == row.accuracy
        assert all(set(server.views) == {"EM", "SM", "UM"} for server in row.servers.values())
    assert rows[0].traffic.sent_up < rows[1].traffic.sent_up, "round 1 sends residuals only"
    assert rows[2].traffic.sent_up < rows[2].traffic.sent_down, "more is read than trained"


@pytest.mark.parametrize("breaks_after", [1, 2])
def test_a_run_that_was_broken_off_goes_on_to_the_same_bits(
    data: Path, pool: Pool, undisturbed: tuple[Path, run.Result], tmp_path: Path, breaks_after: int
) -> None:
    """Also the row of a round whose duals are two generations old by then."""

    def stop(row: journal.Row) -> None:
        if row.round == breaks_after:
            raise PoolError("broken off")

    with pytest.raises(PoolError, match="broken off"):
        run.simulate(scenario(), tmp_path, data, pool, tell=stop)
    kept = journal.read(tmp_path / "metrics.jsonl")[:-1]  # as if killed before this line was written
    lines = b"".join(msgspec.json.encode(row) + b"\n" for row in kept)
    (tmp_path / "metrics.jsonl").write_bytes(lines)
    assert run.simulate(scenario(), tmp_path, data, pool, resume=True) == undisturbed[1]
    assert figures(tmp_path) == figures(undisturbed[0])


def test_what_is_exported_is_as_good_as_the_rows_say(
    data: Path, undisturbed: tuple[Path, run.Result], tmp_path: Path
) -> None:
    """Every view, of two generations and unlike networks, as one ONNX file."""
    folder, _ = undisturbed
    last = [row for row in journal.read(folder / "metrics.jsonl") if row.phase == "train"][-1]
    with contextlib.closing(Store(folder / "stores" / "cloud.sqlite", read_only=True)) as store:
        (cluster,) = from_store.clusters(store)
        assert [term.coefficient for term in cluster.model.terms] == [0.5] * 4
        with pytest.raises(ExportError, match="one of: EM, SM, UM"):
            from_store.clusters(store, "TM")
    test = load(data, classes=("a", "b", "c", "d"), input_shape=(1, 16, 16), split="test")
    stale = tmp_path / "cluster-7.onnx"
    stale.write_bytes(b"of a cluster left since")
    for view in ("", "SM", "UM"):
        ((found, path),) = export_all(folder / "stores", tmp_path, view=view)
        assert found.model.metadata["view"] == (view or "EM")
        right = np.mean(Session(path).logits(test.x).argmax(axis=1) == test.y)
        assert right == pytest.approx(last.views[view or "EM"], abs=0.01)
    assert sorted(path.name for path in tmp_path.glob("*.onnx")) == [
        "cluster-0-SM.onnx",
        "cluster-0-UM.onnx",
        "cluster-0.onnx",
    ], "no view replaces another"


def test_a_release_is_the_served_view(
    data: Path, undisturbed: tuple[Path, run.Result], tmp_path: Path
) -> None:
    """The same file as the export's, but for what it says of itself."""
    folder, _ = undisturbed
    with contextlib.closing(Store(folder / "stores" / "cloud.sqlite", read_only=True)) as store:
        federation, state = from_store.read(store)
        (work,) = releasing.order(state, method(federation), state.round)
        assert isinstance(work, Work)
        assert isinstance(work.job, ReleaseJob)
        (cluster,) = work.job.clusters.values()
        assert set(cluster.parts) == {"supervised", "unsupervised", "residual-s", "residual-u"}
        assert cluster.parts["supervised"] == state.previous["supervised"].hash
        built = builder.build(builder.Order(federation=federation, job=work.job, blobs=dict(store.blobs)))
    ((_, path),) = export_all(folder / "stores", tmp_path)
    test = load(data, classes=("a", "b", "c", "d"), input_shape=(1, 16, 16), split="test")
    assert np.array_equal(Session(built[0].onnx).logits(test.x), Session(path).logits(test.x))


def test_the_same_devices_on_one_gateway_learn(data: Path, pool: Pool, tmp_path: Path) -> None:
    training = TrainingTable(
        epochs=4, batch_size=16, learning_rate=0.05, learning_rate_decay=1.0, weight_decay=0.0
    )
    what = scenario(1, rounds=16, training=training)
    result = run.simulate(what, tmp_path, data, pool)
    assert result.accuracy > 0.7, "four classes, 144 labels in all"


def test_a_federation_of_labels_only_leaves_the_unlabelled_aside(
    data: Path, pool: Pool, tmp_path: Path
) -> None:
    what = presets.with_method(scenario(), "hierfavg")
    run.simulate(what, tmp_path, data, pool)
    with contextlib.closing(Store(tmp_path / "stores" / "gw01.sqlite", read_only=True)) as store:
        assert {line.subject for line in store.ledger("accepted")} == {"gw01-d01", "gw01-d02"}


def test_a_beginning_without_run_json_leaves_its_split_to_nobody(
    data: Path, pool: Pool, tmp_path: Path
) -> None:
    """A kill between annotation.npz and run.json, then another scenario in the same folder."""
    what = scenario(rounds=1)
    model = what.federation.model
    labels = load(data, classes=model.classes, input_shape=model.input).y
    annotate(labels, clients=8, setting="PL", share=0.2, seed=9).save(tmp_path / "annotation.npz")
    run.simulate(what, tmp_path, data, pool)
    assert Annotation.load(tmp_path / "annotation.npz").setting == what.cut.annotation


def paper() -> Scenario:
    return scenario(hassle=HassleTable(residual_steps=10, pairing="paper"), rounds=4)


def losses(row: journal.Row) -> dict[str, float]:
    """Of the served model, by server."""
    return {name: server.loss for name, server in row.servers.items()}


@pytest.fixture(scope="module")
def undisturbed_paper(
    data: Path, pool: Pool, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, run.Result]:
    folder = tmp_path_factory.mktemp("paper")
    return folder, run.simulate(paper(), folder, data, pool)


def test_the_papers_pairing_gives_the_same_bits_with_any_number_of_workers(
    data: Path, undisturbed_paper: tuple[Path, run.Result], tmp_path: Path
) -> None:
    with Pool(1) as one:
        assert run.simulate(paper(), tmp_path, data, one) == undisturbed_paper[1]
    assert figures(tmp_path) == figures(undisturbed_paper[0])


def test_the_papers_pairing_serves_a_pair_for_two_rounds(undisturbed_paper: tuple[Path, run.Result]) -> None:
    """Residuals train beside duals that are served with them until there are new residuals."""
    rows = [row for row in journal.read(undisturbed_paper[0] / "metrics.jsonl") if row.phase == "train"]
    assert [row.round for row in rows] == [1, 2, 3, 4]
    for odd, even in ((rows[0], rows[1]), (rows[2], rows[3])):
        assert odd.views == even.views
        assert losses(odd) == losses(even)
        assert even.traffic.sent_up > 5 * odd.traffic.sent_up > 0, "duals are larger"
    assert losses(rows[1]) != losses(rows[2])


@pytest.mark.parametrize("breaks_after", [1, 2, 3])
def test_a_run_with_the_papers_pairing_goes_on_to_the_same_bits(
    data: Path, pool: Pool, undisturbed_paper: tuple[Path, run.Result], tmp_path: Path, breaks_after: int
) -> None:
    def stop(row: journal.Row) -> None:
        if row.round == breaks_after:
            raise PoolError("broken off")

    with pytest.raises(PoolError, match="broken off"):
        run.simulate(paper(), tmp_path, data, pool, tell=stop)
    kept = journal.read(tmp_path / "metrics.jsonl")[:-1]  # as if killed before this line was written
    lines = b"".join(msgspec.json.encode(row) + b"\n" for row in kept)
    (tmp_path / "metrics.jsonl").write_bytes(lines)
    assert run.simulate(paper(), tmp_path, data, pool, resume=True) == undisturbed_paper[1]
    assert figures(tmp_path) == figures(undisturbed_paper[0])


def test_without_residuals_the_duals_train_from_round_one(data: Path, pool: Pool, tmp_path: Path) -> None:
    what = scenario(hassle=HassleTable(align_residuals=False), rounds=2)
    result = run.simulate(what, tmp_path, data, pool)
    assert set(result.parts) == {"supervised", "unsupervised"}


def test_presets_are_the_papers_settings() -> None:
    what = check(presets.preset("paper/hassle-cifar10"))
    federation, training = what.federation, what.federation.training
    assert {gateway: len(devices) for gateway, devices in federation.gateways.items()} == {"gw01": 20}
    assert (federation.rounds, federation.selection.participation, federation.selection.method) == (
        200,
        0.4,
        "random",
    )
    assert (training.epochs, training.batch_size, training.learning_rate) == (10, 128, 0.1)
    assert federation.learning_rate(200) == 0.1
    assert (training.momentum, training.weight_decay, training.clip_norm) == (0.9, 0.0, 1e9)
    assert federation.model.architecture == "resnet8"
    assert federation.hassle == HassleTable()
    assert (what.cut.form, what.cut.annotation, what.cut.labelled) == ("annotation", "default", 0.1)
    fashion = presets.preset("paper/hassle-fashion-mnist").federation
    assert fashion.model.architecture == "lenet"
    assert (fashion.training.learning_rate, fashion.training.clip_norm) == (0.03, 1.0), "no batch norm"
    with pytest.raises(ScenarioError, match="annotation split"):
        check(msgspec.structs.replace(what, cut=msgspec.structs.replace(what.cut, drift_round=3)))


def test_devices_can_be_without_labels_on_any_cut(data: Path, tmp_path: Path) -> None:
    """Of four devices at each of two servers the last three have no labels left, and only they."""
    what = scenario(gateways=2)
    cut = Cut(data="corners", alpha_server=1.0, unlabelled_devices=3, allow_tiny=True)
    what = check(msgspec.structs.replace(what, cut=cut))
    grounds = run.grounds_of(what, tmp_path, data)
    for gateway, devices in what.federation.gateways.items():
        for number, device in enumerate(devices):
            samples, unlabelled = grounds.counts(device)
            assert unlabelled == (samples if number else 0)
        assert (grounds.samples(grounds.plan.test[gateway]).y >= 0).all()
    with pytest.raises(ScenarioError, match="keeps one with labels"):
        check(msgspec.structs.replace(what, cut=msgspec.structs.replace(cut, unlabelled_devices=4)))
    with pytest.raises(ScenarioError, match="itself decides"):
        check(
            msgspec.structs.replace(what, cut=msgspec.structs.replace(scenario().cut, unlabelled_devices=1))
        )
