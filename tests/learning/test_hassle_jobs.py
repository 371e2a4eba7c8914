"""HASSLE as a job: from hashes and samples to the roles that were trained and what they weigh."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import pytest

from fedbac_edge.datasets.samples import UNLABELLED, Samples
from fedbac_edge.federation_file import reading
from fedbac_edge.learning.hassle import HassleSettings, roles_needed
from fedbac_edge.learning.jobs import JobError, perform
from fedbac_edge.methods import method
from fedbac_edge.methods.hassle import stage
from fedbac_edge.models.catalog import architecture
from fedbac_edge.parts.part import digest, pack, unpack
from fedbac_edge.protocol.events import Evaluated, EvaluateJob, Trained, TrainJob
from fedbac_edge.settings.federation import Federation, HassleTable
from fedbac_edge.vocabulary.training import LocalTraining

TRAINING = LocalTraining(
    epochs=1, batch_size=16, learning_rate=0.05, momentum=0.9, weight_decay=0.0, clip_norm=1e9, l2={}
)
S, U = ("supervised", "residual-s"), ("unsupervised", "residual-u")


def federation(table: str = "") -> Federation:
    return reading.parse(
        f"""
        name = "t"
        [model]
        classes = ["a", "b", "c", "d"]
        input = [1, 16, 16]
        [method]
        name = "hassle"
        [hassle]
        residual_steps = 5
        {table}
        """
    )


def samples(labelled: int, unlabelled: int) -> Samples:
    rng = np.random.default_rng(1)
    count = labelled + unlabelled
    y = rng.integers(0, 4, count)
    y[labelled:] = UNLABELLED
    return Samples(rng.integers(0, 256, (count, 16, 16, 1), dtype=np.uint8), y)


def run(labelled: int, unlabelled: int, round: int = 2, table: str = "", without: str = "") -> Trained:
    described = federation(table)
    used = method(described)
    packed = {r: pack(p) for r, p in used.initial(architecture("lenet", (1, 16, 16), 4), 7).items()}
    needed = used.needed(round, labelled + unlabelled, unlabelled)
    job = TrainJob(
        id="train",
        parts={role: digest(packed[role]) for role in needed if role != without},
        previous={},
        training=TRAINING,
        seed=(1, "device", "d1", round, "train"),
        round=round,
    )
    blobs = {digest(data): data for data in packed.values()}
    found = perform(job, blobs, described, samples(labelled, unlabelled), samples(20, 9))
    assert isinstance(found, Trained)
    assert found.holdout.count == 20, "only samples with labels judge"
    return found


@pytest.mark.parametrize(("labelled", "unlabelled", "roles"), [(40, 0, S), (0, 50, U), (40, 50, (*S, *U))])
def test_each_kind_of_samples_trains_its_roles_and_counts(
    labelled: int, unlabelled: int, roles: tuple[str, ...]
) -> None:
    trained = run(labelled, unlabelled)
    assert set(trained.parts) == set(roles)
    assert (trained.samples, trained.unlabelled, trained.data) == (
        labelled + unlabelled,
        unlabelled,
        labelled + unlabelled,
    )
    again = run(labelled, unlabelled)
    assert {role: digest(data) for role, data in trained.parts.items()} == {
        role: digest(data) for role, data in again.parts.items()
    }


def test_round_one_trains_residuals_alone() -> None:
    assert set(run(40, 50, round=1).parts) == {"residual-s", "residual-u"}
    with_duals = run(40, 50, round=1, table="align_residuals = false")
    assert set(with_duals.parts) == {"supervised", "unsupervised"}


def test_with_the_papers_pairing_rounds_take_turns() -> None:
    paper = 'pairing = "paper"'
    assert set(run(40, 50, round=3, table=paper).parts) == {"residual-s", "residual-u"}
    duals = run(40, 50, round=4, table=paper)
    assert set(duals.parts) == {"supervised", "unsupervised"}
    assert (duals.samples, duals.unlabelled, duals.data) == (90, 50, 90)
    assert duals.parts == {role: run(40, 50, round=4).parts[role] for role in duals.parts}, "the same base"


def test_residuals_are_small_networks() -> None:
    used = method(federation())
    networks = used.architectures(architecture("lenet", (1, 16, 16), 4))
    trained = run(40, 0)
    for role in S:
        unpack(trained.parts[role], networks[role].schema())


def test_when_no_pseudo_label_is_sure_the_device_says_so() -> None:
    with pytest.raises(JobError, match=r"confidence of 0\.999"):
        run(0, 50, table="confidence = 0.999")
    partly = run(40, 50, table="confidence = 0.999")
    assert set(partly.parts) == set(S)
    assert (partly.samples, partly.unlabelled) == (40, 0)


def test_a_job_that_lacks_a_part_is_refused_by_name() -> None:
    with pytest.raises(JobError, match="the method has the roles"):
        run(0, 50, without="supervised")


def test_views_are_scored_from_parts_of_unlike_networks() -> None:
    described = federation()
    used = method(described)
    packed = {r: pack(p) for r, p in used.initial(architecture("lenet", (1, 16, 16), 4), 7).items()}
    hashes = {role: digest(data) for role, data in packed.items()}
    candidates = {n: {t.role: hashes[t.role] for t in view.terms} for n, view in enumerate(used.views)}
    job = EvaluateJob("evaluate", candidates, {n: view.name for n, view in enumerate(used.views)})
    blobs = {digest(data): data for data in packed.values()}
    found = perform(job, blobs, described, samples(0, 0), samples(50, 0))
    assert isinstance(found, Evaluated)
    assert [score.count for score in found.scores.values()] == [50, 50, 50]
    served = perform(EvaluateJob("e", {0: candidates[0]}), blobs, described, samples(0, 0), samples(50, 0))
    assert isinstance(served, Evaluated)
    assert served.scores[0] == found.scores[0]
    with pytest.raises(JobError, match="no view"):
        perform(EvaluateJob("e", {0: hashes}, {0: "TM"}), blobs, described, samples(0, 0), samples(5, 0))


def test_a_device_fetches_at_least_what_its_losses_read() -> None:
    teachers: tuple[Literal["dual", "with-residual"], ...] = ("dual", "with-residual")
    for teacher, aligned, gamma in itertools.product(teachers, (True, False), (0.0, 0.1)):
        text = f'teacher = "{teacher}"\nalign_residuals = {str(aligned).lower()}\ngamma = {gamma}'
        used = method(federation(text))
        settings = HassleSettings(teacher=teacher, align_residuals=aligned, gamma=gamma)
        paper = method(federation(f'{text}\npairing = "paper"')) if aligned else used
        for labelled, unlabelled in ((5, 0), (0, 5), (5, 5)):
            read = roles_needed(settings, labelled > 0, unlabelled > 0)
            assert set(read) <= set(used.needed(2, labelled + unlabelled, unlabelled))
            for round in (1, 2) if aligned else ():
                half = stage(HassleTable(pairing="paper"), round)
                read = roles_needed(settings, labelled > 0, unlabelled > 0, half)
                assert set(read) <= set(paper.needed(round, labelled + unlabelled, unlabelled))
