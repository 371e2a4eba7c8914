"""Samples of each client, and which of them have a label: clients that are labelled fully, in part, or not.

HASSLE, arXiv 2303.02445, annotation settings. By default 1 of 20 clients is fully labelled, 9 in part and 10
not at all; `SETTINGS` has the others by name, and "2/2/4" stands for any mixture (full, partial, unlabelled),
in this order over the clients.

Labels: a share of all samples. The fully labelled clients hold one half of them and the partially labelled
ones the other, each kind in equal parts; where one kind is missing the other holds all. A fully labelled
client has its labelled samples and nothing else, so its size follows from the share (CIFAR-10, 20 clients:
2,500 samples at 10 %, 1,250 at 5 %); the samples left over are dealt to the others in equal sizes.

Classes: each client draws proportions q ~ Dir(alpha * 1_C) and takes its samples class by class as q says, as
far as the classes last: what a used-up class lacks it takes from its other classes, in the end from whatever
is left. Clients draw in a random order, so that no kind of client always gets the leftovers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedbac_edge.datasets import cut_file
from fedbac_edge.datasets.partition import Partition, PartitionError
from fedbac_edge.datasets.samples import UNLABELLED
from fedbac_edge.randomness import generator

Indices = npt.NDArray[np.int64]
_FORMAT = 1
_KINDS = dict.fromkeys(("labelled", "labelled_ends", "unlabelled", "unlabelled_ends"), "<i8")


class AnnotationError(PartitionError):
    """Settings that give no such split, or a file that holds none."""


@dataclass(frozen=True)
class Mixture:
    """How many clients are fully labelled, partially labelled and unlabelled."""

    full: int
    partial: int
    unlabelled: int

    def __str__(self) -> str:
        return f"{self.full}/{self.partial}/{self.unlabelled}"


def _all_kinds(clients: int, share: float) -> Mixture:
    full, unlabelled = max(1, round(clients / 20)), clients // 2
    return Mixture(full, clients - full - unlabelled, unlabelled)


def _full_and_partial(clients: int, share: float) -> Mixture:
    full = max(1, round(clients / 20))
    return Mixture(full, clients - full, 0)


def _full_and_none(clients: int, share: float) -> Mixture:
    full = max(1, round(clients * share))
    return Mixture(full, 0, clients - full)


SETTINGS: Mapping[str, Callable[[int, float], Mixture]] = {
    "default": _all_kinds,
    "PL": lambda clients, share: Mixture(0, clients, 0),
    "LPL": _full_and_partial,
    "UPL": lambda clients, share: Mixture(0, clients - clients // 2, clients // 2),
    "LU": _full_and_none,
    "ALL": _all_kinds,
}
"""Name -> the mixture of so many clients at this share of labels: partially labelled clients alone; with
fully labelled ones; with unlabelled ones; fully labelled and unlabelled ones, as many full as the share has
room for; all three kinds, which is the default."""


def mixture(setting: str, clients: int, share: float) -> Mixture:
    """The mixture that `setting` (a name, or "full/partial/unlabelled") means. Raises AnnotationError."""
    counts = re.fullmatch(r"(\d{1,6})/(\d{1,6})/(\d{1,6})", setting)
    if counts:
        found = Mixture(*map(int, counts.groups()))
    elif setting in SETTINGS:
        found = SETTINGS[setting](clients, share)
    else:
        raise AnnotationError(
            f"no annotation setting is called {setting!r}; there are: {', '.join(SETTINGS)}, or numbers of "
            "fully labelled, partially labelled and unlabelled clients such as 1/9/10"
        )
    if found.full + found.partial + found.unlabelled != clients or found.partial < 0:
        raise AnnotationError(f"{setting} speaks of other clients than the {clients} that there are")
    if found.full + found.partial == 0:
        raise AnnotationError(f"{setting}: no client would have a label")
    return found


@dataclass(frozen=True, eq=False)
class Annotation:
    """Who owns which sample, with and without its label; equal splits have equal digests.

    labelled[i], unlabelled[i]: indices of client i into the training set, ascending. `labels` is the sha256
    of the labels that were cut.
    """

    setting: str
    share: float
    alpha: float
    seed: int
    labels: str
    labelled: tuple[Indices, ...]
    unlabelled: tuple[Indices, ...]

    def __post_init__(self) -> None:
        if len(self.labelled) != len(self.unlabelled) or not self.labelled:
            raise AnnotationError("labelled and unlabelled samples speak of different numbers of clients")
        owned = np.sort(np.concatenate([*self.labelled, *self.unlabelled]))
        if not np.array_equal(owned, np.arange(len(owned))):
            raise AnnotationError("not a split: a sample has no owner, or more than one")
        for array in (*self.labelled, *self.unlabelled):
            array.flags.writeable = False

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.labelled)

    @cached_property
    def owned(self) -> tuple[Indices, ...]:
        """All samples of each client, ascending."""
        return tuple(
            np.sort(np.concatenate(pair)) for pair in zip(self.labelled, self.unlabelled, strict=True)
        )

    @cached_property
    def digest(self) -> str:
        """Content hash, 64 hex digits: of the settings and of every array."""
        return cut_file.digest(self._settings(), self._arrays())

    def hide(self, labels: Indices) -> Indices:
        """The training set's labels as their owners know them: UNLABELLED where the sample has no label.

        Raises AnnotationError when these are not the labels that were cut.
        """
        self.check_labels(labels)
        known = np.full(len(labels), UNLABELLED, dtype=np.int64)
        for indices in self.labelled:
            known[indices] = labels[indices]
        return known

    def check_labels(self, labels: npt.ArrayLike) -> None:
        """Raises AnnotationError when these are not the labels that were cut."""
        if cut_file.labels_digest(np.asarray(labels)) != self.labels:
            raise AnnotationError("this split was cut from other labels; make one from this data set")

    def partition(self, gateways: int, labels: Indices, test_labels: Indices, classes: int) -> Partition:
        """The clients dealt to gateways one by one (client i to gateway i mod `gateways`), the test set in
        equal random shares: it is drawn from the world, not from a site.

        Labels are those of the training and of the test set. The shares of the result are those that came
        out. Raises AnnotationError for other labels, or fewer clients than gateways.
        """
        self.check_labels(labels)
        if not 1 <= gateways <= self.clients:
            raise AnnotationError(f"{self.clients} clients cannot be dealt to {gateways} gateways")
        train = tuple(self.owned[gateway::gateways] for gateway in range(gateways))
        order = generator(self.seed, "annotation", "test").permutation(len(test_labels))
        inside = tuple(_shares(labels, clients, classes) for clients in train)
        sites = tuple(np.concatenate(clients) for clients in train)
        return Partition(
            form="annotation",
            alpha_server=self.alpha,
            alpha_client=self.alpha,
            seed=self.seed,
            groups=None,
            labels=cut_file.labels_digest(labels, test_labels),
            train=train,
            test=tuple(np.sort(share) for share in np.array_split(order, gateways)),
            server_shares=_shares(labels, sites, classes),
            client_shares=inside,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one npz without objects, its settings as JSON inside; the file is whole or not there."""
        meta = {"format": _FORMAT, "digest": self.digest, **self._settings()}
        cut_file.save(path, meta, self._arrays())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Annotation:
        """Read a saved split. Raises AnnotationError when the file is not one, or not whole."""
        try:
            meta, stored = cut_file.load(Path(path), _KINDS)
            if meta.pop("format") != _FORMAT:
                raise AnnotationError("it is of another version of the format")
            digest = meta.pop("digest")
            found = cls(
                **meta,
                labelled=cut_file.pieces(stored["labelled"], stored["labelled_ends"]),
                unlabelled=cut_file.pieces(stored["unlabelled"], stored["unlabelled_ends"]),
            )
        except (*cut_file.UNREADABLE, ValueError, KeyError, TypeError, AttributeError) as error:
            raise AnnotationError(f"{path} is not an annotation split: {error}") from error
        if found.digest != digest:
            raise AnnotationError(f"{path} is damaged: its content does not have the hash written in it")
        return found

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("setting", "share", "alpha", "seed", "labels")}

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays = (*cut_file.joined(self.labelled), *cut_file.joined(self.unlabelled))
        return {name: a.astype(kind) for (name, kind), a in zip(_KINDS.items(), arrays, strict=True)}


