"""One network in training: its logits, the gradient of any loss of them, an SGD step.

For methods whose objectives are more than cross-entropy of a sum: the objective is written in numpy
(`losses`), the network turns its gradient by the logits into one by the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import nn

from fedbac_edge.learning.compiled import Kernel, aligned, kernel_for
from fedbac_edge.learning.inputs import check_part
from fedbac_edge.learning.local import best_backend
from fedbac_edge.learning.losses import cross_entropy, soft_cross_entropy
from fedbac_edge.learning.normalise import Labels
from fedbac_edge.models.additive import dump, load, network
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.models.description import Architecture, buffers
from fedbac_edge.parts.part import FloatArray, Part
from fedbac_edge.vocabulary.training import Backend


class Trainee(Protocol):
    """One network in training, with momentum that begins at zero. Images x are (N, C, H, W), normalised."""

    def forward(self, x: FloatArray) -> FloatArray:
        """Logits (N, classes) in training mode; remembers what `backward` needs, of the last call only."""
        ...

    def backward(self, dlogits: FloatArray) -> None:
        """Add the loss's gradient by the weights, from that by the logits of the last `forward`."""
        ...

    def learn_beside(
        self, x: FloatArray, y: Labels, beside: FloatArray, q: FloatArray, tau: float, lam: float
    ) -> float:
        """`forward` and `backward` of the mean of -sum_c q_c log softmax(f / tau)_c + lam CE(beside + f, y).

        Returns that mean. f are this network's logits, `beside` (N, classes) fixed ones, q (N, classes)
        probabilities.
        """
        ...

    def learn(self, x: FloatArray, y: Labels) -> float:
        """`forward` and `backward` of the mean cross-entropy against labels (N,), which is returned."""
        ...

    def pull(self, centre: Part, strength: float) -> None:
        """Add strength * (w - centre) to the gradient; statistics of batch norm are left out."""
        ...

    def step(
        self, learning_rate: float, momentum: float, weight_decay: float, clip_norm: float | None
    ) -> None:
        """One SGD step: clip at a global norm (None: not), weight decay, momentum. Clears the gradient."""
        ...

    def logits(self, x: FloatArray) -> FloatArray:
        """Logits (N, classes) in evaluation mode."""
        ...

    def dump(self) -> Part:
        """The network as it is now (copies)."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


def trainee(
    model: Architecture,
    part: Part,
    *,
    device: str = "cpu",
    backend: Backend | None = None,
) -> Trainee:
    """`part` in training on the fastest path that there is for it, or on `backend`'s; it is not changed.

    The compiled kernel serves LeNets on a CPU, on one thread; torch everything else, where "fused" is
    "reference" for one network. Torch's threads are set by
    the caller (`threads.torch_threads`). Raises
    ValueError when the part does not fit the model, NoKernel when "compiled" is asked for and not to be had.
    """
    check_part(model, "the part", part)
    backend = backend or best_backend(model, device)
    if backend != "compiled":
        return AutogradTrainee(model, part, device)
    if not isinstance(model, LeNet) or device != "cpu":
        raise ValueError(f"the compiled path trains LeNets on a CPU, not {type(model).__name__} on {device}")
    return CompiledTrainee(kernel_for(model), part)


class AutogradTrainee:
    """Plain torch, for every architecture; the other is held to it."""

    def __init__(self, model: Architecture, part: Part, device: str = "cpu") -> None:
        self._module, self._device = network(model).to(device), device
        load(self._module, part)
        self._trained = list(self._module.parameters())
        self._momentum = [torch.zeros_like(weights) for weights in self._trained]
        self._logits: torch.Tensor | None = None
        self._clear()

    def forward(self, x: FloatArray) -> FloatArray:
        """See `Trainee`."""
        self._module.train()
        self._logits = self._module(torch.from_numpy(x).to(self._device))
        return _numpy(self._logits)

    def backward(self, dlogits: FloatArray) -> None:
        """See `Trainee`."""
        logits, self._logits = self._logits, None
        if logits is None:
            raise ValueError("backward follows a forward pass, once")
        logits.backward(torch.from_numpy(dlogits).to(self._device))  # type: ignore[no-untyped-call]

    def learn_beside(
        self, x: FloatArray, y: Labels, beside: FloatArray, q: FloatArray, tau: float, lam: float
    ) -> float:
        """See `Trainee`."""
        logits = self.forward(x)
        soft, d_soft = soft_cross_entropy(logits, q, tau)
        hard, d_hard = cross_entropy(beside + logits, y)
        self.backward(d_soft + np.float32(lam) * d_hard)
        return soft + lam * hard

    def learn(self, x: FloatArray, y: Labels) -> float:
        """See `Trainee`."""
        loss, gradient = cross_entropy(self.forward(x), y)
        self.backward(gradient)
        return loss

    def pull(self, centre: Part, strength: float) -> None:
        """See `Trainee`."""
        for name, weights in self._module.named_parameters():
            assert weights.grad is not None
            there = torch.from_numpy(centre[name]).to(self._device)
            weights.grad += strength * (weights.detach() - there)

    def step(
        self, learning_rate: float, momentum: float, weight_decay: float, clip_norm: float | None
    ) -> None:
        """See `Trainee`."""
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(self._trained, clip_norm)
        with torch.no_grad():
            for weights, velocity in zip(self._trained, self._momentum, strict=True):
                assert weights.grad is not None
                velocity.mul_(momentum).add_(weights.grad).add_(weights, alpha=weight_decay)
                weights.sub_(velocity, alpha=learning_rate)
        self._clear()

    def logits(self, x: FloatArray) -> FloatArray:
        """See `Trainee`."""
        self._module.eval()
        with torch.inference_mode():
            return _numpy(self._module(torch.from_numpy(x).to(self._device)))

    def dump(self) -> Part:
        """See `Trainee`."""
        return dump(self._module)

    def close(self) -> None:
        """See `Trainee`."""
        self._logits = None

    def _clear(self) -> None:
        for weights in self._trained:
            weights.grad = torch.zeros_like(weights)


@dataclass(frozen=True)
class _Descent:
    learning_rate: float
    momentum: float
    weight_decay: float
    clip_norm: float


class CompiledTrainee:
    """A LeNet through the compiled kernel. `backward` makes the forward pass again: a third more work, and
    no activations of a whole batch in memory."""

    def __init__(self, kernel: Kernel, part: Part) -> None:
        self._kernel, self._work = kernel, kernel.workspace(1)
        self._rows = kernel.rows([part])
        self._momentum, self._gradient, self._fresh = (aligned(kernel.size) for _ in range(3))
        self._no_l2 = np.zeros(1, dtype=np.float32)
        self._centres: dict[int, tuple[Part, FloatArray]] = {}
        self._x: FloatArray | None = None

    def forward(self, x: FloatArray) -> FloatArray:
        """See `Trainee`."""
        self._x = np.ascontiguousarray(x, dtype=np.float32)
        return self.logits(self._x)

    def backward(self, dlogits: FloatArray) -> None:
        """See `Trainee`."""
        x, self._x = self._x, None
        if x is None:
            raise ValueError("backward follows a forward pass, once")
        if dlogits.shape != (len(x), self._kernel.model.classes):
            raise ValueError(f"{len(x)} samples have no logit gradients of shape {dlogits.shape}")
        given = np.ascontiguousarray(dlogits, dtype=np.float32)
        self._kernel.pullback(x, given, self._rows[0], self._fresh, self._work)
        self._gradient += self._fresh

    def learn_beside(
        self, x: FloatArray, y: Labels, beside: FloatArray, q: FloatArray, tau: float, lam: float
    ) -> float:
        """See `Trainee`. The kernel knows this loss too."""
        x, labels = self._checked(x, y)
        if beside.shape != q.shape or q.shape != (len(x), self._kernel.model.classes):
            raise ValueError(f"{len(x)} samples have no logits {beside.shape}, probabilities {q.shape}")
        beside, q = np.ascontiguousarray(beside, dtype=np.float32), np.ascontiguousarray(q, dtype=np.float32)
        loss = self._kernel.complement(x, labels, beside, q, tau, lam, self._rows[0], self._fresh, self._work)
        self._gradient += self._fresh
        return loss / len(y)

    def learn(self, x: FloatArray, y: Labels) -> float:
        """See `Trainee`. The kernel knows this loss: one forward pass."""
        x, labels = self._checked(x, y)
        loss = self._kernel.gradient(x, labels, len(y), self._rows, self._fresh, self._work)
        self._gradient += self._fresh
        return loss / len(y)

    def pull(self, centre: Part, strength: float) -> None:
        """See `Trainee`."""
        # A centre is laid out once: the same part pulls at every step of a training.
        known = self._centres.get(id(centre))
        if known is None:
            known = self._centres[id(centre)] = (centre, self._kernel.rows([centre])[0])
        self._gradient += np.float32(strength) * (self._rows[0] - known[1])

    def step(
        self, learning_rate: float, momentum: float, weight_decay: float, clip_norm: float | None
    ) -> None:
        """See `Trainee`."""
        descent = _Descent(
            learning_rate, momentum, weight_decay, math.inf if clip_norm is None else clip_norm
        )
        gradients = self._gradient.reshape(1, 1, -1)
        self._kernel.update(self._rows, gradients, self._momentum, self._no_l2, descent)
        self._gradient[:] = 0.0

    def logits(self, x: FloatArray) -> FloatArray:
        """See `Trainee`."""
        self._check(x)
        return self._kernel.logits(np.ascontiguousarray(x, dtype=np.float32), self._rows[0], self._work)

    def _checked(self, x: FloatArray, y: Labels) -> tuple[FloatArray, Labels]:
        """Both as the kernel reads them; what `forward` remembered is over."""
        self._check(x)
        if not len(y) or y.shape != x.shape[:1] or not 0 <= y.min() <= y.max() < self._kernel.model.classes:
            raise ValueError(f"{len(x)} images need as many labels, of the model's classes")
        self._x = None
        return np.ascontiguousarray(x, dtype=np.float32), np.ascontiguousarray(y, dtype=np.int64)

    def _check(self, x: FloatArray) -> None:
        if x.shape[1:] != self._kernel.model.input_shape:
            raise ValueError(f"the model reads images (N, {self._kernel.model.input_shape}), found {x.shape}")

    def dump(self) -> Part:
        """See `Trainee`."""
        return {name: tensor.copy() for name, tensor in self._kernel.tensors(self._rows[0]).items()}

    def close(self) -> None:
        """See `Trainee`."""
        self._centres.clear()


def trained_names(model: Architecture) -> tuple[str, ...]:
    """The tensors that gradients and penalties are of, in schema order: all but batch norm's statistics."""
    measured = buffers(model)
    return tuple(name for name in model.schema() if name not in measured)


def _numpy(tensor: torch.Tensor) -> FloatArray:
    return np.asarray(tensor.detach().cpu().numpy(), dtype=np.float32)
