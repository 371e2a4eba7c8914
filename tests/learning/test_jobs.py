"""Jobs on real samples: paired scores, one training, the same bytes each time; refusals are sentences."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from fedbac_edge.datasets.samples import UNLABELLED, Samples
from fedbac_edge.federation_file import reading
from fedbac_edge.learning import jobs
from fedbac_edge.learning.evaluation import evaluate
from fedbac_edge.learning.jobs import JobError, perform, training_seed
from fedbac_edge.learning.outcomes import Cancelled
from fedbac_edge.learning.pseudo_labels import pseudo_labelled
from fedbac_edge.methods import method
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import Part, PartError, digest, pack, unpack
from fedbac_edge.protocol.events import Evaluated, EvaluateJob, Trained, TrainJob
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import NO_SCORE, Score
from fedbac_edge.vocabulary.training import LocalTraining, Normalisation

Labelled = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
GRAY = Normalisation(mean=(0.5,), std=(0.5,))


@pytest.fixture(scope="module")
def federation() -> Federation:
    classes = ", ".join(f'"{n}"' for n in range(10))
    return reading.parse(
        f'name = "t"\n[model]\nclasses = [{classes}]\n[method]\nclusters = 3\ncluster_start = "each"'
    )


@pytest.fixture(scope="module")
def parts(federation: Federation) -> dict[str, Part]:
    """global, cluster-0, cluster-1, cluster-2, all different."""
    return method(federation).initial(LeNet(), 7)


@pytest.fixture(scope="module")
def blobs(parts: dict[str, Part]) -> dict[str, bytes]:
    return {digest(pack(part)): pack(part) for part in parts.values()}


@pytest.fixture(scope="module")
def train(fashion: Labelled) -> Samples:
    return Samples(fashion[0][:300], fashion[1][:300])


@pytest.fixture(scope="module")
def holdout(fashion: Labelled) -> Samples:
    return Samples(fashion[0][300:], fashion[1][300:])


def hashes(parts: dict[str, Part], cluster: int) -> dict[str, str]:
    return {"global": digest(pack(parts["global"])), "cluster": digest(pack(parts[f"cluster-{cluster}"]))}


def job(weights: dict[str, Part], **changes: Any) -> TrainJob:
    settings = LocalTraining(
        epochs=1,
        batch_size=32,
        learning_rate=changes.pop("learning_rate", 0.01),
        momentum=0.9,
        weight_decay=5e-4,
        clip_norm=changes.pop("clip_norm", 1.0),
        l2={"cluster": 1e-3},
    )
    fields: dict[str, Any] = {
        "id": "train-3",
        "parts": hashes(weights, 1),
        "previous": hashes(weights, 0),
        "training": settings,
        "seed": (7, "device", "dev-1", 3, "train"),
    }
    return TrainJob(**{**fields, **changes})


def independent(parts: dict[str, Part], cluster: int, samples: Samples) -> Score:
    served = [(parts["global"], 1.0), (parts[f"cluster-{cluster}"], 1.0)]
    result = evaluate(LeNet(), served, samples.x, samples.y, GRAY)
    return Score(result.count, result.correct, result.loss_sum)


def test_training(
    federation: Federation, parts: dict[str, Part], blobs: dict[str, bytes], train: Samples, holdout: Samples
) -> None:
    """The scores are those before training, of both models; the trained model is another, and better."""
    trained = perform(job(parts), blobs, federation, train, holdout)
    assert isinstance(trained, Trained)
    assert (trained.job, trained.samples, trained.data) == ("train-3", 300, 300)
    assert trained.holdout == independent(parts, 1, holdout)
    assert trained.previous == independent(parts, 0, holdout)
    assert trained.holdout != trained.previous
    after = {role: unpack(data, LeNet().schema()) for role, data in trained.parts.items()}
    score = independent({"global": after["global"], "cluster-1": after["cluster"]}, 1, holdout)
    assert score.loss < trained.holdout.loss

    assert perform(job(parts), blobs, federation, train, holdout) == trained  # bit for bit
    other = perform(job(parts, seed=(7, "device", "dev-2", 3, "train")), blobs, federation, train, holdout)
    assert isinstance(other, Trained)
    assert other.parts != trained.parts
    assert other.holdout == trained.holdout
    alone = perform(job(parts, previous={}), blobs, federation, train, holdout)
    assert isinstance(alone, Trained)
    assert alone.previous is None
    assert alone.parts == trained.parts


def test_only_labelled_samples_count(
    federation: Federation, parts: dict[str, Part], blobs: dict[str, bytes], train: Samples, holdout: Samples
) -> None:
    """Samples without a label neither train nor score, and the rest is as if they were not there."""

    def with_unlabelled(samples: Samples) -> Samples:
        more = np.concatenate([samples.x, samples.x[:50]])
        return Samples(more, np.concatenate([samples.y, np.full(50, UNLABELLED)]))

    plain = perform(job(parts), blobs, federation, train, holdout)
    mixed = perform(job(parts), blobs, federation, with_unlabelled(train), with_unlabelled(holdout))
    assert isinstance(plain, Trained)
    assert isinstance(mixed, Trained)
    assert (mixed.samples, mixed.data) == (300, 350)
    assert (mixed.parts, mixed.holdout) == (plain.parts, plain.holdout)
    nobody = holdout.take(np.zeros(len(holdout), np.bool_))
    without = perform(job(parts), blobs, federation, train, nobody)
    assert isinstance(without, Trained)
    assert (without.parts, without.holdout, without.previous) == (plain.parts, NO_SCORE, NO_SCORE)
    with pytest.raises(JobError, match="no labelled samples"):
        perform(job(parts), blobs, federation, nobody, holdout)


def test_evaluation(
    federation: Federation, parts: dict[str, Part], blobs: dict[str, bytes], train: Samples, holdout: Samples
) -> None:
    """Every candidate gets the score that it gets alone, whatever they share."""
    expected = {k: independent(parts, k, holdout) for k in range(3)}
    assert len({score.loss for score in expected.values()}) == 3
    every = EvaluateJob("evaluate-3", {k: hashes(parts, k) for k in range(3)})
    assert perform(every, blobs, federation, train, holdout) == Evaluated("evaluate-3", expected)
    one = EvaluateJob("e", {2: hashes(parts, 2)})
    assert perform(one, blobs, federation, train, holdout) == Evaluated("e", {2: expected[2]})
    # Two roles differ: nothing can be shared.
    swapped = {"global": hashes(parts, 0)["cluster"], "cluster": hashes(parts, 0)["global"]}
    two = perform(EvaluateJob("e", {0: swapped, 1: hashes(parts, 1)}), blobs, federation, train, holdout)
    assert isinstance(two, Evaluated)
    assert two.scores[1] == expected[1]
    assert two.scores[0].correct == expected[0].correct
    nobody = holdout.take(np.zeros(len(holdout), np.bool_))
    assert perform(every, blobs, federation, train, nobody) == Evaluated(
        "evaluate-3", dict.fromkeys(range(3), NO_SCORE)
    )


def test_one_role(
    federation: Federation, parts: dict[str, Part], blobs: dict[str, bytes], train: Samples, holdout: Samples
) -> None:
    """HierFAVG: the global part alone."""
    plain = msgspec.structs.replace(
        federation, method=msgspec.structs.replace(federation.method, name="hierfavg")
    )
    only = {"global": hashes(parts, 0)["global"]}
    settings = msgspec.structs.replace(job(parts).training, l2={})
    trained = perform(job(parts, parts=only, previous={}, training=settings), blobs, plain, train, holdout)
    assert isinstance(trained, Trained)
    assert set(trained.parts) == {"global"}
    with pytest.raises(JobError, match=r"roles \['global'\], asked: \['cluster', 'global'\]"):
        perform(job(parts), blobs, plain, train, holdout)


def test_refusals(
    federation: Federation, parts: dict[str, Part], blobs: dict[str, bytes], train: Samples, holdout: Samples
) -> None:
    damaged = {hash: data[:-4] for hash, data in blobs.items()}
    with pytest.raises(PartError, match="safetensors"):
        perform(job(parts), damaged, federation, train, holdout)
    with pytest.raises(JobError, match="is not here"):
        perform(job(parts), {}, federation, train, holdout)
    with pytest.raises(JobError, match="diverged"):
        perform(job(parts, learning_rate=1e30, clip_norm=1e30), blobs, federation, train, holdout)
    huge = {
        hash: pack({n: t * 0 + 3e38 for n, t in unpack(data, LeNet().schema()).items()})
        for hash, data in blobs.items()
    }
    with np.errstate(invalid="ignore"), pytest.raises(JobError, match="no finite number"):
        perform(EvaluateJob("e", {0: hashes(parts, 0)}), huge, federation, train, holdout)


def test_cancelled(
    federation: Federation, parts: dict[str, Part], blobs: dict[str, bytes], train: Samples, holdout: Samples
) -> None:
    """Asked before each piece of work; nothing comes out."""
    asked = [0]

    def after(count: int) -> Callable[[], bool]:
        asked[0] = 0

        def cancelled() -> bool:
            asked[0] += 1
            return asked[0] > count

        return cancelled

    for count in (0, 1, 5):
        with pytest.raises(Cancelled):
            perform(job(parts), blobs, federation, train, holdout, cancelled=after(count))
        assert asked[0] == count + 1
    with pytest.raises(Cancelled):
        perform(
            EvaluateJob("e", {0: hashes(parts, 0)}), blobs, federation, train, holdout, cancelled=after(0)
        )


def test_seed() -> None:
    """Numbers written down once: a job repeated after an update of numpy must train alike."""
    seed = (7, "device", "dev-1", 3, "train")
    assert training_seed(seed) == training_seed(seed)
    assert training_seed(seed) != training_seed((7, "device", "dev-1", 4, "train"))
    assert training_seed(seed)[0] == SEED_WORD
    with pytest.raises(ValueError, match="whole number"):
        training_seed(("device", 7))


SEED_WORD = 13338575077785342521


def test_known_without_torch() -> None:
    """Importing the module costs no torch; only doing a job does."""
    code = f"import {jobs.__name__}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_pseudo_labels_let_samples_without_a_label_count(
    federation: Federation, parts: dict[str, Part], blobs: dict[str, bytes], train: Samples, holdout: Samples
) -> None:
    """Labels of the served sum as it came, for training only: the hold-out judges by people's labels."""
    bare = Samples(train.x, np.where(np.arange(len(train)) < 120, train.y, UNLABELLED))
    served = [(parts["global"], 1.0), (parts["cluster-1"], 1.0)]
    filled = pseudo_labelled(LeNet(), served, bare, GRAY)
    expected = perform(job(parts), blobs, federation, filled, holdout)
    found = perform(job(parts), blobs, _with_pseudo(federation), bare, holdout)
    assert isinstance(expected, Trained)
    assert found == replace(expected, unlabelled=180)

    nobody = bare.take(bare.y == UNLABELLED)
    alone = perform(job(parts), blobs, _with_pseudo(federation), nobody, nobody)
    assert isinstance(alone, Trained)
    assert (alone.samples, alone.unlabelled, alone.data, alone.holdout) == (180, 180, 180, NO_SCORE)
    sure = _with_pseudo(federation, confidence=0.99)
    with pytest.raises(JobError, match=r"no labelled samples, and the model is sure of none .* by 0\.99"):
        perform(job(parts), blobs, sure, nobody, holdout)
    with pytest.raises(JobError, match=r"no labelled samples$"):
        perform(job(parts), blobs, sure, nobody.take(np.zeros(len(nobody), np.bool_)), holdout)


def _with_pseudo(federation: Federation, confidence: float = 0.0) -> Federation:
    training = msgspec.structs.replace(federation.training, unlabelled="pseudo", confidence=confidence)
    return msgspec.structs.replace(federation, training=training)
