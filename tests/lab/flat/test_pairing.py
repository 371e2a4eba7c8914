"""HASSLE in the laboratory with the paper's pairing: a round of two exchanges, residuals and then duals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch.nn import functional

from fedbac_edge.datasets.annotation import Annotation
from fedbac_edge.datasets.sources import load as load_samples
from fedbac_edge.lab.flat import run as study_run
from fedbac_edge.lab.flat.hall import Hall, lay_out
from fedbac_edge.lab.flat.hassle import BEFORE, DUALS, RESIDUALS, Hassle
from fedbac_edge.lab.flat.method import method_of
from fedbac_edge.lab.flat.rows import Row, read
from fedbac_edge.lab.flat.run import Result
from fedbac_edge.lab.flat.study import Option, Study, StudyError
from fedbac_edge.lab.pool import Pool
from fedbac_edge.learning.batches import batches
from fedbac_edge.learning.hassle import HassleUpdate, train_hassle
from fedbac_edge.learning.normalise import normalise
from fedbac_edge.methods.hassle import Stage
from fedbac_edge.models.additive import dump, load, network
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import Part
from fedbac_edge.settings.pictures import MODELS

MakeStudy = Callable[..., Study]


def run(study: Study, folder: Path, data: Path, workers: int, **options: Any) -> Result:
    """The study with so many workers of this machine."""
    with Pool(workers) as engine:
        return study_run.run(study, folder, data, engine, **options)


W_S, W_U, R_S, R_U = (*DUALS, *RESIDUALS)
OPTIONS = {"pairing": "paper", "residual_steps": 7}
HALVES: tuple[tuple[Stage, tuple[str, ...]], ...] = (("residuals", RESIDUALS), ("duals", DUALS))


@pytest.fixture(scope="module")
def study(make_study: MakeStudy) -> Study:
    """All six clients in each of two rounds: two of each kind."""
    return make_study("hassle", options=OPTIONS, setting="2/2/2", selected=6)


@pytest.fixture(scope="module")
def undisturbed(data: Path, study: Study, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("paper") / "run"
    return folder, run(study, folder, data, 1)


@pytest.fixture(scope="module")
def hall(
    data: Path, study: Study, undisturbed: tuple[Path, Result], tmp_path_factory: pytest.TempPathFactory
) -> Hall:
    """The run's samples, as its clients have them."""
    about = MODELS[study.data]
    train, test = (
        load_samples(data, classes=about.classes, input_shape=about.input, split=split)
        for split in ("train", "test")
    )
    split = Annotation.load(undisturbed[0] / "split.npz")
    return lay_out(tmp_path_factory.mktemp("hall"), study, split, train, test)


def logits(model: Architecture, part: Part, x: torch.Tensor) -> torch.Tensor:
    """In float64, by torch alone."""
    module = network(model)
    load(module, part)
    found: torch.Tensor = module.double().eval()(x).detach()
    return found


def mean(parts: list[Part], weights: list[int]) -> Part:
    """The weighted mean, in float64."""
    return {
        name: np.average([p[name].astype(np.float64) for p in parts], axis=0, weights=weights).astype(
            np.float32
        )
        for name in parts[0]
    }


def by_hand(hall: Hall, rounds: int) -> tuple[dict[str, Part], list[dict[str, Part]]]:
    """Residuals of all clients and their means, then duals and theirs: (at the end, after each exchange)."""
    method, bench = hall.method, hall.bench
    assert isinstance(method, Hassle)
    models = {role: method.architecture(bench, role) for role in (*DUALS, *RESIDUALS)}
    state = {role: part for role, part in method.begin(bench).items() if role in models}
    after = []
    for round in range(1, rounds + 1):
        for stage, roles in HALVES:
            updates: list[HassleUpdate] = []
            for number in range(6):
                client = hall.client(number)
                seed = bench.random("client", round, number).integers(0, 2**32, 4).tolist()
                settings = method.settings(bench)
                samples = client.labelled, client.unlabelled
                updates.append(
                    train_hassle(models, state, *samples, settings, bench.normalisation, seed, stage=stage)
                )
            for role in roles:
                senders = [update for update in updates if role in update.parts]
                counts = [u.labelled if role in (W_S, R_S) else u.unlabelled for u in senders]
                state = {**state, role: mean([update.parts[role] for update in senders], counts)}
            after.append(state)
    return state, after


