"""HASSLE's local round: both objectives and the proximity against torch in float64, and every kind of device.

The batch is the whole device in the comparisons, so that no order of samples has to be shared with the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from fedbac_edge.datasets.samples import UNLABELLED, Samples
from fedbac_edge.learning.hassle import HassleSettings, HassleUpdate, roles_needed, train_hassle
from fedbac_edge.learning.outcomes import Cancelled
from fedbac_edge.methods.hassle import Stage
from fedbac_edge.models.additive import load, network
from fedbac_edge.models.catalog import LeNet, architecture, shrunk
from fedbac_edge.models.description import Architecture, buffers
from fedbac_edge.parts.part import Part
from fedbac_edge.vocabulary.training import Backend, Normalisation

W_S, W_U, R_S, R_U = "supervised", "unsupervised", "residual-s", "residual-u"
ROLES = (W_S, W_U, R_S, R_U)
SETTINGS = HassleSettings(
    epochs=3, residual_steps=4, gamma=0.05, weight_decay=0.01, residual_weight_decay=0.02
)
QUICK = HassleSettings(epochs=1, residual_steps=2, batch_size=32, learning_rate=0.05)


@dataclass
class Device:
    """One device's samples and what it downloads."""

    models: dict[str, Architecture]
    parts: dict[str, Part]
    labelled: Samples
    unlabelled: Samples
    normalisation: Normalisation

    def train(self, settings: HassleSettings, **others: Any) -> HassleUpdate:
        labelled = self.labelled.take(np.arange(others.pop("labels", len(self.labelled))))
        unlabelled = self.unlabelled.take(np.arange(others.pop("without", len(self.unlabelled))))
        return train_hassle(
            self.models, self.parts, labelled, unlabelled, settings, self.normalisation, [7], **others
        )


def drawn(model: Architecture, fashion: tuple[Any, Any], gray: Normalisation, size: int = 28) -> Device:
    """40 labelled and 50 unlabelled garments; weights half as large again as at a start, so that
    models have opinions."""
    x, y = fashion[0][:90, :size, :size], fashion[1][:90]
    models = {role: model if role in (W_S, W_U) else shrunk(model, 4) for role in ROLES}
    parts = {role: models[role].init(np.random.default_rng([3, i])) for i, role in enumerate(ROLES)}
    for role, part in parts.items():
        for name in set(part) - buffers(models[role]):
            part[name] *= np.float32(1.5)
    hidden = np.full(50, UNLABELLED, dtype=np.int64)
    return Device(models, parts, Samples(x[:40], y[:40]), Samples(x[40:], hidden), gray)


@pytest.fixture(scope="module")
def device(fashion: Any, gray: Normalisation) -> Device:
    return drawn(LeNet(), fashion, gray)


@pytest.fixture(params=["reference", "compiled"])
def path(request: pytest.FixtureRequest) -> Backend:
    if request.param == "compiled":
        request.getfixturevalue("kernel")
    return cast(Backend, request.param)


class Expected:
    """The round by its formulas, torch in float64 throughout, full batches."""

    def __init__(self, device: Device, settings: HassleSettings, stage: Stage = "whole") -> None:
        self.device, self.s = device, settings
        self.parts: dict[str, nn.Module] = {}
        f = {
            kind: {role: self.network(role).eval()(self.images(samples)).detach() for role in ROLES}
            for kind, samples in (("L", device.labelled), ("U", device.unlabelled))
        }
        with_residual = settings.teacher == "with-residual"
        pseudo = (f["U"][W_S] + f["U"][R_S]).argmax(dim=1)
        c_s = f["L"][W_U] - f["L"][W_S] + (f["L"][R_U] if with_residual else 0.0)
        c_u = f["U"][W_S] - f["U"][W_U] + (f["U"][R_S] if with_residual else 0.0)
        labels = torch.from_numpy(device.labelled.y)
        if stage != "duals":
            self.residual(R_S, device.labelled, labels, c_s, f["L"][W_S], settings.tau_s)
            self.residual(R_U, device.unlabelled, pseudo, c_u, f["U"][W_U], settings.tau_u)
        if stage != "residuals":
            self.dual(W_S, W_U, device.labelled, labels)
            self.dual(W_U, W_S, device.unlabelled, pseudo)
        self.pseudo = pseudo

    def images(self, samples: Samples) -> Tensor:
        x = torch.from_numpy(samples.x.astype(np.float64)).permute(0, 3, 1, 2) / 255.0
        (mean,), (std,) = self.device.normalisation.mean, self.device.normalisation.std
        return (x - mean) / std

    def network(self, role: str) -> nn.Module:
        module = network(self.device.models[role])
        load(module, self.device.parts[role])
        return module.double()

    def residual(self, role: str, samples: Samples, y: Tensor, c: Tensor, f_w: Tensor, tau: float) -> None:
        r, x = self.network(role), self.images(samples)

        def objective() -> Tensor:
            logits = r(x)
            kl = functional.kl_div(
                functional.log_softmax(logits / tau, dim=1),
                functional.softmax(c / tau, dim=1),
                reduction="batchmean",
            )
            return kl + self.s.lam * functional.cross_entropy(f_w + logits, y)

        self.descend(role, r, self.s.residual_steps, self.s.residual_weight_decay, objective)

    def dual(self, role: str, other: str, samples: Samples, y: Tensor) -> None:
        w, x = self.network(role), self.images(samples)
        there = dict(self.network(other).named_parameters())

        def objective() -> Tensor:
            away = sum(
                (((p - there[name].detach()) ** 2).sum() for name, p in w.named_parameters()), start=0.0
            )
            return functional.cross_entropy(w(x), y) + self.s.gamma * away

        self.descend(role, w, self.s.epochs, self.s.weight_decay, objective)

    def descend(
        self, role: str, module: nn.Module, steps: int, decay: float, objective: Callable[[], Tensor]
    ) -> None:
        optimiser = torch.optim.SGD(
            module.parameters(), self.s.learning_rate, self.s.momentum, weight_decay=decay
        )
        module.train()
        for _ in range(steps):
            optimiser.zero_grad()
            objective().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        self.parts[role] = module

    def compare(self, update: HassleUpdate, atol: float) -> None:
        assert set(update.parts) == set(self.parts)
        for role, module in self.parts.items():
            for name, tensor in module.state_dict().items():
                found, before = update.parts[role][name], self.device.parts[role][name]
                expected = tensor.numpy()
                np.testing.assert_allclose(found, expected, atol=atol, err_msg=f"{role} {name}")
                assert np.abs(expected - before).max() > 5 * atol, f"{role} {name} hardly moves"


