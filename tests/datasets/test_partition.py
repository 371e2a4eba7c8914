"""The two-level Dirichlet partition."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbac_edge.datasets.partition import Form, Partition, PartitionError, TinyServer, dirichlet
from fedbac_edge.randomness import generator

# As many and as balanced as Fashion-MNIST.
TRAIN, TEST = np.repeat(np.arange(10), 6000), np.repeat(np.arange(10), 1000)
FORMS: tuple[Form, ...] = ("per-server", "per-class", "planted")


def cut(form: Form = "per-server", **changes: Any) -> Partition:
    given: dict[str, Any] = {
        "servers": 10,
        "clients": 10,
        "alpha_server": 0.5,
        "alpha_client": 0.5,
        "seed": 42,
        "form": form,
        "groups": 4 if form == "planted" else None,
    }
    return dirichlet(TRAIN, TEST, **{**given, **changes})


def histogram(labels: Any, owners: Any) -> Any:
    """counts[class, owner]."""
    return np.stack([np.bincount(labels[indices], minlength=10) for indices in owners], axis=1)


def plausible(counts: Any, shares: Any) -> bool:
    """Pearson's statistic of multinomial rows, five sigma wide, over cells that expect at least 5."""
    expected = counts.sum(axis=1, keepdims=True) * shares
    cells = expected >= 5
    statistic = ((counts - expected) ** 2)[cells] / expected[cells]
    return bool(statistic.sum() < cells.sum() + 5 * np.sqrt(2 * cells.sum()))


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 4), max_size=60),
    st.lists(st.integers(0, 4), max_size=30),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([1e-4, 0.1, 0.5, 100.0]),
    st.sampled_from(FORMS),
    st.integers(0, 2**40),
)
def test_every_sample_has_exactly_one_owner(
    train: list[int], test: list[int], servers: int, clients: int, alpha: float, form: Form, seed: int
) -> None:
    partition = dirichlet(
        train,
        test,
        servers=servers,
        clients=clients,
        alpha_server=alpha,
        alpha_client=alpha,
        seed=seed,
        form=form,
        groups=servers if form == "planted" else None,
        classes=5,
        allow_tiny=True,
    )
    owned = sorted(int(i) for server in partition.train for client in server for i in client)
    assert owned == list(range(len(train)))
    assert sorted(int(i) for server in partition.test for i in server) == list(range(len(test)))
    assert [len(server) for server in partition.train] == [clients] * servers
    for shares in (partition.server_shares, *partition.client_shares):
        np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert partition.server_shares.shape == (5, servers)


