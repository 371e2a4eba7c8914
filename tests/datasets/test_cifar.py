"""CIFAR-10's binary version: the real archive, and small folders and archives made here."""

import gzip
import io
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fedbac_edge.datasets import cifar
from fedbac_edge.datasets.samples import DataError, Samples
from fedbac_edge.datasets.sources import Split, load

ARCHIVE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "cifar-10-binary.tar.gz"
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FOLDER = "cifar-10-batches-bin"


def records(labels: list[int], seed: int = 0) -> bytes:
    planes = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return np.concatenate([np.array(labels, dtype=np.uint8)[:, None], planes], axis=1).tobytes()


def contents() -> dict[str, bytes]:
    return {
        "test_batch.bin": records([9], seed=2),
        "data_batch_2.bin": records([2, 1], seed=1),
        "batches.meta.txt": ("\n".join(NAMES) + "\n\n").encode(),
        "data_batch_1.bin": records([0, 3, 3], seed=0),
    }


def unpacked(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def packed(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(f"{FOLDER}/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def read(path: Path, classes: list[str] = NAMES, split: Split = "train") -> Samples:
    return load(path, classes=classes, input_shape=(3, 32, 32), split=split)


@pytest.mark.skipif(not ARCHIVE.is_file(), reason="the CIFAR-10 archive is not beside the checkout")
def test_the_real_archive() -> None:
    samples = read(ARCHIVE, split="test")
    assert samples.x.shape == (10_000, 32, 32, 3)
    assert np.bincount(samples.y).tolist() == [1_000] * 10
    # Neighbouring pixels of photographs resemble each other; wrongly cut planes or rows would not.
    pixels = samples.x[:500].astype(np.float64)
    for axis in (1, 2):
        assert np.abs(np.diff(pixels, axis=axis)).mean() < 20
    ship, deer = (samples.x[samples.y == NAMES.index(name)].mean(axis=(0, 1, 2)) for name in ("ship", "deer"))
    assert ship[2] > ship[0]  # the sea is blue
    assert deer[2] < deer[1]  # a meadow is not


def test_folder_its_parent_and_archive_agree(tmp_path: Path) -> None:
    files = contents()
    inside = read(unpacked(tmp_path / FOLDER, files))
    around = read(tmp_path)
    archive = read(packed(tmp_path / "cifar.tar.gz", files))
    for samples in (inside, around, archive):
        assert samples.y.tolist() == [0, 3, 3, 2, 1]  # batch 1 before batch 2, whatever the archive's order
        assert np.array_equal(samples.x, inside.x)
    raw = np.frombuffer(files["data_batch_1.bin"], dtype=np.uint8)
    assert inside.x[0, 0, 5].tolist() == [raw[1 + 5], raw[1 + 1024 + 5], raw[1 + 2048 + 5]]
    assert inside.x[0, 7, 0, 2] == raw[1 + 2048 + 7 * 32]
    assert read(tmp_path / "cifar.tar.gz", split="test").y.tolist() == [9]


def test_labels_follow_the_federations_names_not_the_files_numbers(tmp_path: Path) -> None:
    folder = unpacked(tmp_path / FOLDER, contents())
    assert read(folder, ["cat", "bird", "automobile", "airplane"]).y.tolist() == [3, 0, 0, 1, 2]
    assert read(folder, [str(n) for n in range(10)]).y.tolist() == [0, 3, 3, 2, 1]
    with pytest.raises(
        DataError, match="the class 'automobile' is not one of the federation's: 'airplane', 'b"
    ):
        read(folder, ["airplane", "bird", "cat"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data_batch_1.bin": records([1])[:-1]}, "3,072 bytes are no whole number of 3073-byte records"),
        ({"data_batch_1.bin": b""}, "0 bytes are no whole number"),
        (
            {"data_batch_1.bin": records([1, 10])},
            "record 1 has the label 10, batches.meta.txt names 10 classes",
        ),
        ({"batches.meta.txt": b"x" * 5000}, "too long for a list of class names"),
    ],
)
def test_damaged_batches_are_named_in_folder_and_archive(
    tmp_path: Path, change: dict[str, bytes], said: str
) -> None:
    files = contents() | change
    for path in (unpacked(tmp_path / FOLDER, files), packed(tmp_path / "cifar.tar.gz", files)):
        with pytest.raises(DataError, match=said) as caught:
            read(path)
        assert next(iter(change)) in caught.value.where


def test_missing_files_are_named(tmp_path: Path) -> None:
    files = contents()
    with pytest.raises(DataError, match=r"no batches.meta.txt"):
        read(packed(tmp_path / "a.tar.gz", {"data_batch_1.bin": files["data_batch_1.bin"]}))
    with pytest.raises(DataError, match=r"none of data_batch_1.bin"):
        read(packed(tmp_path / "b.tar.gz", {"batches.meta.txt": files["batches.meta.txt"]}))


FINE = [f"class{n:03}" for n in range(100)]


def hundred() -> dict[str, bytes]:
    """CIFAR-100's files: a byte for one of 20 groups, a byte for the class, the planes."""
    rng = np.random.default_rng(4)
    files = {"fine_label_names.txt": "\n".join(FINE).encode(), "coarse_label_names.txt": b"group\n" * 20}
    for name, labels in (("train.bin", [[19, 99], [0, 42], [3, 0]]), ("test.bin", [[7, 50]])):
        planes = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        files[name] = np.concatenate([np.array(labels, dtype=np.uint8), planes], axis=1).tobytes()
    return files


def test_cifar_100_has_a_second_label_byte_and_names_of_its_own(tmp_path: Path) -> None:
    files = hundred()
    folder = unpacked(tmp_path / "cifar-100-binary", files)
    for path in (folder, tmp_path, packed(tmp_path / "cifar-100-binary.tar.gz", files)):
        samples = read(path, FINE)
        assert samples.y.tolist() == [99, 42, 0]
        raw = np.frombuffer(files["train.bin"], dtype=np.uint8)
        assert samples.x[1, 2, 5].tolist() == [
            raw[3074 + 2 + plane * 1024 + 2 * 32 + 5] for plane in range(3)
        ]
        assert read(path, FINE, split="test").y.tolist() == [50]
    assert read(folder, list(reversed(FINE))).y.tolist() == [0, 57, 99]
    with pytest.raises(DataError, match=r"'class000' is not one of the federation's|'class099' is not"):
        read(folder, NAMES)


def test_damaged_cifar_100(tmp_path: Path) -> None:
    files = hundred()
    with pytest.raises(DataError, match="9,221 bytes are no whole number of 3074-byte records"):
        read(unpacked(tmp_path / "cut", files | {"train.bin": files["train.bin"][:-1]}), FINE)
    names = "\n".join(FINE[:50]).encode()
    with pytest.raises(DataError, match=r"record 0 has the label 99, fine_label_names\.txt names 50 classes"):
        read(unpacked(tmp_path / "few", files | {"fine_label_names.txt": names}), FINE)
    del files["train.bin"]
    with pytest.raises(DataError, match=r"none of train\.bin.*cifar-100-binary"):
        read(unpacked(tmp_path / "none", files), FINE)


def test_archives_cut_short_or_of_another_kind(tmp_path: Path) -> None:
    whole = packed(tmp_path / "whole.tar.gz", contents()).read_bytes()
    (tmp_path / "short.tar.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.tar.gz").write_bytes(b"not an archive at all" * 100)
    for name in ("short.tar.gz", "text.tar.gz"):
        with pytest.raises(DataError, match=r"not a whole tar archive|cut off") as caught:
            read(tmp_path / name)
        assert name in caught.value.where


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "secret"
    outside.write_bytes(records([1]))
    path = tmp_path / "linked.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        archive.addfile(link)
        names = tarfile.TarInfo("batches.meta.txt")
        names.size = 4
        archive.addfile(names, io.BytesIO(b"a\nb\n"))
    with pytest.raises(DataError, match=r"none of data_batch_1\.bin"):
        read(path)


def test_one_batch_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.tar"
    with tarfile.open(path, "w") as archive:
        for folder in ("a", "b"):
            info = tarfile.TarInfo(f"{folder}/data_batch_1.bin")
            info.size = 3073
            archive.addfile(info, io.BytesIO(records([1])))
    with pytest.raises(DataError, match="in the archive twice"):
        read(path)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_a_bomb_stops_at_the_bound(tmp_path: Path, kind: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a member that nobody asked for, and as headers that tarfile itself would read into memory."""
    monkeypatch.setattr(cifar, "MAX_ARCHIVE_BYTES", 4 << 20)
    info = tarfile.TarInfo("junk")
    info.size, info.type = 64 << 20, kind
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(info.tobuf() + bytes(64 << 20) + bytes(1024))
    tracemalloc.start()
    with pytest.raises(DataError, match="unpacks to more than 4,194,304 bytes"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20
