"""Runs end with the same models whatever the number of workers and through kills; what is wrong is said."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fedbac_edge.datasets.annotation import Annotation, AnnotationError
from fedbac_edge.lab.flat import run as study_run
from fedbac_edge.lab.flat.method import Answer, Bench, Client, Holding, method_of
from fedbac_edge.lab.flat.rows import read
from fedbac_edge.lab.flat.run import Result
from fedbac_edge.lab.flat.server import drawn
from fedbac_edge.lab.flat.study import METHODS, Study, StudyError, StudyFailed, Training, check
from fedbac_edge.lab.pool import Pool
from fedbac_edge.parts.part import Part
from fedbac_edge.reports.merit import merit
from fedbac_edge.reports.reading import read_run

MakeStudy = Callable[..., Study]


def run(study: Study, folder: Path, data: Path, workers: int, **options: Any) -> Result:
    """The study with so many workers of this machine."""
    with Pool(workers) as engine:
        return study_run.run(study, folder, data, engine, **options)


@pytest.fixture(scope="module")
def undisturbed(data: Path, make_study: MakeStudy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "fixmatch"
    run(make_study("fixmatch", options={"tau": 0.2}, rounds=3), folder, data, 1)
    return folder


def hash_of(folder: Path) -> str:
    found: str = json.loads((folder / "result.json").read_bytes())["hash"]
    return found


def test_any_number_of_workers_and_a_kill_give_the_same_models(
    data: Path, undisturbed: Path, make_study: MakeStudy, tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    program = (
        "import sys, msgspec; from pathlib import Path; from fedbac_edge.lab.flat.run import run\n"
        "from fedbac_edge.lab.flat.study import Study\n"
        "from fedbac_edge.lab.pool import Pool\n"
        "if __name__ == '__main__':\n"
        "    study = msgspec.json.decode(sys.argv[1], type=Study)\n"
        "    with Pool(2) as engine:\n"
        "        run(study, Path(sys.argv[2]), Path(sys.argv[3]), engine, resume=True)\n"
    )
    script = tmp_path / "program.py"
    script.write_text(program)
    study = json.loads((undisturbed / "run.json").read_bytes())["study"]
    command = [sys.executable, str(script), json.dumps(study), str(folder), str(data)]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while not read(folder / "metrics.jsonl"):
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    finally:
        process.wait()
    with (folder / "metrics.jsonl").open("ab") as torn:
        torn.write(b'{"round": 9')
    assert not (folder / "result.json").exists()
    _await_end_of_workers(process.pid)

    assert subprocess.run(command, check=False).returncode == 0
    assert hash_of(folder) == hash_of(undisturbed)
    one, other = (
        [{**row, "wall_s": 0} for row in map(json.loads, (f / "metrics.jsonl").read_text().splitlines())]
        for f in (folder, undisturbed)
    )
    assert one == other
    assert [row["round"] for row in one] == [1, 2, 3]


def test_a_ray_cluster_gives_the_same_models(
    data: Path, undisturbed: Path, make_study: MakeStudy, tmp_path: Path
) -> None:
    if find_spec("ray") is None:  # imported by the engine alone, which prepares for it
        pytest.skip("Ray is not installed")
    from fedbac_edge.lab.ray_engine import RayEngine

    study = make_study("fixmatch", options={"tau": 0.2}, rounds=3)
    with RayEngine(2, "local") as engine:
        assert study_run.run(study, tmp_path / "ray", data, engine).hash == hash_of(undisturbed)


def _await_end_of_workers(session: int) -> None:
    """Workers end when their parent is gone, however it went."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        try:
            os.killpg(session, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(session, signal.SIGKILL)
    raise AssertionError("worker processes outlived their parent by a minute")


def test_a_finished_run_gives_its_result_and_no_other_run_goes_in(
    data: Path, undisturbed: Path, make_study: MakeStudy
) -> None:
    study = make_study("fixmatch", options={"tau": 0.2}, rounds=3)
    assert run(study, undisturbed, data, 1, resume=True).hash == hash_of(undisturbed)
    with pytest.raises(StudyError, match="--resume"):
        run(study, undisturbed, data, 1)
    with pytest.raises(StudyError, match="other settings"):
        run(make_study("fixmatch", rounds=4), undisturbed, data, 1, resume=True)


def test_a_beginning_without_run_json_leaves_its_split_to_nobody(
    data: Path, undisturbed: Path, make_study: MakeStudy, tmp_path: Path
) -> None:
    """A kill between split.npz and run.json, then another study in the same folder."""
    shutil.copy(undisturbed / "split.npz", tmp_path)
    run(make_study("fedavg", setting="2/2/2", rounds=1), tmp_path, data, 1)
    assert Annotation.load(tmp_path / "split.npz").setting == "2/2/2"


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl", "state.safetensors", "split.npz"])
def test_a_damaged_file_is_named(
    name: str, data: Path, undisturbed: Path, make_study: MakeStudy, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(undisturbed, folder)
    if name != "result.json":
        (folder / "result.json").unlink()
    (folder / name).write_bytes(b"{]\n")
    study = make_study("fixmatch", options={"tau": 0.2}, rounds=3)
    with pytest.raises((StudyError, AnnotationError), match=name):
        run(study, folder, data, 1, resume=True)


def test_rows_say_what_was_sent(undisturbed: Path) -> None:
    model = 4 * 44_426
    for row in read(undisturbed / "metrics.jsonl"):
        assert row.up_bytes == row.down_bytes == 3 * model
        assert len(row.clients) == 3
        assert 0 <= row.accuracy <= 1


@pytest.mark.parametrize(
    ("method", "options"), [*((method, {}) for method in METHODS), ("hassle", {"pairing": "paper"})]
)
def test_every_method_learns_from_clients_of_every_kind(
    method: str,
    options: dict[str, str],
    make_bench: Callable[..., Bench],
    make_client: Callable[[int, int], Client],
) -> None:
    """Fully, partially and not labelled, each smaller than a batch, and a round of one kind alone."""
    bench, made = make_bench(), method_of(method, options)
    state = made.begin(bench)
    kinds = {0: (20, 0), 1: (5, 15), 2: (0, 20)}
    for round in range(0 if made.opening else 1, 3):
        for exchange in made.exchanges(round):
            answers = {}
            for number, (labelled, unlabelled) in kinds.items():
                holding = Holding(number, labelled, unlabelled)
                if made.draws(holding) and not (round == 2 and labelled):
                    parts = exchange.download(bench, state, holding, round)
                    client = make_client(labelled, unlabelled)
                    answers[number] = exchange.learn(bench, parts, client, round)
            state = exchange.fold(bench, state, answers, round)
    for view in made.views(state).values():
        for name, _ in view:
            assert set(state[name]) == set(made.architecture(bench, name).schema())
            assert all(np.isfinite(tensor).all() for tensor in state[name].values())


@pytest.mark.parametrize(("method", "kept"), [("fedmatch", "sigma"), ("hassle", "supervised")])
def test_without_labels_in_a_round_what_labels_teach_stays(
    method: str, kept: str, make_bench: Callable[..., Bench], make_client: Callable[[int, int], Client]
) -> None:
    bench, made = make_bench(), method_of(method, {})
    state = made.begin(bench)
    holding = Holding(2, 0, 40)
    (exchange,) = made.exchanges(1)
    answer = exchange.learn(bench, exchange.download(bench, state, holding, 1), make_client(0, 40), 1)
    after = exchange.fold(bench, state, {2: answer}, 1)
    assert _same(after[kept], state[kept])
    assert any(not _same(after[name], state[name]) for name in answer.parts)


def _same(one: Part, other: Part) -> bool:
    return all(np.array_equal(tensor, other[name]) for name, tensor in one.items())


def test_every_method_draws_the_same_clients(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench()
    holdings = tuple(Holding(n, 5 * (n % 2), 5) for n in range(20))
    everybody, labelled = method_of("mixmatch", {}), method_of("fedavg", {})
    for round in range(1, 20):
        assert drawn(bench, everybody, holdings, 8, round) == drawn(
            bench, method_of("fedmatch", {}), holdings, 8, round
        )
        some = drawn(bench, labelled, holdings, 8, round)
        assert all(holdings[n].labelled for n in some)
        assert {n for n in drawn(bench, everybody, holdings, 8, round) if n % 2} <= set(some)
    with pytest.raises(StudyError, match="--labels"):
        drawn(bench, labelled, (Holding(0, 0, 5),), 1, 1)


def test_training_that_diverges_is_said(data: Path, make_study: MakeStudy, tmp_path: Path) -> None:
    wild = make_study("fedavg", training=Training(epochs=9, learning_rate=1e6))
    with pytest.raises(StudyFailed, match="learning-rate"):
        run(wild, tmp_path / "wild", data, 1)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"method": "fedsgd"}, "fedmatch"),
        ({"selected": 99}, "99"),
        ({"labels": 0.0}, "labels"),
        ({"alpha": -1.0}, "alpha"),
        ({"seed": -1}, "seed"),
        ({"training": Training(momentum=1.0)}, "momentum"),
        ({"training": Training(learning_rate=0.0)}, "learning_rate"),
    ],
)
def test_settings_that_cannot_be_run(changes: Mapping[str, Any], word: str) -> None:
    with pytest.raises(StudyError, match=word):
        check(Study(**{"method": "fedavg", **changes}))


