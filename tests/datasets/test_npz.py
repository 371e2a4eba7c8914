"""NumPy archives: what is read, and what is refused before it can do harm."""

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbac_edge.datasets.samples import DataError, Samples
from fedbac_edge.datasets.sources import load

PIXELS = np.random.default_rng(5).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def write(path: Path, **arrays: object) -> Path:
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return path


def read(path: Path, *, allow_unlabelled: bool = False, channels: int = 3) -> Samples:
    shape = (channels, 8, 8)
    return load(path, classes=["a", "b", "c"], input_shape=shape, allow_unlabelled=allow_unlabelled)


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def forged(path: Path, x: bytes, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", npy(LABELS))
    return path


def lying_header(description: str) -> bytes:
    text = description.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def test_uint8_comes_back_as_it_was(tmp_path: Path) -> None:
    for kind in (np.uint8, np.int16, np.int64, np.uint64):
        samples = read(write(tmp_path / "data.npz", x=PIXELS, y=LABELS.astype(kind)))
        assert np.array_equal(samples.x, PIXELS)
        assert samples.y.dtype == np.int64
        assert samples.y.tolist() == LABELS.tolist()


def test_float32_of_8_bit_images_is_exact(tmp_path: Path) -> None:
    scaled = PIXELS.astype(np.float32) / np.float32(255)
    for values in (scaled, scaled.astype(">f4"), np.asfortranarray(scaled)):
        samples = read(write(tmp_path / "data.npz", x=values, y=LABELS))
        assert samples.x.dtype == np.uint8
        assert np.array_equal(samples.x, PIXELS)
        assert samples.x.flags.c_contiguous


def test_gray_images_may_lack_the_channel_axis(tmp_path: Path) -> None:
    samples = read(write(tmp_path / "data.npz", x=PIXELS[..., 0], y=LABELS), channels=1)
    assert np.array_equal(samples.x, PIXELS[..., :1])


def test_unlabelled_samples_only_where_allowed(tmp_path: Path) -> None:
    marked = write(tmp_path / "marked.npz", x=PIXELS, y=np.array([0, 1, -1, -1, 2, 0]))
    bare = write(tmp_path / "bare.npz", x=PIXELS)
    with pytest.raises(DataError, match=r"sample 2 has no label \(-1\)"):
        read(marked)
    with pytest.raises(DataError, match=r"no array 'y'; it holds x\.npy"):
        read(bare)
    assert len(read(marked, allow_unlabelled=True).labelled()) == 4
    assert read(bare, allow_unlabelled=True).y.tolist() == [-1] * 6


def test_objects_are_refused_and_never_unpickled(tmp_path: Path) -> None:
    objects = np.array([PIXELS[0], None], dtype=object)
    path = tmp_path / "data.npz"
    np.savez(path, x=objects, y=LABELS)
    with pytest.raises(DataError, match="an array of Python objects, which would have to be unpickled"):
        read(path)


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (PIXELS.astype(np.float64) / 255, LABELS, "values of type float64, expected uint8"),
        (PIXELS.astype(np.int32), LABELS, "values of type int32"),
        (PIXELS.astype(np.float32), LABELS, r"from 0 to 255, expected 0 to 1"),
        (np.where(PIXELS > 9, np.float32(0.5), np.float32("nan")), LABELS, "holds a NaN or an infinity"),
        (PIXELS.astype(np.float32) / 255 - 1, LABELS, "expected 0 to 1"),
        (PIXELS[0, 0], LABELS, r"the shape \(8, 3\), expected \(samples, height, width, channels\)"),
        (PIXELS.transpose(0, 3, 1, 2), LABELS, r"Channels come last: try x.transpose\(0, 2, 3, 1\)"),
        (PIXELS[:, :, :, :1], LABELS, r"images with 1 channel\(s\), the federation's have 3"),
        (PIXELS[:, 1:], LABELS, "images of 8x7 pixels"),
        (PIXELS[:5], LABELS, "x holds 5 images, y 6 labels"),
        (PIXELS[:0], LABELS[:0], "no samples in it"),
        (PIXELS, LABELS.astype(np.float64), "labels of type float64, expected integers"),
        (PIXELS, LABELS == 1, "labels of type bool, expected integers|values of type bool"),
        (PIXELS, LABELS[:, None], r"Try y.ravel\(\)"),
        (PIXELS, LABELS + 1, "sample 2 has the label 3, the federation's 3 classes are 0 to 2"),
        (PIXELS, LABELS - 2, "sample 0 has the label -2"),
        (PIXELS, np.full(6, 2**64 - 1, dtype=np.uint64), "the label 18446744073709551615"),
        (PIXELS, np.array(["cat"] * 6), "values of type <U3, expected numbers"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, x: object, y: object, said: str) -> None:
    path = write(tmp_path / "data.npz", x=x, y=y)
    with pytest.raises(DataError, match=said) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert caught.value.remedy


def test_a_header_that_promises_too_much_is_refused_before_allocation(tmp_path: Path) -> None:
    description = "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000, 28, 28, 1)}"
    path = forged(tmp_path / "data.npz", lying_header(description) + bytes(1000))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"promises uint8 \(1000000000, 28, 28, 1\)"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 8, 8, 3)}", "negative size"),
        ("{'descr': '|u1', 'fortran_order': False}", "cannot be read"),
        ("{'descr': [('a', '|u1')], 'fortran_order': False, 'shape': (8,)}", "expected numbers"),
        ("{'descr': '|V0', 'fortran_order': False, 'shape': (8,)}", "cannot be read|expected numbers"),
        ("__import__('os').getcwd()", "cannot be read"),
    ],
)
def test_damaged_headers_are_refused(tmp_path: Path, description: str, said: str) -> None:
    path = forged(tmp_path / "data.npz", lying_header(description) + bytes(8))
    with pytest.raises(DataError, match=said):
        read(path)


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """The member is far longer than its own header says; the archive's directory was forged to agree."""
    genuine = npy(np.zeros((1, 8, 8, 3), dtype=np.uint8))
    path = forged(tmp_path / "data.npz", genuine + bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"192 bytes, but the archive holds 67,109,056"):
        read(path)
    content = path.read_bytes().replace(
        struct.pack("<I", len(genuine) + (64 << 20)), struct.pack("<I", len(genuine))
    )
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"not a whole \.npz archive: .*CRC"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_header_and_directory_that_lie_together_are_refused(tmp_path: Path, method: int) -> None:
    """Both promise 800 MB and 800 MB of compressed bytes, in a file of some hundred bytes."""
    header = lying_header("{'descr': '|u1', 'fortran_order': False, 'shape': (781250, 32, 32, 1)}")
    path = forged(tmp_path / "data.npz", header + bytes(9), method)
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("x.npy")
    true = struct.pack("<II", member.compress_size, member.file_size)
    lie = struct.pack("<II", 800_000_000 + len(header), 800_000_000 + len(header))
    content = path.read_bytes()
    assert content.count(true) == 2
    path.write_bytes(content.replace(true, lie))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"compressed bytes cannot hold|longer than the file"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


def test_other_compression_truncation_and_other_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a method that numpy does not write"):
        read(forged(tmp_path / "bz2.npz", npy(PIXELS), zipfile.ZIP_BZIP2))
    whole = write(tmp_path / "whole.npz", x=PIXELS, y=LABELS).read_bytes()
    (tmp_path / "short.npz").write_bytes(whole[:-30])
    with pytest.raises(DataError, match=r"not a whole \.npz archive"):
        read(tmp_path / "short.npz")
    with pytest.raises(DataError, match=r"no array 'x'; it holds x_train.npy, y_train.npy") as caught:
        read(write(tmp_path / "keras.npz", x_train=PIXELS, y_train=LABELS))
    assert "numpy.savez_compressed" in str(caught.value)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_archives_give_the_same_samples_or_a_data_error(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(write(tmp_path / "whole.npz", x=PIXELS[:2], y=LABELS[:2]).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.npz"
    path.write_bytes(
        bytes(whole[: data.draw(st.integers(1, len(whole)))] if data.draw(st.booleans()) else whole)
    )
    try:
        samples = read(path)
    except DataError:
        return
    assert np.array_equal(samples.x, PIXELS[:2])
    assert np.array_equal(samples.y, LABELS[:2])
