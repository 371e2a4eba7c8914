"""What is compared with what: the settings of one run, a value that goes to its folder and back."""

from __future__ import annotations

import math

import msgspec

METHODS = ("fedavg", "fedprox", "mixmatch", "fixmatch", "fedmatch", "rscfed", "hassle")
"""Names that `--method` takes; `method.method_of` makes them."""

Option = bool | int | float | str


class StudyError(ValueError):
    """Settings that cannot be run, or a run that cannot go on; the message says which and what to do."""


class StudyFailed(RuntimeError):
    """A study that was well asked and did not come to its end: training diverged, a process ended."""


class Training(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One client's optimisation in one round, the same for every method (HASSLE, arXiv 2303.02445).

    An epoch is one pass over the samples that the method trains on; where labelled and unlabelled batches go
    together, one pass over the larger kind while the smaller one is dealt again and again. A fresh SGD for
    every client and round. `clip_norm` bounds the gradient; None, the default, leaves it as it is.
    """

    epochs: int = 10
    batch_size: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.9
    clip_norm: float | None = None


class Study(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """run.json's heart. `options` are the method's own: the fields of its dataclass."""

    method: str
    data: str = "fashion-mnist"
    """A data set that `settings.pictures` describes."""
    architecture: str = "lenet"
    setting: str = "default"
    """Which clients have labels: a setting of `datasets.annotation`."""
    labels: float = 0.1
    """Share of the training samples that keep their label."""
    alpha: float = 0.1
    """Dirichlet parameter of the clients' class proportions; smaller: they differ more."""
    clients: int = 20
    selected: int = 8
    """Clients drawn in each round."""
    rounds: int = 200
    seed: int = 1
    samples: int | None = None
    """Draw only so many training samples, and so many test samples."""
    test_samples: int | None = None
    holdout: bool = False
    """Judge on a tenth of the training data, left out of training, and not on the test set: for choices."""
    training: Training = Training()
    options: dict[str, Option] = {}


def check(study: Study) -> Study:
    """The study, if it can be run; raises StudyError naming the setting."""
    training = study.training
    if study.method not in METHODS:
        raise StudyError(f"no method is called {study.method!r}; there are: {', '.join(METHODS)}")
    for name, count in (
        ("clients", study.clients),
        ("selected", study.selected),
        ("rounds", study.rounds),
        ("epochs", training.epochs),
        ("batch_size", training.batch_size),
    ):
        if count < 1:
            raise StudyError(f"{name} must be at least 1, not {count}")
    if study.selected > study.clients:
        raise StudyError(f"{study.selected} clients are to be drawn, but there are {study.clients}")
    if not 0 < study.labels <= 1:
        raise StudyError(f"labels is a share above 0 and up to 1, not {study.labels}")
    positive = (("alpha", study.alpha), ("learning_rate", training.learning_rate))
    for name, value in (*positive, ("clip_norm", training.clip_norm or 1.0)):
        if not 0 < value < math.inf:
            raise StudyError(f"{name} must be above zero and finite, not {value}")
    if not 0 <= training.momentum < 1:
        raise StudyError(f"momentum must lie in [0, 1), not {training.momentum}")
    if study.seed < 0:
        raise StudyError(f"a seed is a whole number from 0 on, not {study.seed}")
    return study
