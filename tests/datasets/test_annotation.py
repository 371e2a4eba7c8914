"""Annotation splits: the paper's exact counts, every setting and mixture, files that are whole or refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbac_edge.datasets.annotation import SETTINGS, Annotation, AnnotationError, Mixture, annotate, mixture
from fedbac_edge.datasets.partition import Partition

CIFAR = np.repeat(np.arange(10), 5000)
"""CIFAR-10's training set has 5,000 samples of each class."""


def counts(split: Annotation) -> list[tuple[int, int]]:
    return [(len(a), len(b)) for a, b in zip(split.labelled, split.unlabelled, strict=True)]


@pytest.fixture(scope="module")
def tenth() -> Annotation:
    return annotate(CIFAR, seed=3)


def test_the_default_at_ten_per_cent_of_cifar10(tenth: Annotation) -> None:
    found = counts(tenth)
    assert found[0] == (2500, 0)
    assert {labelled for labelled, _ in found[1:10]} == {277, 278}
    assert sum(labelled for labelled, _ in found[1:10]) == 2500
    assert found[10:] == [(0, 2500)] * 10
    assert {sum(pair) for pair in found} == {2500}


@pytest.mark.parametrize(("share", "first"), [(0.05, 1250), (0.2, 5000)])
def test_other_shares_make_the_full_client_smaller_or_larger(share: float, first: int) -> None:
    found = counts(annotate(CIFAR, share=share, seed=3))
    assert found[0] == (first, 0)
    assert sum(labelled for labelled, _ in found) == round(share * 50_000)
    sizes = {sum(pair) for pair in found[1:]}
    assert max(sizes) - min(sizes) <= 1
    assert sum(map(sum, found)) == 50_000


@pytest.mark.parametrize(
    ("setting", "kinds"),
    [
        ("default", Mixture(1, 9, 10)),
        ("ALL", Mixture(1, 9, 10)),
        ("PL", Mixture(0, 20, 0)),
        ("LPL", Mixture(1, 19, 0)),
        ("UPL", Mixture(0, 10, 10)),
        ("LU", Mixture(2, 0, 18)),
        ("3/7/10", Mixture(3, 7, 10)),
    ],
)
def test_every_setting(setting: str, kinds: Mixture) -> None:
    assert mixture(setting, 20, 0.1) == kinds
    found = counts(annotate(CIFAR, setting=setting, seed=5))
    full = [pair for pair in found if pair[1] == 0]
    partial = [pair for pair in found if min(pair) > 0]
    bare = [pair for pair in found if pair[0] == 0]
    assert Mixture(len(full), len(partial), len(bare)) == kinds
    assert found == full + partial + bare, "in this order"
    assert sum(labelled for labelled, _ in found) == 5_000


def test_labelled_and_unlabelled_clients_alone_are_all_of_one_size() -> None:
    assert set(counts(annotate(CIFAR, setting="LU", seed=1))) == {(2500, 0), (0, 2500)}


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2])
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_sample_has_one_owner(setting: str, share: float) -> None:
    split = annotate(CIFAR, setting=setting, share=share, seed=2)
    assert sum(map(len, split.owned)) == 50_000  # that it is a partition is checked when it is made


def test_a_small_alpha_leaves_clients_few_classes(tenth: Annotation) -> None:
    def classes(split: Annotation) -> float:
        """Mean number of classes that hold 90 % of a client."""
        shares = [np.sort(np.bincount(CIFAR[o], minlength=10) / len(o))[::-1] for o in split.owned]
        return float(np.mean([np.searchsorted(np.cumsum(each), 0.9) + 1 for each in shares]))

    assert classes(tenth) < 5 < 8 < classes(annotate(CIFAR, alpha=100.0, seed=3))


def test_labels_are_spread_over_a_clients_samples_by_chance() -> None:
    """What carries a label is a random tenth of what the client has, not the first classes of it."""
    split = annotate(CIFAR, setting="PL", alpha=100.0, seed=3)
    for labelled, owned in zip(split.labelled, split.owned, strict=True):
        of_labelled, of_all = (np.bincount(CIFAR[i], minlength=10) / len(i) for i in (labelled, owned))
        assert np.abs(of_labelled - of_all).max() < 0.08


def test_seeds_decide_everything(tenth: Annotation) -> None:
    assert annotate(CIFAR, seed=3).digest == tenth.digest
    for other in (
        annotate(CIFAR, seed=4),
        annotate(CIFAR, seed=3, alpha=0.2),
        annotate(CIFAR, seed=3, share=0.2),
    ):
        assert other.digest != tenth.digest


def test_hidden_labels(tenth: Annotation) -> None:
    known = tenth.hide(CIFAR)
    assert (known != -1).sum() == 5_000
    assert np.array_equal(known[tenth.labelled[4]], CIFAR[tenth.labelled[4]])
    assert (known[tenth.unlabelled[4]] == -1).all()
    with pytest.raises(AnnotationError, match="other labels"):
        tenth.hide(CIFAR[::-1])


