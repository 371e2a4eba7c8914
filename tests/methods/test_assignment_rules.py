"""Which cluster a site is put into, rule by rule."""

from __future__ import annotations

import math

import pytest

from fedbac_edge.bandits import linucb
from fedbac_edge.federation_file import reading
from fedbac_edge.methods import method
from fedbac_edge.methods.ifca import closest
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.protocol.cloud.assignment import sweep
from fedbac_edge.settings.federation import Federation

LENET = LeNet((1, 28, 28), 2)


def federation(method: str = "", assignment: str = "", gateways: int = 3) -> Federation:
    roster = "\n".join(f'gw{m} = ["d{m}"]' for m in range(gateways))
    return reading.parse(
        f"""
        name = "rules"
        rounds = 100
        [model]
        classes = ["a", "b"]
        [method]
        {method}
        [assignment]
        {assignment}
        [gateways]
        {roster}
        """
    )


@pytest.mark.parametrize(
    ("losses", "current", "margin", "expected"),
    [
        ((1.0, 0.5, 0.6), 0, 1.0, 1),
        ((1.0, 0.96, 2.0), 0, 0.95, 0),  # better, but not by enough
        ((1.0, 0.94, 2.0), 0, 0.95, 1),
        ((0.5, 0.5, 0.5), 1, 1.0, 1),  # nothing is better than what one has
        ((0.4, 0.4, 0.9), 2, 0.95, 0),  # the first of equals
        ((math.nan, 0.7, math.inf), 0, 0.95, 1),  # a diverged network is left
        ((0.7, math.nan, 0.9), 0, 0.95, 0),
        ((math.inf, math.inf), 1, 0.95, 1),
    ],
)
def test_a_site_moves_only_for_a_clearly_smaller_loss(
    losses: tuple[float, ...], current: int, margin: float, expected: int
) -> None:
    assert closest(losses, current, margin) == expected


def test_ifca_before_the_first_round_takes_the_smallest_loss_and_later_needs_five_percent() -> None:
    described = federation('name = "ifca"\nclusters = 2')
    clustering = linucb.start({"gw0": 0, "gw1": 0, "gw2": 1}, 2)
    evaluated = {
        "gw0": linucb.Evaluation((1.0, 0.99), 0.5),
        "gw1": linucb.Evaluation((1.0, 0.9), 0.5),
    }
    first, decisions = sweep(described, method(described), clustering, evaluated, 0)
    assert first.assignment == {"gw0": 1, "gw1": 1, "gw2": 1}  # gw2 sent nothing and stays
    assert [(d.server, d.previous, d.chosen) for d in decisions] == [
        ("gw0", 0, 1),
        ("gw1", 0, 1),
        ("gw2", 1, 1),
    ]
    later, _ = sweep(described, method(described), clustering, evaluated, 20)
    assert later.assignment == {"gw0": 0, "gw1": 1, "gw2": 1}


def test_fedbac_can_be_assigned_by_the_smallest_loss_with_a_margin_of_its_own() -> None:
    described = federation("", 'method = "argmin"\nmargin = 0.5')
    clustering = linucb.start({"gw0": 0}, 3)
    evaluated = {"gw0": linucb.Evaluation((1.0, 0.6, 0.7), 0.5)}
    assert sweep(described, method(described), clustering, evaluated, 20)[0].assignment == {"gw0": 0}
    evaluated = {"gw0": linucb.Evaluation((1.0, 0.6, 0.49), 0.5)}
    assert sweep(described, method(described), clustering, evaluated, 20)[0].assignment == {"gw0": 2}


def test_fedbac_is_swept_by_the_bandit_exactly_as_linucb_does_it() -> None:
    described = federation()
    clustering = linucb.start({"gw0": 0, "gw1": 1, "gw2": 2}, 3)
    evaluated = {f"gw{m}": linucb.Evaluation((0.3 + m, 0.2, 0.9), 0.1 * m) for m in range(3)}
    expected = linucb.sweep(clustering, evaluated, 20, 100, linucb.Options())
    assert sweep(described, method(described), clustering, evaluated, 20) == expected


def test_what_each_method_keeps_and_whether_it_moves_sites() -> None:
    ifca = method(federation('name = "ifca"'))
    assert list(ifca.parts()) == [f"cluster-{k}" for k in range(5)]
    assert ifca.reassigns
    assert ifca.places_by_loss
    local = method(federation('name = "local"', gateways=4))
    assert list(local.parts()) == [f"cluster-{k}" for k in range(4)]
    assert not local.reassigns
    hierfavg = method(federation('name = "hierfavg"'))
    assert list(hierfavg.parts()) == ["global"]
    assert not hierfavg.reassigns
    fixed = method(federation("", 'method = "fixed"'))
    assert list(fixed.parts()) == ["global", "cluster-0", "cluster-1", "cluster-2"]
    assert not fixed.reassigns
    assert not method(federation('clusters = 1\ninitial = "argmin"')).places_by_loss


def test_ifca_begins_with_different_networks_and_fedbac_with_equal_ones() -> None:
    model = LENET
    ifca = method(federation('name = "ifca"')).initial(model, 7)
    assert (ifca["cluster-0"]["fc1.weight"] != ifca["cluster-1"]["fc1.weight"]).any()
    fedbac = method(federation()).initial(model, 7)
    assert (fedbac["cluster-0"]["fc1.weight"] == fedbac["cluster-1"]["fc1.weight"]).all()
    assert (fedbac["cluster-0"]["fc1.weight"] != fedbac["global"]["fc1.weight"]).any()


def test_fed_cam_trains_in_turns_and_needs_an_epoch_for_each() -> None:
    fedcam = method(federation('name = "fed-cam"'))
    assert fedcam.turns == (("cluster",), ("global",))
    assert len(fedcam.parts()) == 6
    with pytest.raises(reading.FederationError, match="turns"):
        reading.parse(
            """
            name = "short"
            [model]
            classes = ["a", "b"]
            [method]
            name = "fed-cam"
            [training]
            epochs = 1
            """
        )