def annotate(
    labels: npt.ArrayLike,
    *,
    clients: int = 20,
    setting: str = "default",
    share: float = 0.1,
    alpha: float = 0.1,
    seed: int,
) -> Annotation:
    """Cut a training set with these `labels` (whole numbers from 0) over the clients of a setting.

    `share` is that of the samples that keep their label, in (0, 1]. Raises AnnotationError for settings that
    give no such split.
    """
    y = np.asarray(labels)
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer) or not y.size or y.min() < 0:
        raise AnnotationError("labels are one whole number per sample, from 0")
    if not 0 < share <= 1 or not 0 < alpha < float("inf"):
        raise AnnotationError(f"a share lies in (0, 1], alpha is above zero; not {share} and {alpha}")
    if clients < 1:
        raise AnnotationError(f"there must be clients, not {clients}")
    kinds = mixture(setting, clients, share)
    with_label, sizes = _counts(kinds, len(y), round(share * len(y)))
    owned = _deal(y.astype(np.int64), sizes, alpha, seed)
    labelled, unlabelled = [], []
    for client, (indices, count) in enumerate(zip(owned, with_label, strict=True)):
        shuffled = generator(seed, "annotation", "labels", client).permutation(indices)
        labelled.append(np.sort(shuffled[:count]))
        unlabelled.append(np.sort(shuffled[count:]))
    return Annotation(
        setting=setting,
        share=float(share),
        alpha=float(alpha),
        seed=int(seed),
        labels=cut_file.labels_digest(y),
        labelled=tuple(labelled),
        unlabelled=tuple(unlabelled),
    )