@pytest.mark.parametrize("teacher", ["dual", "with-residual"])
def test_a_round_is_its_formulas(device: Device, path: Backend, teacher: Any) -> None:
    settings = replace(SETTINGS, teacher=teacher, lam=0.7, learning_rate=0.05)
    Expected(device, settings).compare(device.train(settings, backend=path), atol=1e-5)


def test_a_round_of_resnets_is_its_formulas(fashion: Any, gray: Normalisation) -> None:
    """Statistics of batch norm follow the data and are not pulled to the other model's."""
    model = shrunk(architecture("resnet8", (1, 8, 8), 10), 1)
    device = drawn(model, fashion, gray, size=8)
    settings = replace(SETTINGS, learning_rate=0.02)
    for name in buffers(model):
        device.parts[W_U][name] += 0.5
    Expected(device, settings).compare(device.train(settings), atol=2e-5)


def test_a_round_in_two_exchanges_labels_with_the_aggregated_residuals(device: Device, path: Backend) -> None:
    """Pairing "paper": residuals first; then what the server has made of them, with the duals of before."""
    settings = replace(SETTINGS, learning_rate=0.05)
    first = Expected(device, settings, "residuals")
    first.compare(device.train(settings, backend=path, stage="residuals"), atol=1e-5)

    aggregated = {role: {n: -2 * t for n, t in device.parts[role].items()} for role in (R_S, R_U)}
    parts = {**device.parts, **aggregated}
    again = Device(device.models, parts, device.labelled, device.unlabelled, device.normalisation)
    second = Expected(again, settings, "duals")
    assert (second.pseudo != first.pseudo).sum() >= 10, "the residuals say otherwise"
    second.compare(again.train(settings, backend=path, stage="duals"), atol=1e-5)


def test_the_second_exchange_needs_no_residual_but_that_of_the_pseudo_labels(device: Device) -> None:
    for teacher in ("dual", "with-residual"):
        settings = replace(QUICK, teacher=teacher)
        for labels, without in ((40, 50), (40, 0), (0, 50)):
            needed = roles_needed(settings, labels > 0, without > 0, "duals")
            assert (R_U in needed, R_S in needed) == (False, without > 0)
            given = {role: device.parts[role] for role in needed}
            some = Device(device.models, given, device.labelled, device.unlabelled, device.normalisation)
            trained = some.train(settings, labels=labels, without=without, stage="duals").parts
            whole = device.train(settings, labels=labels, without=without).parts
            assert set(trained) == set(whole) & {W_S, W_U}
            assert all(same(trained[role], whole[role]) for role in trained), "as it was given, as it trains"


def test_without_a_kind_its_roles_do_not_come_back_and_the_others_are_the_same(device: Device) -> None:
    both = device.train(QUICK)
    assert (both.labelled, both.unlabelled) == (40, 50)
    assert set(both.parts) == set(both.losses) == set(ROLES)
    for kind, roles, counts in (
        ({"without": 0}, {W_S, R_S}, (40, 0)),
        ({"labels": 0}, {W_U, R_U}, (0, 50)),
    ):
        one = device.train(QUICK, **kind)
        assert set(one.parts) == set(one.losses) == roles
        assert (one.labelled, one.unlabelled) == counts
        assert all(same(one.parts[role], both.parts[role]) for role in roles)


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_repeats_bit_for_bit_and_leaves_what_it_was_given(device: Device) -> None:
    before = {role: {n: t.copy() for n, t in part.items()} for role, part in device.parts.items()}
    one, other = device.train(QUICK), device.train(QUICK)
    assert all(same(one.parts[role], other.parts[role]) for role in ROLES)
    assert one.losses == other.losses
    assert all(same(before[role], device.parts[role]) for role in ROLES)


