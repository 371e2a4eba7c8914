"""Updates of some roles only: what a gateway and the cloud admit, and how absent kinds are averaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbac_edge.methods import method
from fedbac_edge.models.catalog import architecture
from fedbac_edge.parts.part import Part, digest, pack, unpack
from fedbac_edge.protocol import averaging
from fedbac_edge.protocol.cloud.machine import Cloud
from fedbac_edge.protocol.cloud.state import CloudState
from fedbac_edge.protocol.events import Started
from fedbac_edge.protocol.gateway import gate
from fedbac_edge.protocol.gateway.machine import Gateway
from fedbac_edge.protocol.gateway.state import Answer
from fedbac_edge.protocol.messages import (
    DeviceStatus,
    DeviceUpdate,
    GatewayStatus,
    GatewayTask,
    GatewayUpdate,
    Receipt,
    Spec,
    Traffic,
)
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import NO_SCORE, PartRef
from fedbac_edge.vocabulary.training import LocalTraining

INSTANCE = "0badcafe"
S, U = ("supervised", "residual-s"), ("unsupervised", "residual-u")
TRAINING = LocalTraining(
    epochs=1, batch_size=8, learning_rate=0.1, momentum=0.9, weight_decay=0.0, clip_norm=1.0, l2={}
)


@pytest.fixture(scope="module")
def federation(federation_of: Callable[..., Federation]) -> Federation:
    return federation_of(method='name = "hassle"', selection="participation = 1.0")


def filled(federation: Federation, role: str, value: float) -> Part:
    model = federation.model
    networks = method(federation).architectures(
        architecture(model.architecture, model.input, len(model.classes))
    )
    return {name: np.full(shape, value, np.float32) for name, shape in networks[role].schema().items()}


class Site:
    """gw1 in round 2: d1 has 30 samples with labels and 70 without, d2 has 50 without. All parts weigh 0."""

    def __init__(self, federation: Federation, bench: Any) -> None:
        self.federation = federation
        blobs: dict[str, bytes] = {}
        self.bench = bench(Gateway("gw1", blobs), blobs)
        self.refs = {}
        for role in (*S, *U):
            data = pack(filled(federation, role, 0.0))
            blobs[digest(data)] = data
            self.refs[role] = PartRef(role, digest(data), len(data))
        self.bench.do(Started())
        self.bench.receive(Spec(federation=federation, instance=INSTANCE, software=""), "spec")
        for device, samples, labelled in (("d1", 100, 30), ("d2", 50, 0)):
            status = DeviceStatus(state="online", session=1, samples=samples, labelled=labelled)
            self.bench.receive(status, "status", "gw1", device)
        task = GatewayTask(
            instance=INSTANCE,
            round=2,
            cluster=0,
            parts=self.refs,
            previous={},
            training=TRAINING,
            deadline_s=100.0,
        )
        self.bench.receive(task, "task", "gw1")

    def update(
        self,
        device: str,
        roles: tuple[str, ...],
        samples: int,
        unlabelled: int,
        value: float = 1.0,
        **change: Any,
    ) -> tuple[bool, str]:
        update = DeviceUpdate(
            instance=INSTANCE,
            device=device,
            round=2,
            base={role: self.refs[role].hash for role in roles},
            parts={role: pack(filled(self.federation, role, value)) for role in roles},
            samples=samples,
            unlabelled=unlabelled,
            data=10**6,
            loss=1.0,
            holdout=NO_SCORE,
            previous=None,
            received=0,
            seconds=1.0,
        )
        self.bench.receive(msgspec.structs.replace(update, **change), "update", "gw1", device)
        (receipt,) = self.bench.said(Receipt)
        return receipt.accepted, receipt.reason


@pytest.mark.parametrize(
    ("roles", "samples", "unlabelled", "why"),
    [
        (S, 50, 50, "expected the roles residual-u, unsupervised, found residual-s, supervised"),
        ((*S, *U), 50, 50, "expected the roles residual-u, unsupervised"),
        (("unsupervised",), 50, 50, "expected the roles residual-u, unsupervised, found unsupervised"),
        ((*S, *U), 60, 50, "10 samples with labels and 50 without, and the device said that it has 0 and 50"),
        (U, 51, 51, "0 samples with labels and 51 without"),
        (U, 50, 51, "51 samples without labels, of 50"),
    ],
)
def test_roles_and_counts_must_be_those_of_the_device(
    federation: Federation,
    bench: Any,
    roles: tuple[str, ...],
    samples: int,
    unlabelled: int,
    why: str,
) -> None:
    site = Site(federation, bench)
    accepted, reason = site.update("d2", roles, samples, unlabelled)
    assert not accepted
    assert why in reason


def test_a_residual_is_held_to_its_own_schema(federation: Federation, bench: Any) -> None:
    site = Site(federation, bench)
    dual = pack(filled(federation, "unsupervised", 1.0))
    small = pack(filled(federation, "residual-u", 1.0))
    assert (
        "residual-u: a part of this model holds"
        in site.update("d2", U, 50, 50, parts={"unsupervised": dual, "residual-u": dual})[1]
    )
    assert site.update("d1", (*S, *U), 100, 70)[0]
    assert small != dual


def test_a_site_weighs_each_role_by_its_kind(federation: Federation, bench: Any) -> None:
    site = Site(federation, bench)
    assert site.update("d1", (*S, *U), 100, 70, value=1.0) == (True, "")
    assert site.update("d2", U, 50, 50, value=4.0) == (True, "")
    (report,) = site.bench.said(GatewayUpdate, site.bench.run_timers())
    schemas = gate.schemas(federation)
    found = {role: unpack(data, schemas[role])["fc3.bias"][0] for role, data in report.parts.items()}
    mixed = pytest.approx((70 * 1.0 + 50 * 4.0) / 120)
    assert found == {"supervised": 1.0, "residual-s": 1.0, "unsupervised": mixed, "residual-u": mixed}
    assert (report.samples, report.unlabelled, report.data, report.unlabelled_data) == (150, 120, 150, 120)


# --- the cloud ------------------------------------------------------------------------------------


def report(federation: Federation, roles: tuple[str, ...], value: float, **change: Any) -> GatewayUpdate:
    update = GatewayUpdate(
        instance=INSTANCE,
        round=2,
        parts={role: pack(filled(federation, role, value)) for role in roles},
        samples=50,
        unlabelled=50,
        data=100,
        unlabelled_data=80,
        holdout=NO_SCORE,
        asked=1,
        answered=1,
        refused=0,
        traffic=Traffic(),
        seconds=1.0,
        waited=0.0,
    )
    return msgspec.structs.replace(update, **change)


@pytest.fixture
def cloud(federation: Federation, bench: Any) -> Any:
    """In round 2, after a void first one; both sites are asked."""
    blobs: dict[str, bytes] = {}
    found = bench(Cloud(federation, blobs, CloudState(instance=INSTANCE)), blobs)
    found.do(Started())
    for gateway in ("gw1", "gw2"):
        found.receive(GatewayStatus(state="online", session=1, ready=True), "status", gateway)
    for gateway in ("gw1", "gw2"):
        first = report(federation, ("residual-u",), 0.5, round=1)
        found.receive(first, "update", gateway)
    found.run_timers()
    assert found.machine.state.round == 2
    return found


def told(cloud: Any) -> tuple[bool, str]:
    (receipt,) = cloud.said(Receipt)
    return receipt.accepted, receipt.reason


@pytest.mark.parametrize(
    ("roles", "change", "why"),
    [
        (S, {}, "expected the roles residual-u, unsupervised, found residual-s, supervised"),
        ((*S, *U), {}, "expected the roles residual-u, unsupervised, found"),
        (
            U,
            {"samples": 60, "unlabelled_data": 100},
            "was trained on labelled samples, of which the site has",
        ),
        (U, {"unlabelled": 51}, "51 samples without labels, of 50"),
        (U, {"unlabelled_data": 101}, "101 samples without labels, of 100"),
    ],
)
def test_a_site_reports_roles_that_its_samples_train(
    federation: Federation, cloud: Any, roles: tuple[str, ...], change: dict[str, Any], why: str
) -> None:
    cloud.receive(report(federation, roles, 1.0, **change), "update", "gw1")
    accepted, reason = told(cloud)
    assert not accepted
    assert why in reason


def test_a_kind_that_no_site_holds_keeps_its_parts(federation: Federation, cloud: Any) -> None:
    before = dict(cloud.machine.state.parts)
    cloud.receive(report(federation, U, 1.0), "update", "gw1")
    assert told(cloud)[0]
    cloud.receive(report(federation, U, 3.0, data=200, unlabelled_data=160), "update", "gw2")
    cloud.run_timers()
    state = cloud.machine.state
    assert state.round == 3
    assert all(state.parts[role] == before[role] for role in S)
    fresh = unpack(cloud.blobs[state.parts["unsupervised"].hash], gate.schemas(federation)["unsupervised"])
    assert fresh["fc3.bias"][0] == pytest.approx((80 * 1.0 + 160 * 3.0) / 240), (
        "by the sites' unlabelled data"
    )


# --- averages -------------------------------------------------------------------------------------

DEVICE = st.tuples(st.integers(0, 50), st.integers(0, 50), st.floats(-1, 1, width=32))


@settings(max_examples=40, deadline=None)
@given(devices=st.lists(DEVICE, min_size=1, max_size=5), round=st.sampled_from((1, 2)))
def test_whoever_holds_what_each_role_is_the_mean_of_its_holders(
    federation: Federation, devices: list[tuple[int, int, float]], round: int
) -> None:
    blobs: dict[str, bytes] = {}

    def keep(part: Part) -> str:
        data = pack(part)
        blobs[digest(data)] = data
        return digest(data)

    base = {role: PartRef(role, keep(filled(federation, role, 0.0)), 0) for role in (*S, *U)}
    answers = {}
    for number, (labelled, unlabelled, value) in enumerate(devices):
        roles = method(federation).trained(round, labelled + unlabelled, unlabelled)
        answers[f"d{number}"] = Answer(
            parts={role: keep(filled(federation, role, value)) for role in roles},
            samples=labelled + unlabelled,
            holdout=NO_SCORE,
            previous=None,
            received=0,
            sent=0,
            unlabelled=unlabelled,
        )
    fresh = averaging.edge_averages(answers, base, blobs, federation)
    for kind, roles in ((0, S), (1, U)):
        total = sum(device[kind] for device in devices)
        expected = [role for role in roles if total and (round > 1 or role.startswith("residual"))]
        assert [role for role in roles if role in fresh] == expected
        for role in expected:
            mean = sum(device[kind] * device[2] for device in devices) / total
            for tensor in unpack(fresh[role], gate.schemas(federation)[role]).values():
                np.testing.assert_allclose(tensor, mean, atol=1e-6)
