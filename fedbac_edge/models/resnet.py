"""ResNet-8, without torch: tensor names, shapes, initial weights.

A stem convolution and three stages of one basic block each (He et al., "Deep Residual Learning for Image
Recognition", CVPR 2016, with its CIFAR stem and no pooling in it): widths 64/128/256, the second and third
stage halve height and width and have a 1x1 convolution on the shortcut. Every convolution is without bias and
followed by batch normalisation; global average pooling and one linear layer give the logits.

1,227,594 trainable weights for RGB and 10 classes, 1,250,724 for 100 (HASSLE, arXiv 2303.02445; its residual
models are this network at 4/16 of the channels: 78,042 and 83,892).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedbac_edge.models.description import share
from fedbac_edge.parts.part import Part, is_statistic

MOMENTUM, EPSILON = 0.1, 1e-5
"""Of its batch normalisations, as torch's defaults: the share of a new batch in the running statistics, and
what is added to a variance before its root."""


@dataclass(frozen=True)
class ResNet8:
    """The description; `widths` are the channels of the three stages, the first also those of the stem."""

    input_shape: tuple[int, int, int] = (3, 32, 32)
    classes: int = 10
    widths: tuple[int, int, int] = (64, 128, 256)

    @property
    def blocks(self) -> tuple[tuple[str, int, int, int], ...]:
        """(name, channels in, channels out, stride) of each stage's block."""
        first, second, third = self.widths
        return (
            ("stage1", first, first, 1),
            ("stage2", first, second, 2),
            ("stage3", second, third, 2),
        )

    @property
    def buffers(self) -> frozenset[str]:
        """The running means and variances of the batch normalisations."""
        return frozenset(filter(is_statistic, self.schema()))

    def schema(self) -> dict[str, tuple[int, ...]]:
        """Tensor name -> shape."""
        return dict(self._tensors())

    def _tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        def convolution(
            name: str, norm: str, shape: tuple[int, ...]
        ) -> Iterator[tuple[str, tuple[int, ...]]]:
            yield f"{name}.weight", shape
            for tensor in ("weight", "bias", "running_mean", "running_var"):
                yield f"{norm}.{tensor}", shape[:1]

        yield from convolution("conv", "norm", (self.widths[0], self.input_shape[0], 3, 3))
        for block, narrow, wide, stride in self.blocks:
            yield from convolution(f"{block}.conv1", f"{block}.norm1", (wide, narrow, 3, 3))
            yield from convolution(f"{block}.conv2", f"{block}.norm2", (wide, wide, 3, 3))
            if stride > 1:
                yield from convolution(f"{block}.shortcut", f"{block}.norm3", (wide, narrow, 1, 1))
        yield "fc.weight", (self.classes, self.widths[2])
        yield "fc.bias", (self.classes,)

    def init(self, rng: np.random.Generator) -> Part:
        """Fresh weights as PyTorch's layers begin, drawn tensor by tensor in schema order.

        U(-1/sqrt(fan_in), 1/sqrt(fan_in)) for convolutions and the linear layer with its bias; batch
        normalisations begin as the identity with mean 0 and variance 1, which draws nothing.
        """
        part: Part = {}
        bound = 0.0
        for name, shape in self.schema().items():
            if len(shape) > 1:
                bound = 1.0 / float(np.sqrt(np.prod(shape[1:])))
            if len(shape) > 1 or name == "fc.bias":
                part[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
            else:
                ones = name.endswith(("weight", "running_var"))
                part[name] = np.full(shape, 1.0 if ones else 0.0, dtype=np.float32)
        return part

    def shrunk(self, numerator: int, denominator: int) -> ResNet8:
        """See `catalog.shrunk`."""
        first, second, third = (share(width, numerator, denominator) for width in self.widths)
        return replace(self, widths=(first, second, third))
