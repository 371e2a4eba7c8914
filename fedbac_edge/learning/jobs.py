"""A job from its hashes to its answer: what a device's worker and the laboratory do alike.

Torch is imported when the first job begins, so that a process can know this module and stay small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set

from fedbac_edge.datasets.samples import Samples
from fedbac_edge.learning.learner import Lesson, NothingToLearn, learner, never, without_labels
from fedbac_edge.learning.outcomes import Cancelled, Evaluation
from fedbac_edge.methods import method
from fedbac_edge.methods.method import View
from fedbac_edge.models.catalog import architecture
from fedbac_edge.models.description import Architecture
from fedbac_edge.parts.part import Part, is_finite, pack, unpack
from fedbac_edge.protocol.events import Evaluated, EvaluateJob, Job, Trained, TrainJob
from fedbac_edge.randomness import generator
from fedbac_edge.settings.federation import Federation
from fedbac_edge.vocabulary.terms import NO_SCORE, Score
from fedbac_edge.vocabulary.training import Backend, Normalisation


class JobError(ValueError):
    """The job cannot be done; the message is a sentence for the device's gateway."""


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

    Scores come from the labelled samples of `holdout`; the method's learner takes what it learns from out of
    `train`. Raises JobError
    (nothing to train on, a model that has diverged), PartError for a blob that is no part of the
    federation's model, ValueError for samples that do not fit it, Cancelled when `cancelled()` was true.
    """
    from fedbac_edge.learning.compiler import NoKernel

    bench = _Bench(blobs, federation, holdout.labelled(), device, cancelled)
    try:
        if isinstance(job, EvaluateJob):
            return Evaluated(job=job.id, scores=bench.score_each(job))
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
    unlabelled = len(without_labels(train)) if bench.method.takes_unlabelled else 0
    needed = set(bench.method.needed(job.round, len(train), unlabelled))
    if not needed <= set(job.parts):
        raise JobError(f"the method has the roles {sorted(needed)}, asked: {sorted(job.parts)}")
    # The paired change: both models on the same hold-out, before anything is trained.
    judged = {term.role for term in bench.method.judged_view.terms}
    score = bench.score({role: job.parts[role] for role in job.parts if role in judged})
    previous = bench.score(job.previous) if job.previous else None
    lesson = Lesson(
        models=bench.models,
        parts=bench.parts(job.parts),
        train=train,
        federation=bench.federation,
        training=job.training,
        round=job.round,
        normalisation=bench.normalisation,
        seed=training_seed(job.seed),
        device=bench.device,
        threads=job.training.threads,
        backend=bench.backend,
        cancelled=cancelled,
    )
    try:
        learned = learner(bench.method.learner)(lesson)
    except NothingToLearn as error:
        raise JobError(str(error)) from error
    if not math.isfinite(learned.loss) or not all(map(is_finite, learned.parts.values())):
        raise JobError("training diverged: weights or loss are no finite numbers; lower the learning rate")
    weights = {
        role.weight: learned.weights[role.name] for role in bench.method.roles if role.name in learned.parts
    }
    learned_without = weights.get("unlabelled", learned.unlabelled)
    return Trained(
        job=job.id,
        parts={role: pack(part) for role, part in learned.parts.items()},
        samples=weights.get("samples", weights.get("labelled", 0) + learned_without),
        data=len(train),
        loss=learned.loss,
        holdout=score,
        previous=previous,
        unlabelled=learned_without,
    )


class _Bench:
    """Models to score, unpacked once per hash, against one labelled hold-out."""

    def __init__(
        self,
        blobs: Mapping[str, bytes],
        federation: Federation,
        holdout: Samples,
        device: str,
        cancelled: Callable[[], bool],
    ) -> None:
        described = federation.model
        model = architecture(described.architecture, described.input, len(described.classes))
        self.federation, self.method = federation, method(federation)
        self.models: dict[str, Architecture] = self.method.architectures(model)
        self.normalisation = Normalisation(mean=described.mean, std=described.std)
        self.device = device
        self._threads = federation.training.threads
        path = federation.training.backend
        self.backend: Backend | None = None if path == "auto" else path
        self._blobs, self._holdout, self._cancelled = blobs, holdout, cancelled
        self._unpacked: dict[tuple[str, str], Part] = {}

    def parts(self, hashes: Mapping[str, str]) -> dict[str, Part]:
        """Role -> part, in the method's order of roles. Raises JobError for roles of another method."""
        self._check_roles(hashes, some_of=set(self.models))
        return {role: self._part(role, hashes[role]) for role in self.models if role in hashes}

    def score(self, hashes: Mapping[str, str]) -> Score:
        """The judged view of role -> hash."""
        return self._score({0: hashes}, {0: self.method.judged_view})[0]

    def score_each(self, job: EvaluateJob) -> dict[int, Score]:
        """Every candidate; what they share (Fed-BAC: the global part) is computed once for all."""
        try:
            views = {number: self.method.view(job.views.get(number, "")) for number in job.candidates}
        except KeyError as error:
            raise JobError(f"the method has no view {error}") from error
        return self._score(job.candidates, views)

    def _score(
        self, candidates: Mapping[int, Mapping[str, str]], views: Mapping[int, View]
    ) -> dict[int, Score]:
        from fedbac_edge.learning.evaluation import evaluate_sums

        networks: dict[str, tuple[Architecture, Part]] = {}
        sums: dict[str, list[tuple[str, float]]] = {}
        for number, hashes in candidates.items():
            terms = views[number].coefficients()
            self._check_roles(hashes, all_of=set(terms))
            for role in terms:
                networks[f"{role} {hashes[role]}"] = (self.models[role], self._part(role, hashes[role]))
            sums[str(number)] = [(f"{role} {hashes[role]}", factor) for role, factor in terms.items()]
        if not len(self._holdout):
            return dict.fromkeys(candidates, NO_SCORE)
        self._stop_if_cancelled()
        found = evaluate_sums(
            networks,
            sums,
            self._holdout.x,
            self._holdout.y,
            self.normalisation,
            self.device,
            threads=self._threads,
            backend=self.backend,
        )
        return {number: _score(found[str(number)]) for number in candidates}

    def _check_roles(
        self, hashes: Mapping[str, str], all_of: Set[str] = frozenset(), some_of: Set[str] = frozenset()
    ) -> None:
        if (all_of and set(hashes) != all_of) or (some_of and not set(hashes) <= some_of) or not hashes:
            raise JobError(f"the method has the roles {sorted(all_of or some_of)}, asked: {sorted(hashes)}")

    def _part(self, role: str, hash: str) -> Part:
        if (role, hash) not in self._unpacked:
            if hash not in self._blobs:
                raise JobError(f"the part {hash[:12]} is not here")
            self._unpacked[role, hash] = unpack(self._blobs[hash], self.models[role].schema())
        return self._unpacked[role, hash]

    def _stop_if_cancelled(self) -> None:
        if self._cancelled():
            raise Cancelled("stopped before an evaluation")


def _score(evaluation: Evaluation) -> Score:
    if not math.isfinite(evaluation.loss_sum):
        raise JobError("the model's loss on the hold-out is no finite number")
    return Score(evaluation.count, evaluation.correct, evaluation.loss_sum)