def test_clients_are_dealt_to_gateways_one_by_one(tenth: Annotation, tmp_path: Path) -> None:
    test = np.repeat(np.arange(10), 1000)
    cut = tenth.partition(4, CIFAR, test, 10)
    assert [len(clients) for clients in cut.train] == [5, 5, 5, 5]
    assert np.array_equal(cut.train[1][2], tenth.owned[9])
    assert [len(share) for share in cut.test] == [2500] * 4
    assert all(np.bincount(test[share], minlength=10).min() > 200 for share in cut.test), "each of the world"
    cut.check_labels(CIFAR, test)
    cut.save(tmp_path / "partition.npz")
    assert Partition.load(tmp_path / "partition.npz").digest == cut.digest
    with pytest.raises(AnnotationError, match="cannot be dealt"):
        tenth.partition(21, CIFAR, test, 10)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"setting": "XL"}, "no annotation setting is called 'XL'; there are: default, PL"),
        ({"setting": "1/2/3"}, "other clients than the 20"),
        ({"setting": "0/0/20"}, "no client would have a label"),
        ({"share": 0.0}, "a share lies in"),
        ({"share": 1.5}, "a share lies in"),
        ({"alpha": 0.0}, "alpha is above zero"),
        ({"clients": 0}, "there must be clients"),
        ({"setting": "1/1/18", "share": 0.2}, "partially labelled clients would be fully labelled"),
        ({"setting": "20/0/0"}, "no sample without a label"),
        ({"share": 1e-5}, "too few"),
    ],
)
def test_what_gives_no_split_is_refused(change: dict[str, object], why: str) -> None:
    with pytest.raises(AnnotationError, match=why):
        annotate(CIFAR, **{"seed": 1, **change})  # type: ignore[arg-type]


def test_all_labelled_is_a_mixture_too() -> None:
    assert counts(annotate(CIFAR, setting="20/0/0", share=1.0, seed=1)) == [(2500, 0)] * 20


# --- files -----------------------------------------------------------------------------------------


def test_a_file_gives_back_what_was_saved(tenth: Annotation, tmp_path: Path) -> None:
    tenth.save(tmp_path / "annotation.npz")
    found = Annotation.load(tmp_path / "annotation.npz")
    assert found.digest == tenth.digest
    assert all(np.array_equal(a, b) for a, b in zip(found.unlabelled, tenth.unlabelled, strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["annotation.npz"]


def _stored(path: Path) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def test_other_content_than_its_hash_is_refused(tenth: Annotation, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    tenth.save(path)
    stored = _stored(path)
    a, b = stored["labelled"][0], stored["unlabelled"][0]
    stored["labelled"][0], stored["unlabelled"][0] = b, a
    np.savez(path, **stored)  # type: ignore[arg-type]
    with pytest.raises(AnnotationError, match="damaged"):
        Annotation.load(path)


def test_what_is_no_split_is_refused(tenth: Annotation, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    tenth.save(path)
    stored = _stored(path)
    meta = json.loads(stored["meta"].tobytes())
    broken = {
        "twice": {**stored, "labelled": np.zeros_like(stored["labelled"])},
        "ends": {**stored, "labelled_ends": stored["labelled_ends"][::-1]},
        "kind": {**stored, "unlabelled": stored["unlabelled"].astype(np.int32)},
        "missing": {name: array for name, array in stored.items() if name != "unlabelled"},
        "version": {**stored, "meta": np.frombuffer(json.dumps({**meta, "format": 2}).encode(), np.uint8)},
        "setting": {**stored, "meta": np.frombuffer(b'{"format": 1, "digest": "x"}', np.uint8)},
        "list": {**stored, "meta": np.frombuffer(b"[1]", np.uint8)},
    }
    for name, arrays in broken.items():
        np.savez(path, **arrays)  # type: ignore[arg-type]
        with pytest.raises(AnnotationError, match="not an annotation split"):
            Annotation.load(path)
        assert name
    path.write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(AnnotationError, match="not an annotation split"):
        Annotation.load(path)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(30, 400),
    st.integers(1, 6),
    st.tuples(*[st.integers(0, 4)] * 3),
    st.floats(0.05, 1.0),
    st.floats(0.01, 10.0),
    st.integers(0, 2**32),
)
def test_any_mixture_is_exact_or_refused(
    samples: int, classes: int, kinds: tuple[int, int, int], share: float, alpha: float, seed: int
) -> None:
    y = np.random.default_rng(seed).integers(0, classes, samples)
    try:
        split = annotate(
            y, clients=sum(kinds), setting="{}/{}/{}".format(*kinds), share=share, alpha=alpha, seed=seed
        )
    except AnnotationError:
        return
    found = counts(split)
    assert sum(labelled for labelled, _ in found) == round(share * samples)
    assert sum(map(sum, found)) == samples
    assert [b == 0 for _, b in found] == [True] * kinds[0] + [False] * (kinds[1] + kinds[2])
    assert [a == 0 for a, _ in found] == [False] * (kinds[0] + kinds[1]) + [True] * kinds[2]
