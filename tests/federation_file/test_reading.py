"""Every way in which a federation's file can be wrong has its sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedbac_edge.federation_file.reading import FederationError, load, parse
from fedbac_edge.settings.federation import Federation

MODEL = '[model]\nclasses = ["a", "b"]\n'
ROSTER = 'eligibility = "roster"\n'


def minimal(head: str = "", more: str = "", model: str = MODEL) -> str:
    return f'name = "t"\n{head}\n{model}\n{more}\n'


def test_the_shortest_description() -> None:
    federation = parse(minimal())
    assert isinstance(federation, Federation)
    assert (federation.name, federation.rounds, federation.eligibility) == ("t", 100, "online")
    assert federation.model.input == (1, 28, 28)


def test_whole_numbers_are_fine_where_a_figure_is_meant() -> None:
    assert parse(minimal(more="[training]\nlearning_rate = 1")).training.learning_rate == 1.0


WRONG: dict[str, tuple[str, str]] = {
    "no TOML": ("name = ", "not valid TOML"),
    "nothing": ("", "name is missing"),
    "no model": ('name = "t"', "[model] is missing"),
    "no classes": ('name = "t"\n[model]\n', "[model] classes is missing"),
    "an unknown table": (
        minimal(more="[traning]\nepochs = 1"),
        "there is no table [traning]: did you mean [training]?",
    ),
    "an unknown field": (
        minimal(more="[training]\nepoch = 1"),
        "there is no setting [training] epoch: did you mean epochs?",
    ),
    "text for a number": (
        minimal(more='[training]\nepochs = "5"'),
        '[training] epochs: a whole number is expected, not "5"',
    ),
    "a broken number": (minimal(more="[training]\nepochs = 1.5"), "a whole number is expected, not 1.5"),
    "no epochs": (
        minimal(more="[training]\nepochs = 0"),
        "[training] epochs: a whole number >= 1 is expected, not 0",
    ),
    "a rate of zero": (
        minimal(more="[training]\nlearning_rate = 0.0"),
        "[training] learning_rate: a number > 0.0",
    ),
    "a threshold of nothing": (
        minimal(more="[training]\nconfidence = 0.9"),
        "[training] confidence is a threshold of unlabelled = 'pseudo'",
    ),
    "a rate that is none": (
        minimal(more="[training]\nlearning_rate = nan"),
        "[training] learning_rate: a number",
    ),
    "an endless rate": (
        minimal(more="[training]\nlearning_rate = inf"),
        "[training] learning_rate: a number",
    ),
    "a growing rate": (minimal(more="[training]\nlearning_rate_decay = 1.1"), "<= 1.0"),
    "momentum of one": (minimal(more="[training]\nmomentum = 1.0"), "[training] momentum: a number < 1.0"),
    "nobody takes part": (
        minimal(more="[selection]\nparticipation = 0.0"),
        "[selection] participation: a number",
    ),
    "more than all": (
        minimal(more="[selection]\nparticipation = 1.01"),
        "[selection] participation: a number",
    ),
    "an unknown choice": (
        minimal(more='[selection]\nmethod = "best"'),
        '[selection] method is one of "thompson", "random", not "best"',
    ),
    "a deadline of zero": (minimal(more="[deadlines]\ngather_s = 0"), "[deadlines] gather_s: a number > 0.0"),
    "no rounds": (minimal("rounds = 0"), "rounds: a whole number >= 1 is expected, not 0"),
    "a negative seed": (minimal("seed = -1"), "seed: a whole number >= 0"),
    "an unknown eligibility": (
        minimal('eligibility = "all"'),
        'eligibility is one of "roster", "online", not "all"',
    ),
    "an unknown method": (
        minimal(more='[method]\nname = "fedavgg"'),
        "no method is called 'fedavgg'; there are: ",
    ),
    "an unknown architecture": (
        minimal(model=MODEL + 'architecture = "vgg"'),
        "no architecture is called 'vgg'; there are: lenet",
    ),
    "images too small": (minimal(model=MODEL + "input = [1, 15, 28]"), "at least 16x16 pixels, not (15, 28)"),
    "an image of two numbers": (
        minimal(model=MODEL + "input = [28, 28]"),
        "[model] input: a list of length 3",
    ),
    "one class": (minimal(model='[model]\nclasses = ["a"]'), "at least two different names"),
    "a class twice": (minimal(model='[model]\nclasses = ["a", "a"]'), "at least two different names"),
    "colour with one mean": (minimal(model=MODEL + "input = [3, 32, 32]"), "one number per channel (3)"),
    "a mean that is none": (minimal(model=MODEL + "mean = [nan]"), "[model] mean (value 1): a number"),
    "a deviation of zero": (minimal(model=MODEL + "std = [0.0]"), "[model] std (value 1): a number > 0.0"),
    "a name with a slash": ('name = "a/b"\n' + MODEL, "'a/b' cannot be the name of a federation"),
    "an empty name": ('name = ""\n' + MODEL, "'' cannot be the name of a federation"),
    "a wildcard as a gateway": (minimal(more='[gateways]\n"+" = []'), "'+' cannot be the name of a gateway"),
    "a device of 300 letters": (
        minimal(more=f'[gateways]\ngw1 = ["{"x" * 300}"]'),
        "cannot be the name of a device",
    ),
    "a device with a hash": (
        minimal(more='[gateways]\ngw1 = ["d#1"]'),
        "'d#1' cannot be the name of a device",
    ),
    "a device twice": (minimal(more='[gateways]\ngw1 = ["d1", "d1"]'), "gw1: a device is listed twice"),
    "a roster without gateways": (minimal(ROSTER), "needs [gateways], for example"),
    "a roster without devices": (
        minimal(ROSTER, "[gateways]\ngw1 = ['d1']\ngw2 = []"),
        "needs [gateways] with the devices of each gateway listed",
    ),
    "deadlines crossed": (
        minimal(more="[deadlines]\ndeadline_min_s = 10\ndeadline_max_s = 5"),
        "deadline_min_s is larger than deadline_max_s",
    ),
    "more updates than devices": (
        minimal(
            ROSTER, "[gateways]\ngw1 = ['d1', 'd2']\ngw2 = ['d3', 'd4', 'd5']\n[deadlines]\nmin_updates = 2"
        ),
        "min_updates = 2, but gw1 asks only 1 of its devices in a round: every round would be void",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str) -> None:
    text, why = WRONG[case]
    with pytest.raises(FederationError) as refusal:
        parse(text)
    assert why in str(refusal.value)
    assert "$" not in str(refusal.value), "no jargon of the reader"
    assert len(str(refusal.value)) < 400


def test_a_file_is_named_with_what_is_wrong_in_it(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    with pytest.raises(FederationError, match=f"there is no file {path}; `fedbac init"):
        load(path)
    path.write_text("name = 7")
    with pytest.raises(FederationError, match=f"^{path}: "):
        load(path)
    path.write_bytes(b"\xff\xfe name")
    with pytest.raises(FederationError, match=f"{path} cannot be read"):
        load(path)
    with pytest.raises(FederationError, match="cannot be read"):
        load(tmp_path)
    path.write_text(minimal())
    assert load(path).name == "t"


@pytest.mark.parametrize(
    ("places", "said"),
    [("{ gw9 = 0 }", "'gw9' is not among"), ("{ gw1 = 2 }", "gw1 in cluster 2, but there are 2")],
)
def test_places_name_gateways_and_clusters_that_exist(places: str, said: str) -> None:
    text = (
        'name = "t"\n[model]\nclasses = ["a", "b"]\n[method]\nplaces = {}\n[gateways]\ngw1 = []\ngw2 = []\n'
    )
    assert parse(text.format("{ gw1 = 1 }")).method.places == {"gw1": 1}
    with pytest.raises(FederationError, match=said):
        parse(text.format(places))
