"""SVHN's .mat files, made small here."""

from pathlib import Path

import numpy as np
import pytest

from fedbac_edge.datasets.samples import DataError, Samples
from fedbac_edge.datasets.sources import load

savemat = pytest.importorskip("scipy.io").savemat
DIGITS = [str(n) for n in range(10)]
X = np.random.default_rng(7).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
Y = np.array([[1], [10], [9], [10]], dtype=np.uint8)


def read(path: Path, classes: list[str] = DIGITS) -> Samples:
    return load(path, classes=classes, input_shape=(3, 32, 32))


def write(path: Path, **variables: object) -> Path:
    savemat(path, variables, do_compression=True)
    return path


def test_images_come_first_and_ten_is_the_digit_zero(tmp_path: Path) -> None:
    samples = read(write(tmp_path / "train_32x32.mat", X=X, y=Y))
    assert samples.y.tolist() == [1, 0, 9, 0]
    assert samples.x.shape == (4, 32, 32, 3)
    assert np.array_equal(samples.x[2], X[..., 2])
    assert samples.x.flags.c_contiguous


def test_digits_follow_the_federations_names(tmp_path: Path) -> None:
    path = write(tmp_path / "train_32x32.mat", X=X, y=Y)
    assert read(path, ["9", "0", "1"]).y.tolist() == [2, 1, 0, 1]
    with pytest.raises(DataError, match="the class '0' is not one of the federation's: 'one', 'nine'"):
        read(path, ["one", "nine"])


def test_a_folder_gives_the_split_that_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "train_32x32.mat", X=X, y=Y)
    write(tmp_path / "test_32x32.mat", X=X[..., :1], y=Y[:1])
    assert len(read(tmp_path)) == 4
    assert len(load(tmp_path, classes=DIGITS, input_shape=(3, 32, 32), split="test")) == 1


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"X": X}, "no variables X and y; it holds X"),
        ({"X": X.astype(np.float64), "y": Y}, "X is float64"),
        ({"X": X[:, :, 0], "y": Y}, r"X is uint8 \(32, 32, 4\)"),
        ({"X": X, "y": Y[:3]}, r"X holds 4 images, y is \(3, 1\)"),
        ({"X": X, "y": Y + 1}, "the label 11 of image 1 is not between 1 and 10"),
        ({"X": X, "y": np.array([1.5, 1, 1, 1])}, "the label 1.5 of image 0"),
        ({"X": X, "y": np.array([1, np.nan, 1, 1])}, "the label nan of image 1"),
        ({"X": X, "y": "1234"}, "y is"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, variables: dict[str, object], said: str) -> None:
    path = write(tmp_path / "train_32x32.mat", **variables)
    with pytest.raises(DataError, match=said) as caught:
        read(path)
    assert caught.value.where == str(path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole.mat", X=X, y=Y).read_bytes()
    rng = np.random.default_rng(0)
    damaged = [whole[: len(whole) // 2], b"nonsense" * 40, rng.bytes(3000)]
    for number, content in enumerate(damaged):
        path = tmp_path / f"{number}.mat"
        path.write_bytes(content)
        with pytest.raises(DataError) as caught:
            read(path)
        assert caught.value.where == str(path)
    modern = tmp_path / "modern.mat"
    modern.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(400))
    with pytest.raises(DataError, match=r"MATLAB 7.3 \(HDF5\)"):
        read(modern)
