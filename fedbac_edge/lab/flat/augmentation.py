"""Views of pictures, weak and strong, for whole batches at once; numpy only.

Pictures are (N, H, W, C) uint8, drawn from a generator, so a view repeats with its seed. `weak` is FixMatch's
flip and shift; `strong` is two operations of RandAugment's list drawn for each picture, then Cutout
(arXiv 2001.07685, appendix D), with geometry as one nearest-pixel gather. Pictures with one channel are not
flipped: their classes (digits, shoes that point one way) are not symmetric.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pictures = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

SHIFT = 0.125
"""Largest shift of the weak view, as a share of the side."""
CUTOUT = 0.5
"""Side of the gray square of the strong view, as a share of the side."""
GRAY = 128


def weak(x: Pictures, rng: np.random.Generator) -> Pictures:
    """Shifted by up to an eighth of each side, edges mirrored; colour pictures are flipped half the time."""
    count, height, width, channels = x.shape
    rows = _shifted(height, _shifts(height, count, rng))
    columns = _shifted(width, _shifts(width, count, rng))
    if channels > 1:
        flipped = rng.random(count) < 0.5
        columns[flipped] = columns[flipped, ::-1]
    view: Pictures = x[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return view


def strong(x: Pictures, rng: np.random.Generator, operations: int = 2) -> Pictures:
    """A weak view under so many operations of random strength, then a gray square."""
    view = weak(x, rng)
    for _ in range(operations):
        chosen = rng.integers(0, len(_OPERATIONS), len(x))
        strength = rng.uniform(-1, 1, len(x)).astype(np.float32)
        changed = view.copy()
        for number, operation in enumerate(_OPERATIONS):
            here = np.flatnonzero(chosen == number)
            if len(here):
                changed[here] = operation(view[here], strength[here])
        view = changed
    return _cutout(view, rng)


def _shifts(side: int, count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    most = int(side * SHIFT)
    return rng.integers(-most, most + 1, count, dtype=np.int64)


def _shifted(side: int, shifts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """(N, side) source positions, mirrored at the edges."""
    places: npt.NDArray[np.int64] = np.abs(np.arange(side, dtype=np.int64)[None, :] + shifts[:, None])
    return np.where(places >= side, 2 * (side - 1) - places, places)


def _cutout(x: Pictures, rng: np.random.Generator) -> Pictures:
    count, height, width, _ = x.shape

    def covered(side: int) -> npt.NDArray[np.bool_]:
        middle: npt.NDArray[np.int64] = rng.integers(0, side, (count,), dtype=np.int64)
        half: npt.NDArray[np.float64] = rng.uniform(0, CUTOUT / 2, (count,)) * side
        found: npt.NDArray[np.bool_] = np.abs(np.arange(side) - middle[:, None]) < half[:, None]
        return found

    hidden = covered(height)[:, :, None] & covered(width)[:, None, :]
    x[hidden] = GRAY
    return x


# --- operations: (pictures, strength in [-1, 1] for each) -> pictures -----------------------------------


def _identity(x: Pictures, s: Floats) -> Pictures:
    return x


def _brightness(x: Pictures, s: Floats) -> Pictures:
    return _clipped(x * _each(1 + 0.9 * s))


def _contrast(x: Pictures, s: Floats) -> Pictures:
    mean = x.mean(axis=(1, 2, 3), keepdims=True, dtype=np.float32)
    return _clipped(mean + (x - mean) * _each(1 + 0.9 * s))


def _solarise(x: Pictures, s: Floats) -> Pictures:
    return np.where(x >= _each(256 * np.abs(s)), 255 - x, x)


def _posterise(x: Pictures, s: Floats) -> Pictures:
    dropped = np.round(_each(4 * np.abs(s))).astype(np.uint8)
    kept: Pictures = x >> dropped << dropped
    return kept


def _stretch(x: Pictures, s: Floats) -> Pictures:
    low = x.min(axis=(1, 2), keepdims=True).astype(np.float32)
    high = x.max(axis=(1, 2), keepdims=True).astype(np.float32)
    return _clipped((x - low) * (255 / np.maximum(high - low, 1)))


def _sharpen(x: Pictures, s: Floats) -> Pictures:
    padded = np.pad(x.astype(np.float32), ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    height, width = x.shape[1:3]
    windows = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    smooth: Floats = np.mean(windows, axis=0, dtype=np.float32)
    return _clipped(smooth + (x - smooth) * _each(1 + 0.9 * s))


def _rotate(x: Pictures, s: Floats) -> Pictures:
    angle = np.deg2rad(30 * s)
    return _affine(x, np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle))


def _shear_x(x: Pictures, s: Floats) -> Pictures:
    return _affine(x, 1 + 0 * s, 0 * s, 0.3 * s, 1 + 0 * s)


def _shear_y(x: Pictures, s: Floats) -> Pictures:
    return _affine(x, 1 + 0 * s, 0.3 * s, 0 * s, 1 + 0 * s)


def _translate_x(x: Pictures, s: Floats) -> Pictures:
    return _affine(x, 1 + 0 * s, 0 * s, 0 * s, 1 + 0 * s, right=0.3 * s)


def _translate_y(x: Pictures, s: Floats) -> Pictures:
    return _affine(x, 1 + 0 * s, 0 * s, 0 * s, 1 + 0 * s, down=0.3 * s)


_OPERATIONS = (
    _identity,
    _brightness,
    _contrast,
    _solarise,
    _posterise,
    _stretch,
    _sharpen,
    _rotate,
    _shear_x,
    _shear_y,
    _translate_x,
    _translate_y,
)


def _affine(
    x: Pictures,
    yy: Floats,
    yx: Floats,
    xy: Floats,
    xx: Floats,
    down: Floats | None = None,
    right: Floats | None = None,
) -> Pictures:
    """Each output pixel takes the one at matrix * (its place from the middle) + shift; outside: gray."""
    count, height, width, _ = x.shape
    y0, x0 = np.float32((height - 1) / 2), np.float32((width - 1) / 2)
    v = (np.arange(height, dtype=np.float32) - y0)[None, :, None]
    h = (np.arange(width, dtype=np.float32) - x0)[None, None, :]

    def wide(value: Floats) -> Floats:
        return value.astype(np.float32)[:, None, None]

    rows = wide(yy) * v + wide(yx) * h + y0 + (0 if down is None else wide(down) * height)
    columns = wide(xy) * v + wide(xx) * h + x0 + (0 if right is None else wide(right) * width)
    row, column = np.rint(rows).astype(np.int64), np.rint(columns).astype(np.int64)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    moved: Pictures = x[np.arange(count)[:, None, None], row.clip(0, height - 1), column.clip(0, width - 1)]
    moved[~inside] = GRAY
    return moved


def _each(values: Floats) -> Floats:
    return values[:, None, None, None]


def _clipped(values: Floats) -> Pictures:
    rounded: Pictures = np.rint(values).clip(0, 255).astype(np.uint8)
    return rounded