def test_per_server_shares_by_the_formula() -> None:
    """p_c(m) = q_m(c) / sum over servers of q(c), in plain loops over the same draws."""
    rng = generator(42, "partition", "servers")
    q = [rng.dirichlet([0.5] * 10) for _ in range(10)]
    shares = cut("per-server").server_shares
    for c in range(10):
        for m in range(10):
            assert shares[c, m] == pytest.approx(q[m][c] / sum(q[o][c] for o in range(10)), rel=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_each_servers_clients_are_cut_the_same_way_by_a_generator_of_their_own(form: Form) -> None:
    partition = cut(form, alpha_client=0.7, clients=4)
    for server in (0, 9):
        rng = generator(42, "partition", "clients", server)
        if form == "per-class":
            expected: Any = [rng.dirichlet([0.7] * 4) for _ in range(10)]
        else:
            q = [rng.dirichlet([0.7] * 10) for _ in range(4)]
            expected = [[q[i][c] / sum(q[o][c] for o in range(4)) for i in range(4)] for c in range(10)]
        np.testing.assert_allclose(partition.client_shares[server], expected, rtol=1e-12)


def many_classes(form: Form, alpha: float) -> Any:
    """The shares of 5 servers in 4000 classes: p_c is a sample of 4000."""
    return dirichlet(
        [0],
        [0],
        servers=5,
        clients=1,
        alpha_server=alpha,
        alpha_client=1.0,
        seed=3,
        form=form,
        classes=4000,
        allow_tiny=True,
    ).server_shares


@pytest.mark.parametrize("alpha", [0.1, 0.5, 2.0])
def test_per_class_shares_have_the_moments_of_a_dirichlet(alpha: float) -> None:
    """p_c(m) ~ Beta(alpha, 4 alpha): mean 1/5, variance (1/5)(4/5) / (5 alpha + 1)."""
    shares = many_classes("per-class", alpha)
    variance = 0.16 / (5 * alpha + 1)
    np.testing.assert_allclose(shares.mean(axis=0), 0.2, atol=5 * np.sqrt(variance / 4000))
    np.testing.assert_allclose(shares.var(axis=0), variance, rtol=0.15)


def test_per_server_shares_are_a_dirichlet_over_servers_too_when_classes_are_many() -> None:
    """With C large q_m(c) is nearly Gamma(alpha) independent of the others, so p_c ~ Dir(alpha * 1_M)."""
    shares = many_classes("per-server", 0.5)
    np.testing.assert_allclose(shares.mean(axis=0), 0.2, atol=0.02)
    np.testing.assert_allclose(shares.var(axis=0), 0.16 / 3.5, rtol=0.15)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_training_and_test_counts_follow_the_same_stored_shares(form: Form, alpha: float) -> None:
    partition = cut(form, alpha_server=alpha, allow_tiny=True)
    of_server = [np.concatenate(clients) for clients in partition.train]
    counts, test_counts = histogram(TRAIN, of_server), histogram(TEST, partition.test)
    assert plausible(counts, partition.server_shares)
    assert plausible(test_counts, partition.server_shares)
    # The trap: shares drawn anew, even for the same settings, do not describe these counts.
    stranger = cut(form, alpha_server=alpha, seed=43, allow_tiny=True).server_shares
    assert not plausible(test_counts, stranger)
    for server, clients in enumerate(partition.train):
        assert plausible(histogram(TRAIN, clients), partition.client_shares[server])


def test_a_class_is_shuffled_before_it_is_cut() -> None:
    """Without it the first server would own the first samples of every class."""
    owners = np.empty(60_000, int)
    for server, clients in enumerate(cut().train):
        owners[np.concatenate(clients)] = server
    first_class = owners[:6000]
    changes = np.count_nonzero(np.diff(first_class))
    assert changes > 1000


def test_the_forms_leave_the_smallest_server_what_they_are_known_for() -> None:
    """At alpha 0.1 about 5 % of the data (per-server) and 1 % (per-class), in the median of ten seeds."""

    def smallest(form: Form) -> float:
        sizes = [
            min(sum(map(len, clients)) for clients in partition.train) / 60_000
            for partition in (cut(form, alpha_server=0.1, seed=s, allow_tiny=True) for s in range(10))
        ]
        return float(np.median(sizes))

    assert 0.035 < smallest("per-server") < 0.07
    assert 0.003 < smallest("per-class") < 0.025


def test_servers_of_a_planted_group_share_their_distribution() -> None:
    shares = cut("planted", servers=8).server_shares
    for m in range(8):
        same = [o for o in range(8) if np.array_equal(shares[:, o], shares[:, m])]
        assert same == [m % 4, m % 4 + 4]


def test_the_clients_cut_leaves_the_servers_cut_alone() -> None:
    one, other = cut(), cut(alpha_client=5.0, clients=3)
    for m in range(10):
        np.testing.assert_array_equal(
            np.sort(np.concatenate(one.train[m])), np.sort(np.concatenate(other.train[m]))
        )
        np.testing.assert_array_equal(one.test[m], other.test[m])


def test_clients_may_be_empty() -> None:
    partition = cut(alpha_client=0.01, clients=40)
    assert any(len(client) == 0 for server in partition.train for client in server)


def test_a_tiny_server_is_refused_by_name_unless_allowed() -> None:
    partition = cut("per-class", alpha_server=0.1, seed=3, allow_tiny=True)
    sizes = [len(indices) for indices in partition.test]
    assert min(sizes) < 100
    with pytest.raises(TinyServer) as refusal:
        cut("per-class", alpha_server=0.1, seed=3)
    text = str(refusal.value)
    assert f"server {int(np.argmin(sizes))} (counted from 0) {min(sizes)} test samples" in text
    assert "seed 3" in text
    assert "--allow-tiny" in text
    assert min(len(indices) for indices in cut().test) >= 100


@pytest.mark.parametrize(
    "changes",
    [
        {"servers": 0},
        {"clients": 0},
        {"alpha_server": 0.0},
        {"alpha_client": float("nan")},
        {"alpha_client": float("inf")},
        {"classes": 9},
        {"form": "by-hand"},
        {"groups": 3},
        {"form": "planted", "groups": None},
        {"form": "planted", "groups": 11},
    ],
)
def test_settings_that_give_no_partition_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PartitionError):
        cut(**changes)


@pytest.mark.parametrize("labels", [np.array([0.0, 1.0]), np.array([[0, 1]]), np.array([0, -1])])
def test_labels_that_are_none_are_refused(labels: Any) -> None:
    with pytest.raises(PartitionError, match="labels"):
        dirichlet(labels, TEST, servers=2, clients=2, alpha_server=1.0, alpha_client=1.0, seed=1)


