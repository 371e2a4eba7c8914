"""Training and forward passes of LeNets through the compiled kernel, one call a step, no autograd.

A call releases the interpreter's lock, so the network loop of an agent stays alive beside it. With several
threads a batch is cut into shares of whole lane blocks, one per thread, whose gradients are summed in order:
the result depends on the number of threads, never on their timing.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fedbac_edge.learning.compiler import NoKernel, SwitchedOff, load_library
from fedbac_edge.learning.fused import FusedLeNet
from fedbac_edge.learning.losses import cross_entropy, soft_cross_entropy, softmax
from fedbac_edge.learning.normalise import Labels
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import FloatArray, Part
from fedbac_edge.vocabulary.training import LocalTraining

log = logging.getLogger(__name__)

ALIGNMENT = 64  # bytes; the widest vector
ROW = 16  # floats; rows of linear weights are padded to whole vectors of any width


def _padded(count: int) -> int:
    return -(-count // ROW) * ROW


def aligned(count: int) -> FloatArray:
    """`count` zeros, float32, 64-byte aligned."""
    raw = np.zeros(4 * count + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + 4 * count].view(np.float32)


class Descent(Protocol):
    """What one SGD step needs; `clip_norm` bounds the gradient of all parts together."""

    @property
    def learning_rate(self) -> float:
        """The step's."""
        ...

    @property
    def momentum(self) -> float:
        """Share of the last step that goes on."""
        ...

    @property
    def weight_decay(self) -> float:
        """Added to the gradient after clipping."""
        ...

    @property
    def clip_norm(self) -> float:
        """The longest gradient."""
        ...