def test_a_round_is_two_exchanges_of_the_same_clients(hall: Hall, undisturbed: tuple[Path, Result]) -> None:
    state, after = by_hand(hall, 2)
    stored = load_file(undisturbed[0] / "state.safetensors")
    for role, part in state.items():
        for name, tensor in part.items():
            np.testing.assert_allclose(stored[f"{role}/{name}"], tensor, atol=2e-6, err_msg=f"{role} {name}")
    for dual in DUALS:
        for name, tensor in after[1][dual].items():
            np.testing.assert_allclose(stored[f"{dual}{BEFORE}/{name}"], tensor, atol=2e-6)


def test_the_duals_learn_from_pseudo_labels_of_the_aggregated_residuals(hall: Hall) -> None:
    """w_U of the second exchange against SGD by torch, on labels that float64 gives beforehand."""
    _, (_, before, exchanged, _) = by_hand(hall, 2)
    method, bench = hall.method, hall.bench
    assert isinstance(method, Hassle)
    holding = next(h for h in hall.holdings if h.unlabelled and not h.labelled)
    client = hall.client(holding.number)
    x = torch.from_numpy(normalise(client.unlabelled.x, bench.normalisation)).double()
    f, small = logits(bench.model, before[W_S], x), method.architecture(bench, R_S)
    stale, labels = (torch.argmax(f + logits(small, s[R_S], x), dim=1) for s in (before, exchanged))
    assert (stale != labels).any()

    module, training = network(bench.model), bench.training
    load(module, before[W_U])
    other = {name: torch.from_numpy(tensor) for name, tensor in before[W_S].items()}
    sgd = torch.optim.SGD(module.parameters(), training.learning_rate, training.momentum)
    seed = bench.random("client", 2, holding.number).integers(0, 2**32, 4).tolist()
    for _, chosen in batches(len(labels), training.epochs, training.batch_size, [*seed, 2]):
        loss = functional.cross_entropy(module(x[chosen].float()), labels[chosen])
        for name, weights in module.named_parameters():
            loss = loss + method.gamma * (weights - other[name]).square().sum()
        sgd.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        sgd.step()

    _, second = method.exchanges(2)
    answer = second.learn(bench, second.download(bench, exchanged, holding, 2), client, 2)
    assert set(answer.parts) == {W_U}
    for name, tensor in dump(module).items():
        np.testing.assert_allclose(answer.parts[W_U][name], tensor, atol=2e-5, err_msg=name)


def test_rows_count_both_exchanges(hall: Hall, undisturbed: tuple[Path, Result]) -> None:
    """Up: what each client trains. Down: what its losses read, and then the residual of pseudo-labels."""
    dual, residual = 4 * 44_426, 4 * 3_077
    rows = read(undisturbed[0] / "metrics.jsonl")
    assert [row.round for row in rows] == [1, 2], "no round before the first"
    kinds = [(h.labelled > 0) + (h.unlabelled > 0) for h in hall.holdings]
    up = sum(kinds) * (dual + residual)
    down = sum(
        2 * dual + residual + (2 * residual if h.unlabelled else 0)  # r_U, and r_S once more
        for h in hall.holdings
    )
    steps = sum(
        7 + -(-samples // 64) for h in hall.holdings for samples in (h.labelled, h.unlabelled) if samples
    )
    for row in rows:
        assert row.clients == (0, 1, 2, 3, 4, 5)
        assert (row.up_bytes, row.down_bytes, row.steps) == (up, down, steps)


def test_any_number_of_workers_and_a_resumption_give_the_same_models(
    data: Path, study: Study, undisturbed: tuple[Path, Result], tmp_path: Path
) -> None:
    heard: list[tuple[int, int]] = []

    def stop(row: Row) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run(study, tmp_path / "broken", data, 1, tell=stop, watch=lambda *news: heard.append(news))
    assert heard == [(done, 12) for done in range(13)], "of both exchanges of a round"
    assert run(study, tmp_path / "broken", data, 2, resume=True) == undisturbed[1]


def test_the_default_pairing_is_one_exchange_after_a_round_of_residuals() -> None:
    made = method_of("hassle", {})
    assert made == method_of("hassle", {"pairing": "download"})
    assert made.opening
    assert [len(made.exchanges(round)) for round in (0, 1, 2)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pairing": "papr"}, 'pairing is one of "download", "paper"'),
        ({"pairing": "paper", "align_residuals": False}, "align_residuals=false leaves none"),
    ],
)
def test_a_pairing_that_cannot_be_is_refused(options: dict[str, Option], words: str) -> None:
    with pytest.raises(StudyError, match=words):
        method_of("hassle", options)