def test_the_digest_tells_partitions_apart_and_equal_ones_together() -> None:
    same = cut().digest
    assert same == cut().digest
    others = [
        cut(seed=43),
        cut("per-class"),
        cut("planted"),
        cut(alpha_server=0.6),
        cut(alpha_client=0.6),
        cut(clients=9),
        cut(servers=9),
        dataclasses.replace(cut(), seed=43),
        dataclasses.replace(cut(), labels="0" * 64),
    ]
    assert len({same, *(other.digest for other in others)}) == len(others) + 1


def test_another_process_cuts_the_same() -> None:
    code = (
        "import numpy as np; from fedbac_edge.datasets.partition import dirichlet;"
        "print(dirichlet(np.repeat(np.arange(10), 6000), np.repeat(np.arange(10), 1000), servers=10,"
        "clients=10, alpha_server=0.5, alpha_client=0.5, seed=42).digest)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "99"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == cut().digest


@pytest.mark.parametrize("form", FORMS)
def test_a_saved_partition_comes_back_whole(form: Form, tmp_path: Path) -> None:
    partition = cut(form, alpha_client=0.01)
    path = tmp_path / "partition.npz"
    path.write_bytes(b"an older file")
    partition.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["partition.npz"]
    loaded = Partition.load(path)
    assert loaded.digest == partition.digest
    assert (loaded.form, loaded.groups, loaded.seed) == (form, partition.groups, 42)
    for one, other in zip(loaded.train, partition.train, strict=True):
        for client, same in zip(one, other, strict=True):
            np.testing.assert_array_equal(client, same)
    for shares, same_shares in zip(loaded.client_shares, partition.client_shares, strict=True):
        np.testing.assert_array_equal(shares, same_shares)
    loaded.check_labels(TRAIN, TEST)


def test_a_partition_is_not_used_with_other_labels() -> None:
    with pytest.raises(PartitionError, match="other labels"):
        cut().check_labels(TRAIN[::-1], TEST)


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    (path / "inside").touch()
    with pytest.raises(OSError):
        cut().save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def saved(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    path = tmp_path / "partition.npz"
    dirichlet(
        np.arange(90) % 3,
        np.arange(30) % 3,
        servers=2,
        clients=2,
        alpha_server=1.0,
        alpha_client=1.0,
        seed=1,
        allow_tiny=True,
    ).save(path)
    with np.load(path, allow_pickle=False) as stored:
        return path, dict(stored)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path, stored = saved(tmp_path)
    flat = stored["train"].copy()
    flat[[0, -1]] = flat[[-1, 0]]
    doubled = stored["train"].copy()
    doubled[0] = doubled[1]
    meta = np.frombuffer(stored["meta"].tobytes().replace(b'"seed": 1', b'"seed": 2'), np.uint8)
    for changed in (
        {"train": flat},
        {"train": doubled},
        {"train": stored["train"][:-1]},
        {"train": stored["train"].astype(np.int32)},
        {"train": stored["train"].astype(object)},
        {"clients": stored["clients"] * 0},
        {"clients": stored["clients"][:0]},
        {"test_ends": stored["test_ends"][::-1].copy()},
        {"client_shares": stored["client_shares"][:, :1]},
        {"server_shares": stored["server_shares"] * 2},
        {"meta": meta},
        {"meta": np.frombuffer(b"5", np.uint8)},
        {"meta": np.frombuffer(b"not json", np.uint8)},
    ):
        np.savez(path, **{**stored, **changed})
        with pytest.raises(PartitionError, match=r"partition\.npz"):
            Partition.load(path)
    np.savez(path, **stored)
    Partition.load(path)


def test_a_header_that_promises_terabytes_is_refused_before_they_are_allocated(tmp_path: Path) -> None:
    path, stored = saved(tmp_path)
    np.savez(path, **stored)
    whole = path.read_bytes()
    # A stored (uncompressed) member: enlarge the shape in its header, and the checksum with it.
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    lie = members["train.npy"].replace(b"'shape': (90,), }       ", b"'shape': (90000000000,), }", 1)
    assert lie != members["train.npy"]
    members["train.npy"] = lie[: len(members["train.npy"])]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert path.read_bytes() != whole
    with pytest.raises(PartitionError, match="train"):
        Partition.load(path)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_bytes_never_give_another_partition(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, _ = saved(Path(folder))
        digest = Partition.load(path).digest
        whole = path.read_bytes()
        position = data.draw(st.integers(0, len(whole) - 1))
        byte = data.draw(st.integers(0, 255))
        end = data.draw(st.sampled_from([len(whole), position]))
        path.write_bytes((whole[:position] + bytes([byte]) + whole[position + 1 :])[:end])
        with contextlib.suppress(PartitionError):
            assert Partition.load(path).digest == digest


def test_a_partition_does_not_change() -> None:
    partition = cut()
    for array in (partition.train[0][0], partition.test[0], partition.server_shares):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        partition.seed = 3  # type: ignore[misc]


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Partition.load(tmp_path / "none.npz")