def test_hidden_labels_are_not_read(device: Device) -> None:
    told = Samples(device.unlabelled.x, np.arange(50, dtype=np.int64) % 10)
    update = train_hassle(
        device.models, device.parts, device.labelled, told, QUICK, device.normalisation, [7]
    )
    assert all(same(update.parts[role], device.train(QUICK).parts[role]) for role in ROLES)


@pytest.mark.parametrize("samples", [1, 3, 33])
def test_devices_of_any_size(device: Device, samples: int) -> None:
    """Smaller than a batch, and with one sample left over for the last."""
    update = device.train(QUICK, labels=samples, without=samples)
    assert (update.labelled, update.unlabelled) == (samples, samples)
    assert all(np.isfinite(loss) for loss in update.losses.values())
    assert not any(same(update.parts[role], device.parts[role]) for role in ROLES)


def test_the_first_round_trains_residuals_only(device: Device) -> None:
    update = device.train(QUICK, stage="residuals")
    assert set(update.parts) == {R_S, R_U}
    assert all(same(update.parts[role], device.train(QUICK).parts[role]) for role in update.parts)
    assert set(device.train(QUICK, stage="residuals", labels=0).parts) == {R_U}


def test_unsure_samples_are_left_out(device: Device) -> None:
    expected = Expected(device, QUICK)
    x = expected.images(device.unlabelled)
    served = sum((expected.network(role)(x).detach() for role in (W_S, R_S)), start=torch.zeros(()))
    sure = functional.softmax(served, dim=1).max(dim=1).values.numpy()
    limit = float(np.median(sure)) + 1e-4  # between two samples
    some = device.train(replace(QUICK, confidence=limit))
    assert 20 <= some.unlabelled == int((sure >= limit).sum()) <= 25
    only = Device(
        device.models,
        device.parts,
        device.labelled,
        device.unlabelled.take(sure >= limit),
        device.normalisation,
    )
    assert all(same(some.parts[role], only.train(QUICK).parts[role]) for role in ROLES)
    nobody = device.train(replace(QUICK, confidence=1.0))
    assert set(nobody.parts) == {W_S, R_S}
    assert nobody.unlabelled == 0
    assert device.train(replace(QUICK, confidence=1.0), labels=0).parts == {}


def test_without_residuals_the_duals_learn_from_the_supervised_ones_own_pseudo_labels(device: Device) -> None:
    settings = replace(QUICK, align_residuals=False)
    duals = {role: device.parts[role] for role in (W_S, W_U)}
    update = train_hassle(
        device.models, duals, device.labelled, device.unlabelled, settings, device.normalisation, [7]
    )
    assert set(update.parts) == {W_S, W_U}
    assert same(update.parts[W_S], device.train(QUICK).parts[W_S]), "labels are the same"
    assert not same(update.parts[W_U], device.train(QUICK).parts[W_U]), "pseudo-labels are not"
    with pytest.raises(ValueError, match="nothing to train"):
        device.train(settings, stage="residuals")


def test_without_proximity_the_supervised_dual_does_not_see_the_other(device: Device) -> None:
    settings = replace(QUICK, align_residuals=False, gamma=0.0)
    assert roles_needed(settings, labelled=True, unlabelled=False) == (W_S,)
    update = train_hassle(
        {W_S: device.models[W_S]},
        {W_S: device.parts[W_S]},
        device.labelled,
        device.unlabelled.take(np.arange(0)),
        settings,
        device.normalisation,
        [7],
    )
    assert not same(update.parts[W_S], device.train(QUICK).parts[W_S])


def test_rounds_learn(device: Device) -> None:
    settings = replace(QUICK, epochs=4, residual_steps=20, learning_rate=0.03)
    start = device.train(replace(settings, epochs=1))
    end = device
    for _ in range(4):
        end = Device(
            device.models, end.train(settings).parts, device.labelled, device.unlabelled, device.normalisation
        )
    assert end.train(settings).losses[W_S] < 0.5 * start.losses[W_S]


def test_cancelled_between_steps(device: Device) -> None:
    for allowed in (0, 3, 6):
        calls = iter(range(1000))
        with pytest.raises(Cancelled):
            device.train(QUICK, cancelled=lambda: next(calls) >= allowed)  # noqa: B023


def test_what_does_not_fit_is_named(device: Device) -> None:
    with pytest.raises(ValueError, match="no samples"):
        device.train(QUICK, labels=0, without=0)
    without = Device(
        device.models,
        {role: device.parts[role] for role in (W_S, W_U, R_S)},
        device.labelled,
        device.unlabelled,
        device.normalisation,
    )
    assert without.train(QUICK, without=0).labelled == 40, "a labelled device needs no r_U"
    with pytest.raises(ValueError, match="residual-u"):
        without.train(QUICK)
    with pytest.raises(ValueError, match="residual-u"):
        without.train(replace(QUICK, teacher="with-residual"), without=0)
    with pytest.raises(ValueError, match="tau_s"):
        HassleSettings(tau_s=0.0)
