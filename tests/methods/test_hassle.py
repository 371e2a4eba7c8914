"""What HASSLE's roles are, who trains and fetches which, and what is served."""

from __future__ import annotations

import numpy as np
import pytest

from fedbac_edge.federation_file import reading
from fedbac_edge.federation_file.reading import FederationError
from fedbac_edge.methods import method
from fedbac_edge.models.catalog import LeNet, parameter_count
from fedbac_edge.settings.federation import Federation

DUALS = {"supervised", "unsupervised"}
RESIDUALS = {"residual-s", "residual-u"}


def federation(hassle: str = "", name: str = "hassle") -> Federation:
    return reading.parse(
        f"""
        name = "t"
        [model]
        classes = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
        [method]
        name = "{name}"
        {hassle}
        """
    )


def test_two_dual_models_and_two_residuals_of_a_quarter_of_the_channels() -> None:
    used = method(federation())
    sizes = {role: parameter_count(model) for role, model in used.architectures(LeNet()).items()}
    assert sizes == {**dict.fromkeys(DUALS, 44_426), **dict.fromkeys(RESIDUALS, 3_077)}
    drawn = used.initial(LeNet(), seed=3)
    assert all(drawn[role]["conv1.weight"].shape[0] == (6 if role in DUALS else 2) for role in drawn)
    assert not np.array_equal(drawn["supervised"]["fc3.bias"], drawn["unsupervised"]["fc3.bias"])
    assert used.clusters == 1
    assert not used.reassigns


@pytest.mark.parametrize(
    ("labelled", "unlabelled", "trained", "fetched"),
    [
        (7, 0, {"supervised", "residual-s"}, DUALS | {"residual-s"}),
        (0, 5, {"unsupervised", "residual-u"}, DUALS | RESIDUALS),
        (7, 5, DUALS | RESIDUALS, DUALS | RESIDUALS),
        (0, 0, set(), {"supervised", "residual-s"}),
    ],
)
def test_a_device_trains_the_kinds_it_holds_and_fetches_what_their_losses_read(
    labelled: int, unlabelled: int, trained: set[str], fetched: set[str]
) -> None:
    used = method(federation())
    assert set(used.trained(2, labelled + unlabelled, unlabelled)) == trained
    assert set(used.trained(1, labelled + unlabelled, unlabelled)) == trained & RESIDUALS, "duals are random"
    for round in (1, 2):
        assert set(used.needed(round, labelled + unlabelled, unlabelled)) == fetched


@pytest.mark.parametrize(
    ("labelled", "unlabelled", "odd", "even"),
    [
        # (trained, fetched) in rounds of residuals and in rounds of duals; r_S with w_S judges in both
        (7, 0, ({"residual-s"}, DUALS | {"residual-s"}), ({"supervised"}, DUALS | {"residual-s"})),
        (0, 5, ({"residual-u"}, DUALS | RESIDUALS), ({"unsupervised"}, DUALS | {"residual-s"})),
        (7, 5, (RESIDUALS, DUALS | RESIDUALS), (DUALS, DUALS | {"residual-s"})),
    ],
)
def test_with_the_papers_pairing_residuals_and_duals_train_in_turn(
    labelled: int, unlabelled: int, odd: tuple[set[str], set[str]], even: tuple[set[str], set[str]]
) -> None:
    used = method(federation('[hassle]\npairing = "paper"'))
    counts = (labelled + unlabelled, unlabelled)
    for round, (trained, fetched) in ((1, odd), (2, even), (3, odd), (4, even), (101, odd)):
        assert set(used.trained(round, *counts)) == trained
        assert set(used.needed(round, *counts)) == fetched
    assert used.views == method(federation()).views


def test_the_teacher_with_residual_reads_the_other_residual_too() -> None:
    used = method(federation('[hassle]\nteacher = "with-residual"'))
    assert set(used.needed(2, 7, 0)) == DUALS | RESIDUALS


def test_served_are_the_duals_of_the_rounds_start_and_the_residuals_of_its_end() -> None:
    used = method(federation())
    assert used.served_view.name == "EM"
    assert used.served_view.coefficients() == dict.fromkeys((*DUALS, *RESIDUALS), 0.5)
    for view in used.views:
        assert all((term.generation == 1) == (term.role in DUALS) for term in view.terms)
    assert used.view("SM").coefficients() == {"supervised": 1.0, "residual-s": 1.0}
    assert used.view("UM").coefficients() == {"unsupervised": 1.0, "residual-u": 1.0}
    assert used.looks_back


@pytest.mark.parametrize(("gamma", "fetched"), [(0.001, DUALS), (0.0, {"supervised"})])
def test_without_residuals_there_are_two_models_and_no_round_of_residuals(
    gamma: float, fetched: set[str]
) -> None:
    used = method(federation(f"[hassle]\nalign_residuals = false\ngamma = {gamma}"))
    assert set(used.architectures(LeNet())) == DUALS
    assert used.trained(1, 7, 0) == ("supervised",)
    assert set(used.needed(1, 7, 0)) == fetched
    assert set(used.needed(1, 5, 5)) == DUALS
    assert used.served_view.coefficients() == dict.fromkeys(DUALS, 0.5)
    assert not used.looks_back


def test_samples_without_labels_are_of_use_to_this_method_only() -> None:
    assert method(federation()).usable(10, 90) == 100
    assert method(federation(name="fedbac")).usable(10, 90) == 10


def test_the_table_belongs_to_this_method() -> None:
    with pytest.raises(FederationError, match=r"\[hassle\] belongs to"):
        federation("[hassle]\ngamma = 0.1", name="hierfavg")
    with pytest.raises(FederationError, match="gamma"):
        federation("[hassle]\ngamma = -0.1")


def test_a_pairing_that_cannot_be_is_refused() -> None:
    with pytest.raises(
        FederationError, match=r'\[hassle\] pairing is one of "download", "paper", not "papr"'
    ):
        federation('[hassle]\npairing = "papr"')
    with pytest.raises(FederationError, match=r"align_residuals = false leaves them out"):
        federation('[hassle]\npairing = "paper"\nalign_residuals = false')
