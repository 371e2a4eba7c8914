"""Whatever a person points at: the right reader, or a sentence that says what to do."""

import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbac_edge.datasets.labels import align, listing
from fedbac_edge.datasets.samples import DataError, Samples
from fedbac_edge.datasets.sources import check, load


def refusal(path: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        load(path, classes=["a", "b"], input_shape=(1, 4, 4))
    return caught.value


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("data.csv", b"1,2,3", "a kind of file that is not known here"),
        ("data.npz", b"", "an empty file"),
        ("cat.jpg", b"\xff\xd8", "a single picture"),
    ],
)
def test_files_of_no_use(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    error = refusal(path)
    assert error.what == said
    assert error.where == str(path)
    assert "--data photos/" in error.remedy


def test_missing_paths_and_special_files(tmp_path: Path) -> None:
    error = refusal(tmp_path / "phoots")
    assert error.what == "there is no such file or folder"
    assert "train-images-idx3-ubyte.gz" in error.remedy
    os.mkfifo(tmp_path / "pipe.npz")
    assert refusal(tmp_path / "pipe.npz").what == "neither a file nor a folder"


def test_a_folder_around_an_npz_names_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((1, 4, 4), dtype=np.uint8), y=np.zeros(1, dtype=np.int64))
    assert refusal(tmp_path).remedy.endswith(f"--data {tmp_path / 'data.npz'}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(b"x")
    path.chmod(0)
    assert "Permission denied" in refusal(path).what


def test_a_path_too_long_for_the_system_is_an_error_with_a_sentence(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / ("x" * 5000)).what


def test_check_names_wrong_arrays() -> None:
    x, y = np.zeros((2, 4, 4, 1), dtype=np.uint8), np.zeros(2, dtype=np.int64)
    check(Samples(x, y), ["a"], (1, 4, 4), "here")
    with pytest.raises(DataError, match=r"here: x is float64"):
        check(Samples(x.astype(np.float64), y), ["a"], (1, 4, 4), "here")
    with pytest.raises(DataError, match=r"2 images, but 1 labels"):
        check(Samples(x, y[:1]), ["a"], (1, 4, 4), "here")


def test_bare_numbers_as_classes_take_the_files_numbers() -> None:
    y = np.array([2, 0, 1])
    assert align(y, ["x", "y", "z"], ["0", "1", "2"], "here").tolist() == [2, 0, 1]
    assert align(y, ["x", "y", "z"], ["z", "y", "x"], "here").tolist() == [0, 2, 1]
    with pytest.raises(DataError, match="label 2 has no name"):
        align(y, ["x", "y"], ["x", "y"], "here")


def test_a_long_class_list_is_shortened() -> None:
    assert listing([str(n) for n in range(100)]).endswith("'19' and 80 more")


def test_errors_survive_the_way_between_processes() -> None:
    error = DataError("photos", "no pictures in it", "Add some")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "photos: no pictures in it. Add some"
    assert again.remedy == "Add some"


NAMES = ("a.npz", "a.mat", "a.tar.gz", "a.tar", "images-idx3-ubyte", "images-idx3-ubyte.gz")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    name=st.sampled_from(NAMES),
    start=st.sampled_from([b"", b"PK\x03\x04", b"\x1f\x8b\x08", b"\0\0\x08\x03", b"MATLAB 5.0 MAT-file"]),
    tail=st.binary(min_size=1, max_size=700),
)
def test_random_files_of_every_kind_give_only_data_errors(
    tmp_path: Path, name: str, start: bytes, tail: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(start + tail)
    refused = refusal(path)
    assert refused.what
    assert refused.remedy


def test_a_large_float_file_is_read_without_a_second_float_copy(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.full((40_000, 8, 8, 1), 0.2, dtype=np.float32), y=np.zeros(40_000, dtype=np.int64))
    tracemalloc.start()
    samples = load(path, classes=["a"], input_shape=(1, 8, 8))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert set(np.unique(samples.x).tolist()) == {51}
    assert peak < 40_000 * 64 * (4 + 1) + (2 << 20)
