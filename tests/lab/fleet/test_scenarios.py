"""Presets are the paper's settings; settings are changed by name; bytes are counted as they are sent."""

from __future__ import annotations

import pytest

from fedbac_edge.lab import presets
from fedbac_edge.lab.fleet import traffic
from fedbac_edge.lab.fleet.faults import Faults
from fedbac_edge.lab.scenario import ScenarioError, check, roster, with_roster, with_settings
from fedbac_edge.methods import method
from fedbac_edge.models.catalog import LeNet


def test_the_papers_settings() -> None:
    scenario = check(presets.preset("paper/fashion-mnist-0.1"))
    federation, training = scenario.federation, scenario.federation.training
    assert len(federation.gateways) == 10
    assert {len(devices) for devices in federation.gateways.values()} == {10}
    assert (training.epochs, training.batch_size, training.learning_rate) == (5, 64, 0.01)
    assert federation.learning_rate(3) == pytest.approx(0.01 * 0.995**2)
    assert (training.clip_norm, training.momentum, training.weight_decay) == (1.0, 0.9, 5e-4)
    assert (training.cluster_l2, federation.selection.participation) == (1e-3, 0.8)
    assert (federation.selection.warm_up, federation.assignment.every) == (10, 20)
    assert (federation.method.initial, federation.rounds) == ("single", 100)
    assert (scenario.cut.form, scenario.cut.alpha_server, scenario.cut.alpha_client) == (
        "per-server",
        0.1,
        0.5,
    )
    assert federation.evaluation == "test"
    cifar = presets.preset("paper/cifar10-0.5").federation
    assert (cifar.method.initial, cifar.rounds, cifar.model.input) == ("round-robin", 200, (3, 32, 32))
    assert presets.preset("paper/svhn-0.5").federation.rounds == 150
    scaling = presets.preset("paper/cifar10-scaling").federation
    assert sum(len(devices) for devices in scaling.gateways.values()) == 500
    assert len(scaling.gateways) == 20


def test_methods_are_ways_to_set_up_a_federation() -> None:
    base = presets.preset("paper/fashion-mnist-0.1")
    fixed = presets.with_method(base, "fixed").federation
    assert (fixed.assignment.method, fixed.method.initial) == ("fixed", "round-robin")
    assert presets.with_method(base, "random").federation.selection.participation == 0.8
    assert presets.with_method(base, "hierfavg").federation.selection.participation == 1.0
    wide = presets.with_method(base, "hierfavg-wide").federation
    assert wide.model.architecture == "lenet-wide"
    for name in presets.METHODS:
        asked = presets.with_method(base, name)
        if name == "hassle":
            with pytest.raises(ScenarioError, match="form annotation"):
                check(asked)
            asked = with_settings(asked, ["cut.unlabelled_devices=5"])
        check(asked)
    # Whatever the preset's own method is, the one that was asked for runs.
    other = presets.preset("paper/hassle-fashion-mnist")
    kin = {"fedbac", "fedbac+", "fixed", "single", "random"}
    for name in presets.METHODS:
        runs = check(presets.with_method(other, name)).federation.method.name
        assert runs == ("fedbac" if name in kin else name.removesuffix("-wide"))
    with pytest.raises(ScenarioError, match=r"fedbac, .*fixed"):
        presets.with_method(base, "fedsomething")


@pytest.mark.parametrize("name", ["paper/fashion-mnist", "paper/imagenet-0.1", "demo", "paper/cifar10-0.1.2"])
def test_unknown_presets_name_those_that_exist(name: str) -> None:
    with pytest.raises(ScenarioError, match=r"fashion-mnist|Dirichlet"):
        presets.preset(name)


def test_any_setting_can_be_set() -> None:
    base = presets.preset("paper/fashion-mnist-0.1")
    changed = with_settings(
        base, ["training.epochs=2", "cut.form=per-class", "rounds=7", "assignment.reward=accuracy-change"]
    )
    assert changed.federation.training.epochs == 2
    assert changed.cut.form == "per-class"
    assert changed.federation.rounds == 7
    assert changed.federation.assignment.reward == "accuracy-change"
    assert base.federation.training.epochs == 5


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.epochs", "table.key=value"),
        ("nowhere.epochs=2", "no table"),
        ("training.epochs=0", ">= 1"),
        ("training.epoch=2", "epoch"),
        ("cut.form=sideways", "form"),
        ("a.b.c=1", "table.key=value"),
    ],
)
def test_wrong_settings_are_refused_by_name(setting: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        with_settings(presets.preset("paper/fashion-mnist-0.1"), [setting])


def test_faults_are_named_numbers() -> None:
    assert Faults.parse("drop=0.1,crash=0.02,delay=0.5,dropout=0.3") == Faults(
        drop=0.1, crash=0.02, delay_s=0.5, dropout=0.3
    )
    assert Faults.parse("") == Faults()
    for text in ("drop=2", "delay=-1", "rain=0.5", "drop=many", "drop", "drop=nan"):
        with pytest.raises(ValueError, match=text.partition("=")[0] if text != "drop=many" else "many"):
            Faults.parse(text)


def test_only_even_rosters_with_names_of_their_own_can_be_simulated() -> None:
    base = presets.preset("paper/fashion-mnist-0.1")
    for gateways in ('{a = ["x"], b = ["y", "z"]}', '{a = ["x"], b = ["x"]}', '{a = ["cloud"]}'):
        with pytest.raises(ScenarioError):
            check(with_settings(base, [f"gateways={gateways}"]))


def test_names_sort_as_numbers_do() -> None:
    names = list(roster(12, 101))
    assert names == sorted(names)
    assert roster(12, 101)["gw02"][:2] == ("gw02-d001", "gw02-d002")


def test_a_preset_with_another_roster() -> None:
    base = presets.preset("paper/fashion-mnist-0.1")
    gateways = with_roster(base, 20, None).federation.gateways
    assert len(gateways) == 20
    assert gateways["gw20"][-1] == "gw20-d10"
    fleet = with_settings(base, ["eligibility=online"])
    assert with_roster(fleet, 2, 5).federation.eligibility == "roster"
    assert with_roster(base, None, 3).federation.gateways["gw10"] == ("gw10-d01", "gw10-d02", "gw10-d03")


def test_bytes_by_both_rules() -> None:
    """Fed-BAC sends two networks on each link, and all clusters' networks in an evaluation."""
    federation = presets.preset("paper/fashion-mnist-0.1").federation
    fedbac, network, both = method(federation), 4 * 44_426, ("global", "cluster")
    round = traffic.of_training(fedbac, LeNet(), [both] * 10, [both] * 80, [both] * 79, (1, 2))
    assert (round.sent_down, round.sent_up) == (2 * network * 90, 2 * network * 89)
    assert (round.single_down, round.single_up) == (network * 90, network * 89)
    assert (round.published_up, round.published_down) == (1, 2)
    sweep = traffic.of_evaluation(fedbac, LeNet(), federation, 10, 10, 0, (0, 0))
    assert (sweep.sent_down, sweep.sent_up, sweep.single_down) == (11 * network * 10, 0, 0)
