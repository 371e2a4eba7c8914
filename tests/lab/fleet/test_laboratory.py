"""The laboratory on a tiny data set: real worker processes, real stores, every promise held to hashes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedbac_edge.datasets.partition import Partition
from fedbac_edge.lab import presets
from fedbac_edge.lab.fleet import journal, laboratory, run
from fedbac_edge.lab.fleet.faults import Faults
from fedbac_edge.lab.fleet.grounds import Grounds, lay_out
from fedbac_edge.lab.pool import Pool
from fedbac_edge.lab.samples import Place
from fedbac_edge.lab.scenario import Cut, Scenario, ScenarioError, roster
from fedbac_edge.node.store import Store
from fedbac_edge.settings.federation import (
    AssignmentTable,
    Federation,
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


def scenario(method: str = "fedbac", **changes: object) -> Scenario:
    federation = Federation(
        name="tiny",
        seed=5,
        rounds=3,
        eligibility="roster",
        evaluation="test",
        model=ModelTable(classes=("a", "b", "c", "d"), input=(1, 16, 16)),
        method=MethodTable(initial="single"),
        training=TrainingTable(epochs=1, batch_size=16, learning_rate=0.05),
        selection=SelectionTable(participation=0.67, warm_up=1),
        assignment=AssignmentTable(every=2),
        gateways=roster(3, 3),
    )
    cut = Cut(data="corners", alpha_server=0.5, allow_tiny=True)
    federation = msgspec.structs.replace(federation, **changes)
    return presets.with_method(Scenario(federation=federation, cut=cut), method)


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
        alone = run.simulate(scenario(), tmp_path, data, one)
    assert alone == undisturbed[1]
    assert figures(tmp_path) == figures(undisturbed[0])


def test_a_run_is_a_folder_that_explains_itself(undisturbed: tuple[Path, run.Result]) -> None:
    folder, result = undisturbed
    assert not (folder / "scratch").exists()
    about = run.read_about(folder)
    assert about.scenario == scenario()
    assert about.partition == Partition.load(folder / "partition.npz").digest
    assert {"torch", "numpy", "training"} <= set(about.machine)
    rows = journal.read(folder / "metrics.jsonl")
    phases = [(1, "train"), (2, "train"), (2, "evaluate"), (3, "train"), (3, "evaluate")]
    assert [(row.round, row.phase) for row in rows] == phases
    last = rows[-2]
    assert last.accuracy == pytest.approx(np.mean([s.accuracy for s in last.servers.values()]))
    assert last.sigma == pytest.approx(np.std([s.accuracy for s in last.servers.values()]))
    assert sum(server.test for server in last.servers.values()) == TEST
    assert all(len(server.participants) == server.asked == 2 for server in last.servers.values())
    for name, hash in result.parts.items():
        assert (
            laboratory.hashes({name: (folder / "models" / f"{name}.safetensors").read_bytes()})[name] == hash
        )
    with contextlib.closing(Store(folder / "stores" / "gw01.sqlite", read_only=True)) as store:
        assert [line.round for line in store.ledger("selected")] == [1, 2, 3]
        assert not len(store.blobs)
    assert sum(path.stat().st_size for path in (folder / "stores").iterdir()) < 6e6


def test_the_federation_learns_what_is_to_be_learned(data: Path, pool: Pool, tmp_path: Path) -> None:
    training = TrainingTable(epochs=4, batch_size=16, learning_rate=0.05)
    result = run.simulate(scenario(rounds=5, training=training), tmp_path, data, pool)
    assert result.accuracy > 0.9


def test_two_simulations_at_once_in_one_process(
    data: Path, pool: Pool, undisturbed: tuple[Path, run.Result], tmp_path: Path
) -> None:
    results: dict[str, run.Result] = {}

    def work(name: str, what: Scenario) -> None:
        results[name] = run.simulate(what, tmp_path / name, data, pool)

    other = scenario("hierfavg")
    threads = [
        threading.Thread(target=work, args=("same", scenario())),
        threading.Thread(target=work, args=("other", other)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results["same"] == undisturbed[1]
    assert results["other"] == run.simulate(other, tmp_path / "again", data, pool)


def test_lost_packets_and_crashing_devices_change_nothing_but_the_time(
    data: Path, pool: Pool, undisturbed: tuple[Path, run.Result], tmp_path: Path
) -> None:
    troubled = msgspec.structs.replace(
        scenario(), faults=Faults(drop=0.03, duplicate=0.05, delay_s=1.0, crash=0.2)
    )
    result = run.simulate(troubled, tmp_path, data, pool)
    assert result.parts.keys() == undisturbed[1].parts.keys()
    starts = 0
    for path in (tmp_path / "stores").glob("gw*-d*.sqlite"):
        with contextlib.closing(Store(path, read_only=True)) as store:
            starts += msgspec.msgpack.decode(store.read("machine") or b"")["session"]
    assert starts > 9  # somebody did crash
    assert result.hash == undisturbed[1].hash


@pytest.mark.parametrize(
    "faults", [Faults(dropout=0.4), Faults(straggle=0.4, slow_s=700.0)], ids=["dropout", "straggle"]
)
def test_devices_that_drop_out_or_straggle_are_missing_and_always_the_same(
    faults: Faults, data: Path, pool: Pool, tmp_path: Path
) -> None:
    thin = msgspec.structs.replace(scenario(), faults=faults)
    result = run.simulate(thin, tmp_path / "one", data, pool)
    rows = [row for row in journal.read(tmp_path / "one" / "metrics.jsonl") if row.phase == "train"]
    servers = [server for row in rows for server in row.servers.values()]
    assert 0 < sum(len(server.participants) for server in servers) < sum(server.asked for server in servers)
    assert run.simulate(thin, tmp_path / "two", data, pool) == result


def test_kill_and_resume_give_the_same_bits(
    data: Path, undisturbed: tuple[Path, run.Result], tmp_path: Path
) -> None:
    """kill -9 as soon as a round is written; then the run is resumed to its end."""
    spec = tmp_path / "scenario.json"
    spec.write_bytes(msgspec.json.encode(scenario()))
    folder = tmp_path / "run"
    code = (
        "import sys, msgspec; from pathlib import Path\n"
        "from fedbac_edge.lab.fleet import run; from fedbac_edge.lab.pool import Pool\n"
        "from fedbac_edge.lab.scenario import Scenario\n"
        "if __name__ == '__main__':\n"
        "    scenario = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Scenario)\n"
        "    with Pool(1) as pool:\n"
        "        run.simulate(scenario, Path(sys.argv[2]), Path(sys.argv[3]), pool, resume=True)\n"
    )
    script = tmp_path / "again.py"
    script.write_text(code)
    arguments = [sys.executable, str(script), str(spec), str(folder), str(data)]
    process = subprocess.Popen(arguments, start_new_session=True)
    deadline = time.monotonic() + 100
    while not journal.read(folder / "metrics.jsonl") and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "result.json").exists()
    subprocess.run(arguments, check=True, timeout=100)
    result = run.read_result(folder)
    assert result == undisturbed[1]
    assert figures(folder) == figures(undisturbed[0])


def test_a_folder_is_never_mixed_up(
    data: Path, pool: Pool, undisturbed: tuple[Path, run.Result], tmp_path: Path
) -> None:
    folder, result = undisturbed
    with pytest.raises(ScenarioError, match="--resume"):
        run.simulate(scenario(), folder, data, pool)
    with pytest.raises(ScenarioError, match="other settings"):
        run.simulate(scenario("hierfavg"), folder, data, pool, resume=True)
    assert run.simulate(scenario(), folder, data, pool, resume=True) == result
    with pytest.raises(ScenarioError, match="no run"):
        run.read_about(tmp_path)


@pytest.mark.parametrize("method", ["fixed", "random", "single", "ifca", "local", "hierfavg", "fed-cam"])
def test_every_method_runs_at_any_participation(method: str, data: Path, pool: Pool, tmp_path: Path) -> None:
    training = TrainingTable(epochs=2, batch_size=16)
    what = scenario(method, rounds=2, assignment=AssignmentTable(every=1), training=training)
    what = presets.with_method(what, method)
    selection = msgspec.structs.replace(what.federation.selection, participation=0.34)
    federation = msgspec.structs.replace(what.federation, selection=selection)
    what = msgspec.structs.replace(what, federation=federation)
    result = run.simulate(what, tmp_path, data, pool)
    rows = journal.read(tmp_path / "metrics.jsonl")
    moved = [row for row in rows if row.phase == "evaluate" and row.moved]
    assert all(server.asked == 1 for row in rows for server in row.servers.values())
    match method:
        case "fixed" | "local":
            assert result.active_clusters == 3
            assert not moved
        case "single":
            assert result.active_clusters == 1
            assert not moved
        case "ifca" | "fed-cam":
            assert len(result.parts) == (5 if method == "ifca" else 6)
            assert rows[0].round == 0
            with contextlib.closing(Store(tmp_path / "stores" / "cloud.sqlite", read_only=True)) as store:
                for line in store.ledger("sweep", 0):
                    assert line.detail["chosen"] == int(np.argmin(line.detail["losses"]))
                    assert rows[1].servers[line.subject].cluster == line.detail["chosen"]
        case "hierfavg":
            assert set(result.parts) == {"global"}


def test_held_out_samples_are_judged_on_and_never_trained_on(data: Path, pool: Pool, tmp_path: Path) -> None:
    run.simulate(scenario(evaluation="holdout"), tmp_path, data, pool)
    last = [row for row in journal.read(tmp_path / "metrics.jsonl") if row.phase == "train"][-1]
    assert last.holdout_accuracy is not None
    held = sum(server.holdout for server in last.servers.values())
    assert 0.03 * TRAIN < held < 0.2 * TRAIN
    with contextlib.closing(Store(tmp_path / "stores" / "cloud.sqlite", read_only=True)) as store:
        weights = [line.detail["weight"] for line in store.ledger("reported", 1)]
    assert sum(weights) == TRAIN - held


def test_samples_lie_where_the_plan_says(data: Path, tmp_path: Path) -> None:
    from fedbac_edge.datasets.partition import dirichlet
    from fedbac_edge.datasets.sources import load

    federation = scenario(evaluation="holdout").federation
    names, shape = federation.model.classes, federation.model.input
    train = load(data, classes=names, input_shape=shape)
    test = load(data, classes=names, input_shape=shape, split="test")
    cut = dirichlet(
        train.y, test.y, servers=3, clients=3, alpha_server=0.5, alpha_client=0.5, seed=1, allow_tiny=True
    )
    grounds = lay_out(tmp_path, federation, cut, train, test)
    again = Grounds(tmp_path, grounds.federation)
    for m, gateway in enumerate(sorted(federation.gateways)):
        held_labels: list[int] = []
        for i, device in enumerate(federation.gateways[gateway]):
            kept, held = again.samples(again.plan.train[device]), again.samples(again.plan.holdout[device])
            assert not kept.x.flags.owndata  # a view of the map
            own = train.take(cut.train[m][i])
            assert len(kept) + len(held) == len(own)
            both = np.concatenate([kept.x, held.x])
            assert sorted(x.tobytes() for x in both) == sorted(x.tobytes() for x in own.x)
            held_labels += held.y.tolist()
        assert again.samples(again.plan.held[gateway]).y.tolist() == held_labels
        judged = again.samples(again.plan.test[gateway])
        in_order = cut.test[m][np.argsort(test.y[cut.test[m]], kind="stable")]
        assert judged.x.tobytes() == test.take(in_order).x.tobytes()
        pieces = again.per_class(again.plan.test[gateway])
        assert [set(again.samples(piece).y.tolist()) - {label} for label, piece in enumerate(pieces)] == [
            set() for _ in names
        ]
        assert sum(map(len, pieces)) == len(judged)
    assert len(again.samples(Place("train", 4, 4))) == 0


def test_a_torn_line_is_cut_off_and_written_again(
    undisturbed: tuple[Path, run.Result], tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = (undisturbed[0] / "metrics.jsonl").read_bytes()
    path.write_bytes(whole[:-40])
    with contextlib.closing(journal.Journal(path)) as torn:
        assert len(torn.rows) == 4
        assert not torn.has(3, "evaluate")
        torn.append(journal.read(undisturbed[0] / "metrics.jsonl")[-1])
    assert path.read_bytes() == whole
    assert all(json.loads(line) for line in path.read_text().splitlines())