class Kernel:
    """The kernel's functions for one architecture, and its layout of a part."""

    def __init__(self, model: LeNet) -> None:
        self.model = model
        self._library = load_library(model)
        for name, result in {
            "fedbac_lanes": ctypes.c_int,
            "fedbac_part_floats": ctypes.c_int64,
            "fedbac_work_bytes": ctypes.c_int64,
            "fedbac_gradient": ctypes.c_double,
            "fedbac_pullback": None,
            "fedbac_complement": ctypes.c_double,
            "fedbac_update": None,
            "fedbac_logits": None,
        }.items():
            getattr(self._library, name).restype = result
        self.lanes = int(self._library.fedbac_lanes())
        self.size = int(self._library.fedbac_part_floats())
        self.places: dict[str, tuple[int, tuple[int, ...], int]] = {}
        start = 0
        for name, shape in model.schema().items():
            linear = len(shape) == 2
            start = _padded(start) if linear else start
            stride = _padded(shape[1]) if linear else int(np.prod(shape[1:]))
            self.places[name] = (start, shape, stride)
            start += shape[0] * stride
        if _padded(start) != self.size:
            raise NoKernel(f"the kernel's part holds {self.size} floats, not {_padded(start)}")

    def tensors(self, row: FloatArray) -> Part:
        """One part's row of `size` floats as tensors that share its memory."""
        return {
            name: row[start : start + shape[0] * stride]
            .reshape(shape[0], stride)[:, : int(np.prod(shape[1:]))]
            .reshape(shape)
            for name, (start, shape, stride) in self.places.items()
        }

    def rows(self, parts: list[Part]) -> FloatArray:
        """Parts in the kernel's layout, (parts, size)."""
        rows = aligned(len(parts) * self.size).reshape(len(parts), self.size)
        for row, part in zip(rows, parts, strict=True):
            for name, (start, shape, stride) in self.places.items():
                place = row[start : start + shape[0] * stride].reshape(shape[0], stride)
                place[:, : int(np.prod(shape[1:]))] = part[name].reshape(shape[0], -1)
        return rows

    def workspace(self, parts: int) -> FloatArray:
        """Working memory for one thread and so many parts."""
        return aligned(-(-int(self._library.fedbac_work_bytes(parts)) // 4))

    def gradient(
        self, x: FloatArray, y: Labels, batch: int, rows: FloatArray, gradient: FloatArray, work: FloatArray
    ) -> float:
        """Write into `gradient` that of (summed cross-entropy of x (N, C, H, W)) / batch; returns the sum."""
        loss: float = self._library.fedbac_gradient(
            _address(x),
            _address(y),
            len(y),
            batch,
            len(rows),
            _address(rows),
            _address(gradient),
            _address(work),
        )
        return loss

    def pullback(
        self, x: FloatArray, dlogits: FloatArray, row: FloatArray, gradient: FloatArray, work: FloatArray
    ) -> None:
        """Write that of one part into `gradient`, for a loss with the gradient `dlogits` by the logits."""
        self._library.fedbac_pullback(
            _address(x), _address(dlogits), len(x), _address(row), _address(gradient), _address(work)
        )

    def complement(
        self,
        x: FloatArray,
        y: Labels,
        beside: FloatArray,
        q: FloatArray,
        tau: float,
        lam: float,
        row: FloatArray,
        gradient: FloatArray,
        work: FloatArray,
    ) -> float:
        """Write that of one part into `gradient`, for the mean of -sum q log softmax(logits / tau) + lam *
        cross-entropy of (beside + logits) against y; returns the sum. beside and q are (N, classes)."""
        loss: float = self._library.fedbac_complement(
            _address(x),
            _address(y),
            _address(beside),
            _address(q),
            ctypes.c_float(tau),
            ctypes.c_float(lam),
            len(y),
            _address(row),
            _address(gradient),
            _address(work),
        )
        return loss

    def update(
        self, rows: FloatArray, gradients: FloatArray, momentum: FloatArray, l2: FloatArray, s: Descent
    ) -> None:
        """One SGD step from the sum of gradients (shares, parts, size), of which the first is overwritten."""
        self._library.fedbac_update(
            _address(rows),
            _address(gradients),
            _address(momentum),
            len(gradients),
            len(rows),
            _address(l2),
            ctypes.c_float(s.learning_rate),
            ctypes.c_float(s.weight_decay),
            ctypes.c_float(s.momentum),
            ctypes.c_float(s.clip_norm),
        )

    def logits(self, x: FloatArray, row: FloatArray, work: FloatArray) -> FloatArray:
        """(N, classes) logits of one part on x (N, C, H, W)."""
        out = np.empty((len(x), self.model.classes), dtype=np.float32)
        self._library.fedbac_logits(_address(x), len(x), _address(row), _address(out), _address(work))
        return out


def _address(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    if not array.flags.c_contiguous:
        raise ValueError("the kernel reads contiguous arrays only")
    return ctypes.c_void_p(array.ctypes.data)


class CompiledLeNet:
    """The parts in training: weights, momentum and the step."""

    def __init__(self, kernel: Kernel, parts: Mapping[str, Part], settings: LocalTraining) -> None:
        self.kernel = kernel
        self.settings = settings
        self.roles = tuple(parts)
        self.rows = kernel.rows(list(parts.values()))
        self.momentum = aligned(self.rows.size)
        trained = [role not in settings.frozen for role in self.roles]
        l2 = [settings.l2.get(role, 0.0) * moves for role, moves in zip(self.roles, trained, strict=True)]
        self.l2 = np.array(l2, dtype=np.float32)
        self.frozen = [(index, self.rows[index].copy()) for index, moves in enumerate(trained) if not moves]
        threads = min(settings.threads, -(-settings.batch_size // kernel.lanes))
        self.gradients = aligned(threads * self.rows.size).reshape(threads, *self.rows.shape)
        self.work = [kernel.workspace(len(self.roles)) for _ in range(threads)]
        self.pool = ThreadPoolExecutor(threads - 1, "kernel") if threads > 1 else None

    def step(self, x: FloatArray, y: Labels) -> float:
        """One SGD step on (N, C, H, W) images; returns the sum of cross-entropies before it."""
        loss, shares = self.differentiate(x, y)
        for index, _ in self.frozen:
            self.gradients[:shares, index] = 0.0  # what does not move has no share in the norm
        self.kernel.update(self.rows, self.gradients[:shares], self.momentum, self.l2, self.settings)
        for index, row in self.frozen:
            self.rows[index] = row
        return loss

    def differentiate(self, x: FloatArray, y: Labels) -> tuple[float, int]:
        """Fill the first of `gradients`, which sum to that of the mean loss; returns (loss sum, how many)."""
        blocks = -(-len(y) // self.kernel.lanes)
        shares = min(len(self.work), blocks)
        cuts = [min(len(y), blocks * k // shares * self.kernel.lanes) for k in range(shares + 1)]

        def share(k: int) -> float:
            here = slice(cuts[k], cuts[k + 1])
            return self.kernel.gradient(x[here], y[here], len(y), self.rows, self.gradients[k], self.work[k])

        if self.pool is None or shares == 1:
            return share(0), 1
        others = [self.pool.submit(share, k) for k in range(1, shares)]
        return sum([share(0), *(other.result() for other in others)]), shares

    def dump(self) -> dict[str, Part]:
        """Role -> part (copies), as trained so far."""
        return {
            role: {name: tensor.copy() for name, tensor in self.kernel.tensors(row).items()}
            for role, row in zip(self.roles, self.rows, strict=True)
        }

    def close(self) -> None:
        """End the threads."""
        if self.pool is not None:
            self.pool.shutdown()


@lru_cache(maxsize=32)
def _kernel_or_reason(model: LeNet) -> Kernel | str:
    try:
        kernel = Kernel(model)
        _hold_to_fused(kernel)
    except SwitchedOff as reason:
        return str(reason)
    except NoKernel as reason:
        log.warning("training without the compiled kernel, on a slower path: %s", reason)
        return str(reason)
    return kernel


def kernel_for(model: LeNet) -> Kernel:
    """The kernel for this architecture, compiled at the first call; raises NoKernel with the reason."""
    found = _kernel_or_reason(model)
    if isinstance(found, str):
        raise NoKernel(found)
    return found


def _hold_to_fused(kernel: Kernel) -> None:
    """Compare one gradient with torch's before anything is trained: a miscompiled kernel must not be used."""
    model, rng = kernel.model, np.random.default_rng(0)
    parts = {"a": model.init(rng), "b": model.init(rng)}
    settings = LocalTraining(
        epochs=1, batch_size=8, learning_rate=1.0, momentum=0.0, weight_decay=0.0, clip_norm=1.0, l2={}
    )
    x = rng.normal(size=(kernel.lanes + 3, *model.input_shape)).astype(np.float32)
    y = rng.integers(0, model.classes, len(x))
    _hold_pullback(kernel, parts["a"], x, y)
    compiled, fused = CompiledLeNet(kernel, parts, settings), FusedLeNet(model, parts, settings, "cpu")
    compiled.differentiate(x, y)
    fused.differentiate(x, y)
    for index, row in enumerate(compiled.gradients[0]):
        for name, found in kernel.tensors(row).items():
            expected = fused.grads[name][index].numpy()
            # Not "error > bound": a comparison with NaN must fail too.
            if not np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max():
                raise NoKernel(f"the compiled kernel's gradient of {name} differs from torch's")


def _hold_pullback(kernel: Kernel, part: Part, x: FloatArray, y: Labels) -> None:
    """The gradient for given logit gradients is that of the cross-entropy, when given the cross-entropy's."""
    rows, work = kernel.rows([part]), kernel.workspace(1)
    expected, found = aligned(kernel.size), aligned(kernel.size)
    kernel.gradient(x, y, len(y), rows, expected, work)
    _, dlogits = cross_entropy(kernel.logits(x, rows[0], work), y)
    kernel.pullback(x, dlogits, rows[0], found, work)
    if not np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max():
        raise NoKernel("the compiled kernel's gradient for given logit gradients differs from its own")
    beside = kernel.logits(x[::-1].copy(), rows[0], work)
    q = softmax(5.0 * beside[::-1])
    logits = kernel.logits(x, rows[0], work)
    soft, hard = soft_cross_entropy(logits, q, 2.0), cross_entropy(logits + beside, y)
    kernel.pullback(x, soft[1] + np.float32(0.5) * hard[1], rows[0], expected, work)
    loss = kernel.complement(x, y, beside, q, 2.0, 0.5, rows[0], found, work) / len(y)
    close = abs(loss - soft[0] - 0.5 * hard[0]) <= 1e-3 * abs(loss)
    if not (close and np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()):
        raise NoKernel("the compiled kernel's gradient of a complement differs from numpy's")
