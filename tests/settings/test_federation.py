"""What a federation's description says beyond its fields."""

from __future__ import annotations

import msgspec
import pytest

from broker import wire
from fedbac_edge.protocol.messages import Spec
from fedbac_edge.settings.federation import Federation, ModelTable, TrainingTable

MODEL = ModelTable(classes=("a", "b"))


def test_defaults_are_those_of_the_paper() -> None:
    federation = Federation(name="t", model=MODEL)
    training = federation.training
    assert (training.epochs, training.batch_size, training.learning_rate) == (5, 64, 0.01)
    assert (training.momentum, training.weight_decay, training.clip_norm) == (0.9, 5e-4, 1.0)
    assert (training.cluster_l2, training.learning_rate_decay) == (1e-3, 0.995)
    assert (federation.selection.participation, federation.selection.warm_up) == (0.8, 10)
    assert (federation.assignment.every, federation.assignment.alpha) == (20, 1.0)
    assert federation.evaluation == "holdout", "never the test set unless somebody asks for it"


def test_the_learning_rate_decays_from_the_second_round_on() -> None:
    federation = Federation(
        name="t", model=MODEL, training=TrainingTable(learning_rate=0.1, learning_rate_decay=0.5)
    )
    assert [federation.learning_rate(round) for round in (1, 2, 3, 4)] == [0.1, 0.05, 0.025, 0.0125]


@pytest.mark.parametrize(
    ("clusters", "gateways", "expected"), [(0, 0, 1), (0, 3, 3), (5, 3, 5), (2, 3, 2), (1, 0, 1)]
)
def test_k_max_is_one_per_gateway_unless_it_is_set(clusters: int, gateways: int, expected: int) -> None:
    federation = Federation(name="t", model=MODEL, gateways={f"g{i}": () for i in range(gateways)})
    method = msgspec.structs.replace(federation.method, clusters=clusters)
    assert msgspec.structs.replace(federation, method=method).cluster_count == expected


def test_it_travels_as_it_is() -> None:
    federation = Federation(name="t", model=MODEL, gateways={"g2": ("b", "a"), "g1": ()})
    spec = Spec(federation=federation, instance="0badcafe", software="1")
    found = wire.decode(wire.encode(spec), Spec).federation
    assert found == federation
    assert found.gateways["g2"] == ("b", "a")
