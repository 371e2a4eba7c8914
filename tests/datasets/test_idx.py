"""IDX files: real ones, and ones that lie."""

import gzip
import io
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbac_edge.datasets import idx
from fedbac_edge.datasets.samples import DataError
from fedbac_edge.datasets.sources import load

FASHION = Path("/usr/share/datasets/fashion-mnist")
CLASSES = [str(n) for n in range(10)]
GRAY = (1, 28, 28)
fashion = pytest.mark.skipif(not FASHION.is_dir(), reason="Fashion-MNIST is not installed")


def header(*shape: int, kind: int = 8) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, kind, len(shape), *shape)


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        idx.read_array(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@fashion
def test_fashion_mnist_folder_gives_its_training_pair_by_default() -> None:
    samples = load(FASHION, classes=CLASSES, input_shape=GRAY)
    assert samples.x.shape == (60_000, 28, 28, 1)
    assert samples.x.dtype == np.uint8
    assert samples.y.dtype == np.int64
    assert np.bincount(samples.y).tolist() == [6_000] * 10
    assert samples.x.flags.writeable
    assert samples.x.flags.c_contiguous


@fashion
def test_fashion_mnist_test_split_and_single_file_agree() -> None:
    by_split = load(FASHION, classes=CLASSES, input_shape=GRAY, split="test")
    by_file = load(FASHION / "t10k-images-idx3-ubyte.gz", classes=CLASSES, input_shape=GRAY)
    assert len(by_split) == 10_000
    assert np.array_equal(by_split.x, by_file.x)
    assert np.array_equal(by_split.y, by_file.y)


@fashion
def test_plain_and_compressed_files_give_the_same(tmp_path: Path) -> None:
    for name in ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (tmp_path / name).write_bytes(gzip.decompress((FASHION / f"{name}.gz").read_bytes()))
    plain = load(tmp_path, classes=CLASSES, input_shape=GRAY)
    packed = load(FASHION, classes=CLASSES, input_shape=GRAY, split="test")
    assert np.array_equal(plain.x, packed.x)
    assert np.array_equal(plain.y, packed.y)


def test_values_and_order_of_a_small_pair(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "images-idx3-ubyte").write_bytes(header(2, 3, 4) + pixels.tobytes())
    (tmp_path / "labels-idx1-ubyte.gz").write_bytes(gzip.compress(header(2) + bytes([1, 0])))
    samples = load(tmp_path, classes=["a", "b"], input_shape=(1, 3, 4))
    assert np.array_equal(samples.x[..., 0], pixels)
    assert samples.y.tolist() == [1, 0]


def test_header_larger_than_a_plain_file_is_refused_before_allocation(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(header(60_000, 28, 28) + bytes(100))
    tracemalloc.start()
    message = refusal(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "cut off" in message
    assert "47,040,016 bytes, the file has 116" in message
    assert peak < 1_000_000


def test_trailing_bytes_are_refused(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a-idx1", tmp_path / "a-idx1.gz"
    plain.write_bytes(header(3) + bytes(4))
    packed.write_bytes(gzip.compress(header(3) + bytes(4)))
    assert "too long" in refusal(plain)
    assert "more bytes follow the (3,) values" in refusal(packed)


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(header(1, 28, 28) + bytes(64 << 20), compresslevel=1))
    tracemalloc.start()
    message = refusal(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "more bytes follow" in message
    assert peak < 2_000_000


def test_a_compressed_header_that_promises_the_impossible_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(header(2**32 - 1, 2**16, 2**16)))
    assert "compressed bytes cannot hold" in refusal(path)


def test_more_than_the_memory_bound_is_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 6 << 20, dtype=np.uint8).tobytes()
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(header(5, 2**15, 2**15) + noise, compresslevel=0))
    assert "more than the" in refusal(path)
    assert "5,368,709,120 bytes of memory" in refusal(path)


def test_truncated_gzip_and_damaged_gzip_are_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, 4096, dtype=np.uint8).tobytes()
    whole = gzip.compress(header(4096) + noise)
    short, damaged = tmp_path / "short-idx1.gz", tmp_path / "damaged-idx1.gz"
    short.write_bytes(whole[:2000])
    damaged.write_bytes(whole[:-8] + b"\0\0\0\0" + whole[-4:])
    assert "cut off" in refusal(short)
    assert "cannot be decompressed" in refusal(damaged)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "begins with nothing"),
        (b"\x89PNG\r\n", "not an IDX file: it begins with 89504e47"),
        (header(4, kind=0x0D) + bytes(16), "type 0x0d"),
        (b"\0\0\x08\x00", "0 dimensions"),
        (header(1, 1, 1, 1) + bytes(1), "4 dimensions"),
        (b"\0\0\x08\x03\0\0\0\x01", "inside its IDX header"),
    ],
)
def test_what_is_not_idx_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    assert said in refusal(path)


def test_labels_and_images_are_not_confused(tmp_path: Path) -> None:
    (tmp_path / "labels-idx1-ubyte").write_bytes(header(2) + bytes(2))
    with pytest.raises(DataError, match="it holds labels, not images") as caught:
        load(tmp_path / "labels-idx1-ubyte", classes=["a"], input_shape=(1, 2, 2))
    assert "--data train-images-idx3-ubyte.gz" in str(caught.value)


def test_lengths_must_agree_and_labels_must_be_there(tmp_path: Path) -> None:
    images = tmp_path / "train-images-idx3-ubyte"
    images.write_bytes(header(2, 2, 2) + bytes(8))
    with pytest.raises(DataError, match="train-labels-idx1-ubyte is missing"):
        load(images, classes=["a"], input_shape=(1, 2, 2))
    unlabelled = load(images, classes=["a"], input_shape=(1, 2, 2), allow_unlabelled=True)
    assert unlabelled.y.tolist() == [-1, -1]
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(header(3) + bytes(3))
    with pytest.raises(DataError, match=r"2 images, but 3 labels in train-labels-idx1-ubyte"):
        load(images, classes=["a"], input_shape=(1, 2, 2))


def test_training_images_never_pass_for_a_test_set(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(header(1, 2, 2) + bytes(4))
    with pytest.raises(DataError, match="no IDX test images"):
        load(tmp_path, classes=["a"], input_shape=(1, 2, 2), split="test")


@given(st.binary(max_size=64), st.booleans(), st.integers(0, 3))
def test_random_bytes_give_an_array_or_a_data_error(tail: bytes, compressed: bool, plausible: int) -> None:
    """Whole noise, and noise behind ever more of a valid start."""
    content = (b"", b"\0\0\x08", b"\0\0\x08\x01\0\0\0", b"\0\0\x08\x03\0\0\0\x01\0\0\0\x02\0\0\0\x02")[
        plausible
    ]
    data = content + tail
    try:
        array = idx.decode(io.BytesIO(data), len(data), "noise", compressed=compressed)
    except DataError:
        return
    assert array.size == len(data) - 4 - 4 * array.ndim


@given(st.binary(min_size=1, max_size=40), st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_in_a_gzip_never_gives_other_pixels(pixels: bytes, where: int, change: int) -> None:
    whole = bytearray(gzip.compress(header(len(pixels)) + pixels, mtime=0))
    whole[where % len(whole)] ^= change
    try:
        stream = gzip.GzipFile(fileobj=io.BytesIO(bytes(whole)))
        array = idx.decode(stream, len(whole), "flipped", compressed=True)  # type: ignore[arg-type]
    except DataError:
        return
    assert array.tobytes() == pixels  # only the fields that gzip itself ignores: time, system, ...