def _counts(kinds: Mixture, samples: int, labels: int) -> tuple[list[int], list[int]]:
    """(labels, samples) of each client."""
    others = kinds.partial + kinds.unlabelled
    to_full = labels if not kinds.partial else labels // 2 if kinds.full else 0
    full, partial = _evenly(to_full, kinds.full), _evenly(labels - to_full, kinds.partial)
    rest = _evenly(samples - to_full, others)
    if min([*full, *partial, *rest]) < 1:
        raise AnnotationError(
            f"{samples} samples, {labels} of them labelled, are too few for {kinds} clients: some would have "
            "none"
        )
    if not others and to_full < samples:
        raise AnnotationError("fully labelled clients alone leave no sample without a label: the share is 1")
    if partial and max(partial) >= min(rest):
        raise AnnotationError(
            f"{max(partial)} labels of {min(rest)} samples: partially labelled clients would be fully "
            "labelled; take fewer labels or more such clients"
        )
    return [*full, *partial, *[0] * kinds.unlabelled], [*full, *rest]


def _evenly(total: int, owners: int) -> list[int]:
    return [total // owners + (i < total % owners) for i in range(owners)]


def _deal(labels: Indices, sizes: list[int], alpha: float, seed: int) -> list[Indices]:
    """`sizes[i]` samples for client i, by its proportions over the classes as far as these last."""
    rng = generator(seed, "annotation", "samples")
    classes = int(labels.max()) + 1
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(classes)]
    taken = np.zeros(classes, dtype=np.int64)
    full = np.array([len(pool) for pool in pools])
    proportions = np.nan_to_num(rng.dirichlet(np.full(classes, alpha), size=len(sizes)))
    hands: list[list[Indices]] = [[] for _ in sizes]
    for client in rng.permutation(len(sizes)):
        wanted = sizes[client]
        while wanted:
            lasting = taken < full
            q = np.where(lasting, proportions[client], 0.0)
            q = q / q.sum() if q.sum() > 0 else lasting / lasting.sum()
            counts = np.minimum(rng.multinomial(wanted, q), full - taken)
            for label in np.flatnonzero(counts):
                hands[client].append(pools[label][taken[label] : taken[label] + counts[label]])
            taken += counts
            wanted -= int(counts.sum())
    return [np.concatenate([*hand, np.zeros(0, np.int64)]).astype(np.int64) for hand in hands]


def _shares(labels: Indices, owners: tuple[Indices, ...], classes: int) -> npt.NDArray[np.float64]:
    """p[c, m]: what part of class c, among these owners' samples, is owner m's; even where there is none."""
    counts = np.stack([np.bincount(labels[o], minlength=classes) for o in owners], axis=1).astype(np.float64)
    counts[counts.sum(axis=1) == 0] = 1.0
    return np.ascontiguousarray(counts / counts.sum(axis=1, keepdims=True))
