"""One training step of several LeNets at once, forward and backward written by hand on torch's matrix
product.

Used where no compiled kernel is at hand (and on other devices than the CPU). What makes it fast:

- the batch is the innermost axis, (channels, height, width, N), so every shift, slice and maximum below runs
  over contiguous memory;
- convolution and 2x2 pooling are one matrix product. A pooled output sees a 6x6 window of the input; the
  window is written out once, and the four positions of the pooling window are four rows of weights that hold
  the 5x5 kernel at the four offsets (a, b) inside 6x6. Pooling is then a maximum over four contiguous planes.
  ReLU follows pooling: both are monotone, so they commute;
- the first layer of all parts reads the same windows and is a single product; later layers are batched over
parts; - every buffer is allocated once, and all weights, gradients and momenta are three flat vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbac_edge.learning.normalise import Labels
from fedbac_edge.models.catalog import LeNet
from fedbac_edge.parts.part import FloatArray, Part
from fedbac_edge.vocabulary.training import LocalTraining

OFFSETS = [(0, 0), (0, 1), (1, 0), (1, 1)]
WINDOW = 6  # a 5x5 kernel at the four positions of a 2x2 pooling window


class FlatParts:
    """The parts of one architecture in one vector, tensor by tensor, each stacked over the parts."""

    def __init__(self, model: LeNet, parts: Mapping[str, Part], device: str) -> None:
        self.roles = tuple(parts)
        self.schema = model.schema()
        stacked = [np.stack([part[name] for part in parts.values()]).ravel() for name in self.schema]
        self.vector = torch.from_numpy(np.concatenate(stacked)).to(device)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Tensor name -> (parts, *shape), sharing the memory of `vector`."""
        views, start = {}, 0
        for name, shape in self.schema.items():
            size = len(self.roles) * int(np.prod(shape))
            views[name] = vector[start : start + size].view(len(self.roles), *shape)
            start += size
        return views

    def per_role(self, values: Mapping[str, float]) -> Tensor:
        """A vector that holds, for every weight, the value of the role it belongs to (0 without one)."""
        vector = torch.empty_like(self.vector)
        for view in self.views(vector).values():
            for index, role in enumerate(self.roles):
                view[index] = values.get(role, 0.0)
        return vector

    def dump(self) -> dict[str, Part]:
        """Role -> part (copies, on the CPU)."""
        views = {name: view.cpu().numpy() for name, view in self.views(self.vector).items()}
        return {
            role: {name: view[index].copy() for name, view in views.items()}
            for index, role in enumerate(self.roles)
        }


def windows(x: Tensor, height: int, width: int) -> Tensor:
    """View (..., C, H, W, N) as (..., C, 6, 6, height, width, N): the input of each pooled output."""
    *lead, row, column, inner = x.stride()
    shape = (*x.shape[:-3], WINDOW, WINDOW, height, width, x.shape[-1])
    return x.as_strided(shape, (*lead, row, column, 2 * row, 2 * column, inner))


def spread_kernels(weight: Tensor, out: Tensor) -> None:
    """Place (..., 5, 5) kernels into `out` (4, ..., 6, 6) at the four offsets; the rest stays zero."""
    for plane, (a, b) in zip(out, OFFSETS, strict=True):
        plane[..., a : a + 5, b : b + 5] = weight


def gather_kernels(spread: Tensor, out: Tensor) -> None:
    """The adjoint: sum the four 5x5 blocks of (4, ..., 6, 6) into `out` (..., 5, 5)."""
    out.copy_(spread[0, ..., 0:5, 0:5])
    for plane, (a, b) in zip(spread[1:], OFFSETS[1:], strict=True):
        out += plane[..., a : a + 5, b : b + 5]


def pool_forward(planes: Tensor, bias: Tensor, best: Tensor, out: Tensor) -> None:
    """best = max over the four planes; out = relu(best + bias), where `bias` broadcasts."""
    torch.maximum(planes[0], planes[1], out=best)
    torch.maximum(best, planes[2], out=best)
    torch.maximum(best, planes[3], out=best)
    torch.add(best, bias, out=out)
    out.relu_()


def pool_backward(planes: Tensor, best: Tensor, gradient: Tensor, out: Tensor) -> None:
    """Send `gradient` to the first of the four planes that holds the maximum (as max_pool2d does), else zero.

    Overwrites `gradient`.
    """
    for index in range(3):
        # threshold_backward passes the gradient where (plane - best) > threshold; the maximum has 0 there.
        torch.sub(planes[index], best, out=out[index])
        torch.ops.aten.threshold_backward(gradient, out[index], -1e-38, grad_input=out[index])
        gradient -= out[index]
    out[3].copy_(gradient)