def test_options_are_the_methods_own() -> None:
    assert method_of("fixmatch", {"tau": "0.5"}) == method_of("fixmatch", {"tau": 0.5})
    with pytest.raises(StudyError, match="lambda_u"):
        method_of("fixmatch", {"temperature": 1})
    with pytest.raises(StudyError, match="tau"):
        method_of("fixmatch", {"tau": 2.0})


def test_answers_are_weighted_by_kind(make_bench: Callable[..., Bench]) -> None:
    bench, made = make_bench(), method_of("fedavg", {})
    state = made.begin(bench)
    a, b = (bench.model.init(np.random.default_rng(k)) for k in (1, 2))
    answers = {0: Answer({"model": a}, {"model": 30}, 0, 1), 3: Answer({"model": b}, {"model": 10}, 0, 1)}
    (exchange,) = made.exchanges(1)
    mean = exchange.fold(bench, state, answers, 1)["model"]["fc1.weight"]
    np.testing.assert_allclose(mean, 0.75 * a["fc1.weight"] + 0.25 * b["fc1.weight"], atol=1e-6)


def test_the_mean_of_the_last_rounds_is_that_of_the_report(
    data: Path, make_study: MakeStudy, tmp_path: Path
) -> None:
    """HASSLE's round 0 comes before the first round, and counts as none."""
    found = run(make_study("hassle", rounds=2), tmp_path / "run", data, 1)
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines()
    rows = [msgspec.json.decode(line) for line in lines]
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert rows[0]["accuracy"] != rows[1]["accuracy"], "else this proves nothing"
    known = read_run(tmp_path / "run")
    assert known is not None
    told = merit(known)
    assert found.accuracy_last == told.accuracy_last
    assert {name: view.last_ten for name, view in found.views.items()} == {
        name: view.accuracy_last for name, view in told.views.items()
    }
