"""What an architecture is, without torch: tensor names, shapes, initial weights.

Initial weights follow PyTorch's default for convolutions and linear layers, U(-1/sqrt(fan_in),
1/sqrt(fan_in)) for weights and biases alike, drawn by numpy, so that the cloud can start a federation alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from fedbac_edge.models import foreign
from fedbac_edge.models.description import Architecture, UnknownArchitecture, buffers, share
from fedbac_edge.models.resnet import ResNet8
from fedbac_edge.parts.part import Part


@dataclass(frozen=True)
class LeNet:
    """LeNet-5: two unpadded 5x5 convolutions with ReLU and 2x2 max pooling, three linear layers.

    62,006 parameters for RGB 32x32, 44,426 for gray 28x28 (spec: exact counts). `widths` are the two
    convolutions' channels and the two hidden layers' units.
    """

    input_shape: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    widths: tuple[int, int, int, int] = (6, 16, 120, 84)

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width that the second pooling leaves."""
        _, height, width = self.input_shape
        return ((height - 4) // 2 - 4) // 2, ((width - 4) // 2 - 4) // 2

    def schema(self) -> dict[str, tuple[int, ...]]:
        """Tensor name -> shape."""
        first, second, third, fourth = self.widths
        height, width = self.grid
        return {
            "conv1.weight": (first, self.input_shape[0], 5, 5),
            "conv1.bias": (first,),
            "conv2.weight": (second, first, 5, 5),
            "conv2.bias": (second,),
            "fc1.weight": (third, second * height * width),
            "fc1.bias": (third,),
            "fc2.weight": (fourth, third),
            "fc2.bias": (fourth,),
            "fc3.weight": (self.classes, fourth),
            "fc3.bias": (self.classes,),
        }

    def init(self, rng: np.random.Generator) -> Part:
        """Fresh weights, drawn tensor by tensor in schema order."""
        part: Part = {}
        bound = 0.0
        for name, shape in self.schema().items():
            if name.endswith("weight"):
                bound = 1.0 / float(np.sqrt(np.prod(shape[1:])))
            part[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
        return part

    def shrunk(self, numerator: int, denominator: int) -> LeNet:
        """See `shrunk`."""
        first, second, third, fourth = (share(width, numerator, denominator) for width in self.widths)
        return replace(self, widths=(first, second, third, fourth))


LENETS = {"lenet": (6, 16, 120, 84), "lenet-wide": (8, 29, 144, 84)}
RESNETS = {"resnet8": (64, 128, 256), "resnet8-slim": (16, 32, 64)}
"""Slim: a quarter of the channels, 78,042 weights, for devices that ResNet-8 is too much for."""


def architecture(name: str, input_shape: tuple[int, int, int], classes: int) -> Architecture:
    """The catalogue: "lenet", "lenet-wide" (HierFAVG 2x: widths 8, 29, 144, 84), "resnet8", "resnet8-slim";
    "module:factory" is yours.

    Raises UnknownArchitecture with the names that exist, or when the image is too small for the network.
    """
    if ":" in name:
        return foreign.architecture(name, input_shape, classes)
    if name in RESNETS:
        if min(input_shape[1:]) < 8:
            raise UnknownArchitecture(f"{name} needs images of at least 8x8 pixels, not {input_shape[1:]}")
        return ResNet8(input_shape, classes, RESNETS[name])
    if name not in LENETS:
        raise UnknownArchitecture(
            f"no architecture is called {name!r}; there are: {', '.join(sorted((*LENETS, *RESNETS)))}, or "
            "your own as module:factory"
        )
    model = LeNet(input_shape, classes, LENETS[name])
    if min(model.grid) < 1:
        raise UnknownArchitecture(f"{name} needs images of at least 16x16 pixels, not {input_shape[1:]}")
    return model


def shrunk(model: Architecture, numerator: int, denominator: int = 16) -> Architecture:
    """The same architecture with numerator/denominator of its channels and hidden units, as the residual
    models of HASSLE have (arXiv 2303.02445: 4/16); inputs and classes stay.

    Widths are rounded to the nearest, halves up, and never below one: LeNet at 4/16 is 2/4/30/21, at 1/16
    1/1/8/5. Raises ValueError when the share is not within (0, 1], UnknownArchitecture when the model is a
    user's own without a method `shrunk(numerator, denominator)`.
    """
    if not 0 < numerator <= denominator:
        raise ValueError(f"a share of the channels lies above 0 and up to 1, not {numerator}/{denominator}")
    own = getattr(model, "shrunk", None)
    if own is None:
        raise UnknownArchitecture(
            f"{type(model).__name__} has no smaller form: give it a method shrunk(numerator, denominator) "
            "that returns a description with fewer channels"
        )
    smaller: Architecture = own(numerator, denominator)
    return smaller


def parameter_count(model: Architecture) -> int:
    """Number of trainable weights in one part of this architecture."""
    measured = buffers(model)
    return sum(prod(shape) for name, shape in model.schema().items() if name not in measured)


def float_count(model: Architecture) -> int:
    """Number of floats that travel with one part: its weights and its buffers."""
    return sum(map(prod, model.schema().values()))
