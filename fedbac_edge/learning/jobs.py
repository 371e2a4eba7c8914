"""A job from its hashes to its answer: what a device's worker and the laboratory do alike.

Torch is imported when the first job begins, so that a process can know this module and stay small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from fedbac_edge.datasets.samples import Samples
from fedbac_edge.federation import Federation
from fedbac_edge.learning.settings import Backend, Cancelled, Evaluation, Normalisation
from fedbac_edge.methods import method
from fedbac_edge.models.catalog import architecture
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts import Part, is_finite, pack, unpack
from fedbac_edge.protocol.engine import Evaluated, EvaluateJob, Job, Trained, TrainJob
from fedbac_edge.protocol.messages import NO_SCORE, Score
from fedbac_edge.randomness import generator


class JobError(ValueError):
    """The job cannot be done; the message is a sentence for the device's gateway."""


def never() -> bool:
    """Nobody cancels."""
    return False


def perform(
    job: Job,
    blobs: Mapping[str, bytes],
    federation: Federation,
    train: Samples,
    holdout: Samples,
    device: str = "cpu",
    cancelled: Callable[[], bool] = never,
) -> Trained | Evaluated:
    """Do `job` on one device's samples; `blobs` maps the hashes that it names to canonical bytes.

    Scores come from the labelled samples of `holdout`, training from those of `train`. Raises JobError
    (nothing to train on, a model that has diverged), PartError for a blob that is no part of the
    federation's model, ValueError for samples that do not fit it, Cancelled when `cancelled()` was true.
    """
    from fedbac_edge.learning.compiler import NoKernel

    bench = _Bench(blobs, federation, holdout.labelled(), device, cancelled)
    try:
        if isinstance(job, EvaluateJob):
            return Evaluated(job=job.id, scores=bench.score_each(job.candidates))
        return _train(job, bench, train, cancelled)
    except NoKernel as error:
        raise JobError(f"the federation asks for the compiled training path, and {error}") from error


def training_seed(seed: tuple[int | str, ...]) -> list[int]:
    """Whole numbers for `numpy.random.default_rng` from a job's seed: (federation's seed, purpose ...).

    Raw output of the generator, which numpy keeps the same over its versions. Raises ValueError when the
    seed does not begin with a whole number.
    """
    first, *purpose = seed
    if not isinstance(first, int):
        raise ValueError(f"a job's seed begins with the federation's, a whole number, not {first!r}")
    return [int(word) for word in generator(first, *purpose).bit_generator.random_raw(4)]


def _train(job: TrainJob, bench: _Bench, train: Samples, cancelled: Callable[[], bool]) -> Trained:
    from fedbac_edge.learning.local import train_jointly

    labelled = train.labelled()
    if not len(labelled):
        raise JobError("this device has no labelled samples to train on")
    # The paired change: both models on the same hold-out, before anything is trained.
    score = bench.score(job.parts)
    previous = bench.score(job.previous) if job.previous else None
    update = train_jointly(
        bench.model,
        bench.parts(job.parts),
        labelled.x,
        labelled.y,
        job.training,
        bench.normalisation,
        training_seed(job.seed),
        device=bench.device,
        cancelled=cancelled,
        backend=bench.backend,
    )
    if not math.isfinite(update.loss) or not all(map(is_finite, update.parts.values())):
        raise JobError("training diverged: weights or loss are no finite numbers; lower the learning rate")
    return Trained(
        job=job.id,
        parts={role: pack(part) for role, part in update.parts.items()},
        samples=update.samples,
        data=len(train),
        loss=update.loss,
        holdout=score,
        previous=previous,
    )


class _Bench:
    """Served models, unpacked once per hash, against one labelled hold-out."""

    def __init__(
        self,
        blobs: Mapping[str, bytes],
        federation: Federation,
        holdout: Samples,
        device: str,
        cancelled: Callable[[], bool],
    ) -> None:
        described = federation.model
        self.model: Architecture = architecture(
            described.architecture, described.input, len(described.classes)
        )
        self.normalisation = Normalisation(mean=described.mean, std=described.std)
        self.device = device
        self._coefficients = method(federation).coefficients()
        self._threads = federation.training.threads
        path = federation.training.backend
        self.backend: Backend | None = None if path == "auto" else path
        self._blobs, self._holdout, self._cancelled = blobs, holdout, cancelled
        self._unpacked: dict[str, Part] = {}

    def parts(self, hashes: Mapping[str, str]) -> dict[str, Part]:
        """Role -> part, in the method's order of roles. Raises JobError for roles of another method."""
        if set(hashes) != set(self._coefficients):
            raise JobError(f"the method has the roles {sorted(self._coefficients)}, asked: {sorted(hashes)}")
        return {role: self._part(hashes[role]) for role in self._coefficients}

    def score(self, hashes: Mapping[str, str]) -> Score:
        """The served model of role -> hash."""
        from fedbac_edge.learning.evaluation import evaluate

        parts = self.parts(hashes)
        if not len(self._holdout):
            return NO_SCORE
        self._stop_if_cancelled()
        served = [(parts[role], factor) for role, factor in self._coefficients.items()]
        return _score(
            evaluate(
                self.model,
                served,
                self._holdout.x,
                self._holdout.y,
                self.normalisation,
                self.device,
                threads=self._threads,
                backend=self.backend,
            )
        )

    def score_each(self, candidates: Mapping[int, Mapping[str, str]]) -> dict[int, Score]:
        """Every candidate; what they share (Fed-BAC: the global part) is computed once for all."""
        from fedbac_edge.learning.evaluation import evaluate_candidates

        different = [
            role for role in self._coefficients if len({c.get(role) for c in candidates.values()}) > 1
        ]
        parts = {number: self.parts(hashes) for number, hashes in candidates.items()}
        if not len(self._holdout):
            return dict.fromkeys(candidates, NO_SCORE)
        if len(different) != 1 or self._coefficients[different[0]] != 1.0:
            return {number: self.score(hashes) for number, hashes in candidates.items()}
        self._stop_if_cancelled()
        role, first = different[0], next(iter(parts.values()))
        evaluations = evaluate_candidates(
            self.model,
            [(first[other], factor) for other, factor in self._coefficients.items() if other != role],
            {hashes[role]: self._part(hashes[role]) for hashes in candidates.values()},
            self._holdout.x,
            self._holdout.y,
            self.normalisation,
            self.device,
            threads=self._threads,
            backend=self.backend,
        )
        return {number: _score(evaluations[hashes[role]]) for number, hashes in candidates.items()}

    def _part(self, hash: str) -> Part:
        if hash not in self._unpacked:
            if hash not in self._blobs:
                raise JobError(f"the part {hash[:12]} is not here")
            self._unpacked[hash] = unpack(self._blobs[hash], self.model.schema())
        return self._unpacked[hash]

    def _stop_if_cancelled(self) -> None:
        if self._cancelled():
            raise Cancelled("stopped before an evaluation")


def _score(evaluation: Evaluation) -> Score:
    if not math.isfinite(evaluation.loss_sum):
        raise JobError("the model's loss on the hold-out is no finite number")
    return Score(evaluation.count, evaluation.correct, evaluation.loss_sum)