def relu_backward(gradient: Tensor, output: Tensor) -> Tensor:
    """Zero `gradient` in place where relu gave zero."""
    torch.ops.aten.threshold_backward(gradient, output, 0.0, grad_input=gradient)
    return gradient


@dataclass
class Buffers:
    """Working memory for batches of one size; `d` marks a gradient. Axes as in FusedLeNet.step."""

    x: Tensor
    windows1: Tensor
    planes1: Tensor
    dplanes1: Tensor
    best1: Tensor
    pooled1: Tensor
    dpooled1: Tensor
    windows2: Tensor
    dwindows2: Tensor
    planes2: Tensor
    dplanes2: Tensor
    best2: Tensor
    pooled2: Tensor
    # For each place in a window, where it lies in dpooled1 and what it adds there.
    folds: list[tuple[Tensor, Tensor]]


class FusedLeNet:
    """The parts in training: weights, momentum and the step."""

    def __init__(self, model: LeNet, parts: Mapping[str, Part], settings: LocalTraining, device: str) -> None:
        self.model = model
        self.settings = settings
        self.device = device
        self.flat = FlatParts(model, parts, device)
        self.gradient = torch.zeros_like(self.flat.vector)
        self.momentum = torch.zeros_like(self.flat.vector)
        frozen = dict.fromkeys(settings.frozen, 1.0)
        self.frozen = self.flat.per_role(frozen) != 0 if frozen else None
        self.weights = self.flat.views(self.flat.vector)
        self.grads = self.flat.views(self.gradient)
        # Derivative of lambda * theta^2.
        self.l2 = self.flat.per_role({role: 2 * value for role, value in settings.l2.items()})
        p, c = len(parts), model.input_shape[0]
        first, second = model.widths[:2]
        self.kernels1 = torch.zeros((4, p, first, c, WINDOW, WINDOW), device=device)
        self.dkernels1 = torch.zeros_like(self.kernels1)
        self.kernels2 = torch.zeros((p, 4, second, first, WINDOW, WINDOW), device=device)
        self.dkernels2 = torch.zeros_like(self.kernels2)
        self.buffers: dict[int, Buffers] = {}

    def _buffers(self, n: int) -> Buffers:
        if n not in self.buffers:
            (c, h, w), (first, second, _, _) = self.model.input_shape, self.model.widths
            p, (h1, w1), (h2, w2) = len(self.flat.roles), ((h - 4) // 2, (w - 4) // 2), self.model.grid

            def empty(*shape: int) -> Tensor:
                return torch.empty(shape, device=self.device)

            dpooled1 = empty(p, first, h1, w1, n)
            dwindows2 = empty(p, first, WINDOW, WINDOW, h2, w2, n)
            spots = windows(dpooled1, h2, w2)
            self.buffers[n] = Buffers(
                x=empty(c, h, w, n),
                windows1=empty(c, WINDOW, WINDOW, h1, w1, n),
                planes1=empty(4, p, first, h1 * w1 * n),
                dplanes1=empty(4, p, first, h1 * w1 * n),
                best1=empty(p, first, h1 * w1 * n),
                pooled1=empty(p, first, h1, w1, n),
                dpooled1=dpooled1,
                windows2=empty(p, first, WINDOW, WINDOW, h2, w2, n),
                dwindows2=dwindows2,
                planes2=empty(p, 4, second, h2 * w2 * n),
                dplanes2=empty(p, 4, second, h2 * w2 * n),
                best2=empty(p, second, h2 * w2 * n),
                pooled2=empty(p, second, h2 * w2 * n),
                folds=[
                    (spots[:, :, u, v], dwindows2[:, :, u, v]) for u in range(WINDOW) for v in range(WINDOW)
                ],
            )
        return self.buffers[n]

    def step(self, x: FloatArray, y: Labels) -> float:
        """One SGD step on (N, C, H, W) images; returns the sum of cross-entropies before it."""
        loss = self.differentiate(x, y)
        self.update()
        return loss

    def differentiate(self, x: FloatArray, y: Labels) -> float:
        """Fill `gradient` with that of the mean cross-entropy of the summed logits; returns the loss sum."""
        w, g, n = self.weights, self.grads, len(y)
        images, labels = torch.from_numpy(x).to(self.device), torch.from_numpy(y).to(self.device)
        b = self._buffers(n)
        p, first, h1, w1, _ = b.pooled1.shape
        second, (h2, w2) = self.model.widths[1], self.model.grid

        # Convolution 1 with pooling: one product for all parts.
        b.x.copy_(images.permute(1, 2, 3, 0))
        b.windows1.copy_(windows(b.x, h1, w1))
        spread_kernels(w["conv1.weight"], self.kernels1)
        columns1 = b.windows1.view(-1, h1 * w1 * n)
        kernels1 = self.kernels1.view(4 * p * first, -1)
        torch.mm(kernels1, columns1, out=b.planes1.view(4 * p * first, -1))
        pool_forward(b.planes1, w["conv1.bias"].unsqueeze(2), b.best1, b.pooled1.view(p, first, -1))

        # Convolution 2 with pooling: one product per part.
        b.windows2.copy_(windows(b.pooled1, h2, w2))
        spread_kernels(w["conv2.weight"], self.kernels2.transpose(0, 1))
        columns2 = b.windows2.view(p, -1, h2 * w2 * n)
        kernels2 = self.kernels2.view(p, 4 * second, -1)
        torch.bmm(kernels2, columns2, out=b.planes2.view(p, 4 * second, -1))
        planes2 = b.planes2.transpose(0, 1)
        pool_forward(planes2, w["conv2.bias"].unsqueeze(2), b.best2, b.pooled2)

        # Linear layers, (parts, units, N).
        features = b.pooled2.view(p, second * h2 * w2, n)
        hidden1 = torch.baddbmm(w["fc1.bias"].unsqueeze(2), w["fc1.weight"], features).relu_()
        hidden2 = torch.baddbmm(w["fc2.bias"].unsqueeze(2), w["fc2.weight"], hidden1).relu_()
        logits = torch.baddbmm(w["fc3.bias"].unsqueeze(2), w["fc3.weight"], hidden2).sum(0)

        # Softmax and cross-entropy; the sum of logits hands every part the same gradient.
        log_p = torch.log_softmax(logits, dim=0)
        chosen = labels.unsqueeze(0)
        loss = -float(log_p.gather(0, chosen).double().sum())
        dlogits = log_p.exp()
        dlogits.scatter_add_(0, chosen, torch.full_like(dlogits[:1], -1.0))
        dlogits = (dlogits / n).expand(p, -1, -1).contiguous()

        dhidden2 = self._linear_backward("fc3", dlogits, hidden2)
        dhidden1 = self._linear_backward("fc2", relu_backward(dhidden2, hidden2), hidden1)
        dfeatures = self._linear_backward("fc1", relu_backward(dhidden1, hidden1), features)

        dpooled2 = relu_backward(dfeatures, features).view(p, second, -1)
        torch.sum(dpooled2, 2, out=g["conv2.bias"])
        pool_backward(planes2, b.best2, dpooled2, b.dplanes2.transpose(0, 1))
        dplanes2 = b.dplanes2.view(p, 4 * second, -1)
        torch.bmm(dplanes2, columns2.transpose(1, 2), out=self.dkernels2.view(p, 4 * second, -1))
        gather_kernels(self.dkernels2.transpose(0, 1), g["conv2.weight"])
        torch.bmm(kernels2.transpose(1, 2), dplanes2, out=b.dwindows2.view(p, -1, h2 * w2 * n))

        # The adjoint of writing windows out: 36 shifted sums.
        b.dpooled1.zero_()
        for spot, contribution in b.folds:
            spot += contribution
        dpooled1 = relu_backward(b.dpooled1, b.pooled1).view(p, first, -1)
        torch.sum(dpooled1, 2, out=g["conv1.bias"])
        pool_backward(b.planes1, b.best1, dpooled1, b.dplanes1)
        dplanes1 = b.dplanes1.view(4 * p * first, -1)
        torch.mm(dplanes1, columns1.t(), out=self.dkernels1.view(4 * p * first, -1))
        gather_kernels(self.dkernels1, g["conv1.weight"])
        return loss

    def _linear_backward(self, layer: str, dout: Tensor, inputs: Tensor) -> Tensor:
        torch.bmm(dout, inputs.transpose(1, 2), out=self.grads[f"{layer}.weight"])
        torch.sum(dout, 2, out=self.grads[f"{layer}.bias"])
        return torch.bmm(self.weights[f"{layer}.weight"].transpose(1, 2), dout)

    def update(self) -> None:
        """L2 term, clipping, weight decay, momentum, step, in this order."""
        theta, g, v, s = self.flat.vector, self.gradient, self.momentum, self.settings
        if s.l2:
            g.addcmul_(self.l2, theta)
        if self.frozen is not None:
            g.masked_fill_(self.frozen, 0.0)
        bound = s.clip_norm / (float(torch.linalg.vector_norm(g)) + 1e-6)
        scale = 1.0 if bound >= 1.0 else bound  # not a number stays so, and is refused at the gate
        v.mul_(s.momentum).add_(g, alpha=scale).add_(theta, alpha=s.weight_decay)
        if self.frozen is not None:
            v.masked_fill_(self.frozen, 0.0)
        theta.add_(v, alpha=-s.learning_rate)

    def dump(self) -> dict[str, Part]:
        """Role -> part, as trained so far."""
        return self.flat.dump()

    def close(self) -> None:
        """Nothing to end; as CompiledLeNet.close."""
