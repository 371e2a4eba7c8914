"""A hint that is followed to the letter leads to the right data, never to black pictures or wrong labels."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from fedbac_edge.datasets.samples import DataError, Samples
from fedbac_edge.datasets.sources import load

Array = npt.NDArray[np.generic]
PIXELS = np.random.default_rng(5).integers(0, 256, (6, 8, 10, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 2, 1, 0])


def read(folder: Path, x: Array, y: Array) -> Samples:
    np.savez(folder / "data.npz", x=x, y=y)
    return load(folder / "data.npz", classes=["a", "b", "c"], input_shape=(3, 8, 10))


FOLLOWED = {
    "float64 from 0 to 1": (PIXELS / 255, LABELS),
    "float16 from 0 to 1": ((PIXELS / 255).astype(np.float16), LABELS),
    "float64 from 0 to 255": (PIXELS.astype(np.float64), LABELS),
    "float32 from 0 to 255, not quite whole": (
        PIXELS.astype(np.float32) + np.float32(1e-4) * (PIXELS < 255),
        LABELS,
    ),
    "float32 just below whole": (PIXELS.astype(np.float32) - np.float32(1e-4) * (PIXELS > 0), LABELS),
    "int64": (PIXELS.astype(np.int64), LABELS),
    "channels first": (PIXELS.transpose(0, 3, 1, 2), LABELS),
    "one-hot": (PIXELS, np.eye(3)[LABELS]),
    "one-hot, whole numbers": (PIXELS, np.eye(3, dtype=np.int64)[LABELS]),
    "a column": (PIXELS, LABELS[:, None]),
    "a column of floats": (PIXELS, LABELS[:, None].astype(np.float32)),
    "whole floats": (PIXELS, LABELS.astype(np.float64)),
}


@pytest.mark.parametrize("case", FOLLOWED)
def test_following_the_hints_leads_to_the_data(tmp_path: Path, case: str) -> None:
    arrays = dict(zip("xy", FOLLOWED[case], strict=True))
    for _ in range(3):
        try:
            samples = read(tmp_path, arrays["x"], arrays["y"])
            break
        except DataError as error:
            hint = re.search(r"[Tt]ry ((?:numpy\.rint\()?([xy])\b.*)", error.remedy)
            if hint is None:
                pytest.fail(f"no hint: {error}")
            expression = re.split(r": ", hint[1])[0]
            arrays[hint[2]] = eval(expression, {"numpy": np, **arrays})
    assert np.abs(samples.x.astype(int) - PIXELS).max() <= (1 if arrays["x"].dtype == np.float16 else 0)
    assert samples.y.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (PIXELS / 127.5 - 1, LABELS),
        ((PIXELS / 127.5 - 1).astype(np.float32), LABELS),
        (PIXELS.astype(np.int32) - 128, LABELS),
        (PIXELS.astype(np.uint16) * 257, LABELS),
        (PIXELS.astype(np.int64) // 128, LABELS),  # black and white as 0 and 1
        (PIXELS, LABELS / 2),
        (PIXELS, np.where(LABELS == 1, np.nan, LABELS)),
        (PIXELS, np.stack([LABELS, LABELS], axis=1)),
        (PIXELS, np.array([[0.5, 0.5, 0.0]] * 6)),
        (PIXELS, np.zeros((6, 3))),
    ],
)
def test_no_hint_where_none_is_right(tmp_path: Path, x: Array, y: Array) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, x, y)
    assert "try" not in caught.value.remedy.lower()
    assert "astype" not in caught.value.remedy


def test_a_folder_is_not_renamed_into_another(tmp_path: Path) -> None:
    """`mv Cat cat` puts the one into the other where both are there."""
    for name in ("Cat", "cat"):
        (tmp_path / name).mkdir()
        Image.new("L", (20, 20)).save(tmp_path / name / "1.png")
    with pytest.raises(DataError) as caught:
        load(tmp_path, classes=["cat", "dog"], input_shape=(1, 20, 20))
    assert caught.value.remedy == "Move its pictures into 'cat', which is there already"


def test_nobody_is_told_to_remove_a_picture_first(tmp_path: Path) -> None:
    """A damaged picture may be the only copy."""
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(DataError) as caught:
        load(tmp_path, classes=["cat", "dog"], input_shape=(1, 20, 20))
    assert not re.search(r"(?i)remove|delete", caught.value.remedy)
