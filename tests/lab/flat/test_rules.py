"""Each method's loss and rule against the same thing written with torch or by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedbac_edge.lab.flat.fedavg import FedAvg
from fedbac_edge.lab.flat.fedmatch import FedMatch, alike, minus, plus, vote
from fedbac_edge.lab.flat.fedprox import FedProx
from fedbac_edge.lab.flat.fixmatch import FixMatch, consistency
from fedbac_edge.lab.flat.method import Answer, Bench, Client, Holding
from fedbac_edge.lab.flat.mixmatch import MixMatch, match, mix_up, sharpen
from fedbac_edge.lab.flat.rscfed import RSCFed, follow, sub_consensus, taught
from fedbac_edge.learning.batches import batches
from fedbac_edge.learning.normalise import normalise
from fedbac_edge.models.additive import dump, load, network
from fedbac_edge.parts.part import Part

RNG = np.random.default_rng(5)
LOGITS = RNG.normal(0, 2, (9, 10)).astype(np.float32)
LABELS = RNG.integers(0, 10, 4)
TARGETS = RNG.dirichlet(np.ones(10), 5).astype(np.float32)
MakeBench = Callable[..., Bench]
MakeClient = Callable[[int, int], Client]


def leaf() -> torch.Tensor:
    return torch.from_numpy(LOGITS.copy()).requires_grad_()


def assert_same(found: tuple[float, Any], z: torch.Tensor, loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    assert found[0] == pytest.approx(loss.item(), rel=1e-5)
    assert z.grad is not None
    np.testing.assert_allclose(found[1], z.grad.numpy(), rtol=1e-4, atol=1e-7)


def part_of(bench: Bench, seed: int) -> Part:
    return bench.model.init(np.random.default_rng(seed))


@pytest.mark.parametrize("method", [FedAvg(), FedProx(mu=0.5)])
def test_fedavg_and_fedprox_are_sgd_on_their_objective(
    method: FedAvg, make_bench: MakeBench, make_client: MakeClient
) -> None:
    bench, client, start = make_bench(epochs=2), make_client(70, 20), part_of(make_bench(), 1)
    answer = method.learn(bench, {"model": start}, client, 1)

    module = network(bench.model)
    load(module, start)
    centre = [weights.detach().clone() for weights in module.parameters()]
    sgd = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9)
    seed = bench.random("client", 1, client.number).integers(0, 2**32, 4).tolist()
    for _, chosen in batches(70, 2, 32, seed):
        x = torch.from_numpy(normalise(client.labelled.x[chosen], bench.normalisation))
        loss = functional.cross_entropy(module(x), torch.from_numpy(client.labelled.y[chosen]))
        for weights, fixed in zip(module.parameters(), centre, strict=True):
            loss = loss + method.mu / 2 * (weights - fixed).square().sum()
        sgd.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        sgd.step()
    for name, tensor in dump(module).items():
        np.testing.assert_allclose(answer.parts["model"][name], tensor, atol=2e-5)
    assert answer.weights == {"model": 70}
    assert answer.steps == 6


def test_fedavg_draws_clients_with_labels_alone() -> None:
    assert FedAvg().draws(Holding(0, 1, 9))
    assert not FedAvg().draws(Holding(0, 0, 9))


def test_mixmatch_loss() -> None:
    q = np.concatenate([np.eye(10, dtype=np.float32)[LABELS], TARGETS])
    z = leaf()
    p = z.softmax(dim=1)
    loss = -(torch.from_numpy(q[:4]) * z[:4].log_softmax(dim=1)).sum(1).mean()
    loss = loss + 7.5 * (p[4:] - torch.from_numpy(TARGETS)).square().mean()
    assert_same(match(LOGITS, q, 4, 7.5), z, loss)


def test_sharpen() -> None:
    sharp = sharpen(np.array([[0.2, 0.8]], np.float32), 0.5)
    np.testing.assert_allclose(sharp, [[0.04 / 0.68, 0.64 / 0.68]], rtol=1e-6)
    np.testing.assert_allclose(sharpen(TARGETS, 1.0), TARGETS, rtol=1e-5)


def test_mix_up_keeps_the_larger_share_of_its_own() -> None:
    x = np.eye(50, dtype=np.float32).reshape(50, 1, 5, 10)
    mixed, q = mix_up(x, x.reshape(50, 50), 0.75, np.random.default_rng(1))
    np.testing.assert_allclose(mixed.reshape(50, 50), q)  # pictures and targets by the same share
    np.testing.assert_allclose(q.sum(1), 1, rtol=1e-6)
    assert (np.diag(q) >= 0.5).all()
    assert (np.diag(q) < 1).sum() > 30


def test_mixmatch_averages_weights_over_steps(make_bench: MakeBench) -> None:
    bench, method = make_bench(), MixMatch(ema=0.9)
    old, new = part_of(bench, 1), part_of(bench, 2)
    state = method.fold(
        bench, {"model": old, "average": old}, {0: Answer({"model": new}, {"model": 3}, 0.0, 4)}, 1
    )
    for name in old:
        expected = 0.9**4 * old[name] + (1 - 0.9**4) * new[name]
        np.testing.assert_allclose(state["average"][name], expected, atol=1e-6)


def test_fixmatch_counts_only_what_it_is_sure_of() -> None:
    """Of a batch of 8 unlabelled samples 5 are sure: the mean is over all 8."""
    pseudo = TARGETS.argmax(1)
    z = leaf()
    loss = functional.cross_entropy(z[:4], torch.from_numpy(LABELS))
    loss = loss + functional.cross_entropy(z[4:], torch.from_numpy(pseudo), reduction="sum") / 8
    assert_same(consistency(LOGITS, LABELS, pseudo, 5 / 8), z, loss)


def test_fixmatch_learns_nothing_where_it_is_sure_of_nothing(
    make_bench: MakeBench, make_client: MakeClient
) -> None:
    bench = make_bench()
    start = part_of(bench, 1)
    answer = FixMatch(tau=1.0).learn(bench, {"model": start}, make_client(0, 40), 1)
    for name, tensor in start.items():
        np.testing.assert_array_equal(answer.parts["model"][name], tensor)


def test_rscfed_loss() -> None:
    z = leaf()
    loss = functional.cross_entropy(z[:4], torch.from_numpy(LABELS))
    loss = loss + 0.02 * (z[4:].softmax(1) - torch.from_numpy(TARGETS)).square().sum(1).mean()
    assert_same(taught(LOGITS, LABELS, TARGETS, 0.02), z, loss)


def test_the_teacher_follows() -> None:
    teacher: Part = {"w": np.ones(3, np.float32)}
    follow(teacher, {"w": np.full(3, 2, np.float32)}, 0.75)
    np.testing.assert_allclose(teacher["w"], 1.25)


def test_sub_consensus_by_hand() -> None:
    parts: list[Part] = [{"w": np.array([v], np.float32)} for v in (0.0, 1.0, 8.0)]
    samples = [1.0, 2.0, 1.0]
    mean = (0 + 2 + 8) / 4
    d = np.array([abs(0 - mean) / 1, abs(1 - mean) / 2, abs(8 - mean) / 1])
    weights = np.array(samples) * np.exp(-2.0 * d / d.mean())
    expected = (weights * [0, 1, 8]).sum() / weights.sum()
    assert sub_consensus(parts, samples, 2.0)["w"][0] == pytest.approx(expected, rel=1e-5)
    assert sub_consensus(parts, samples, 0.0)["w"][0] == pytest.approx(mean)
    assert sub_consensus(parts[:1] * 2, [1.0, 3.0], 2.0)["w"][0] == 0.0  # no distance at all


def test_rscfed_is_the_mean_of_its_subsets(make_bench: MakeBench) -> None:
    bench = make_bench()
    parts = {number: part_of(bench, number) for number in (2, 5, 7)}
    answers = {n: Answer({"model": p}, {"model": 10.0 * n}, 0.0, 1) for n, p in parts.items()}
    everybody = RSCFed(subset=5).fold(bench, {}, answers, 1)["model"]
    expected = sub_consensus(list(parts.values()), [20.0, 50.0, 70.0], 1.0)
    np.testing.assert_allclose(everybody["fc3.bias"], expected["fc3.bias"], atol=1e-6)
    pairs = RSCFed(subset=2).fold(bench, {}, answers, 1)["model"]
    assert not np.allclose(pairs["fc3.bias"], expected["fc3.bias"], atol=1e-4)


def test_fedmatch_agreement_by_autograd() -> None:
    method = FedMatch(lambda_a=0.3, lambda_i=0.7)
    rng = np.random.default_rng(9)
    own, *helpers = (rng.dirichlet(np.ones(10), 4).astype(np.float32) for _ in range(3))
    logits = rng.normal(size=(8, 10)).astype(np.float32)
    z = torch.from_numpy(logits.copy()).requires_grad_()
    loss = 0.3 * functional.cross_entropy(z[:4], torch.from_numpy(vote([own, *helpers])))
    for q in helpers:
        wide = z[4:].log_softmax(1)
        loss = loss + 0.7 / 2 * functional.kl_div(wide, torch.from_numpy(q), reduction="batchmean")
    loss.backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    np.testing.assert_allclose(method.agreement(logits, own, helpers), z.grad.numpy(), rtol=1e-4, atol=1e-7)


def test_fedmatch_penalties_by_autograd() -> None:
    sigma, psi = (np.random.default_rng(k).normal(size=6).astype(np.float32) for k in (1, 2))
    w = torch.from_numpy(psi.copy()).requires_grad_()
    loss = 10 * (torch.from_numpy(sigma) - w).square().sum() + 0.5 * w.abs().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    assert w.grad is not None
    slope = FedMatch(lambda_1=0.5).penalty_slope({"w": sigma}, {"w": psi})["w"]
    np.testing.assert_allclose(slope, w.grad.numpy(), rtol=1e-5)


def test_votes() -> None:
    first, second, third = (np.eye(3, dtype=np.float32)[rows] for rows in ([0, 2, 2], [1, 2, 1], [1, 1, 0]))
    assert vote([first, second, third]).tolist() == [1, 2, 0]


def test_fedmatch_labels_move_sigma_and_the_rest_moves_psi(
    make_bench: MakeBench, make_client: MakeClient
) -> None:
    bench, method = make_bench(), FedMatch(tau=0.0)
    sigma, psi = part_of(bench, 1), part_of(bench, 2)
    parts = {"sigma": sigma, "psi": psi}
    assert set(method.learn(bench, parts, make_client(40, 0), 1).parts) == {"sigma"}
    answer = method.learn(bench, parts, make_client(0, 40), 1)
    assert set(answer.parts) == {"psi"}
    # The pull of 10 ||sigma - psi||^2 is most of it.
    before = sum(float(np.square(tensor).sum()) for tensor in minus(psi, sigma).values())
    after = sum(float(np.square(tensor).sum()) for tensor in minus(answer.parts["psi"], sigma).values())
    assert after < before


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_fedmatch_sigma_learns_as_fedavg_does(
    clip_norm: float | None, make_bench: MakeBench, make_client: MakeClient
) -> None:
    """The factor 10 of the loss and the tenth of the rate cancel out: an epoch is FedAvg's on their sum."""
    bench, client, method = make_bench(batch_size=64, clip_norm=clip_norm), make_client(60, 0), FedMatch()
    sigma, psi = part_of(bench, 1), part_of(bench, 2)
    found = method.learn(bench, {"sigma": sigma, "psi": psi}, client, 1).parts["sigma"]
    plain = FedAvg().learn(bench, {"model": plus(sigma, psi)}, client, 1).parts["model"]
    for name, tensor in found.items():  # one batch: the order of samples does not matter
        np.testing.assert_allclose(tensor, plain[name] - psi[name], atol=1e-5)


def test_fedmatch_helpers_are_those_that_answer_alike(make_bench: MakeBench) -> None:
    bench, method = make_bench(), FedMatch(every=2)
    answers = {0: [0.0, 0.0], 1: [5.0, 0.0], 4: [1.0, 0.0], 6: [0.0, 2.0]}
    state = {f"answer-{n}": {"logits": np.array(v, np.float32)} for n, v in answers.items()}
    assert alike(state, 0) == [4, 6, 1]
    assert alike(state, 3) == []
    psi = {f"psi-{n}": {"w": np.full(1, n, np.float32)} for n in answers}
    whole = {**state, **psi, "sigma": {}, "psi": {}}
    assert set(method.download(bench, whole, Holding(0, 1, 1), 3)) == {"sigma", "psi"}
    sent = method.download(bench, whole, Holding(0, 1, 1), 4)
    assert [float(sent[f"helper-{k}"]["w"][0]) for k in range(2)] == [4, 6]
