"""The additive model: several networks of one architecture whose logits are summed.

Fed-BAC, arXiv 2605.11815, prediction: logits(x) = h(x; G) + f(x; K). A plain sum, never divided by the number
of parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch

import numpy as np
import torch
from torch import Tensor, nn

from fedbac_edge.models.catalog import LeNet
from fedbac_edge.models.description import Architecture
from fedbac_edge.models.lenet import LeNet5
from fedbac_edge.models.resnet import ResNet8
from fedbac_edge.models.resnet_module import ResNet
from fedbac_edge.parts.part import Part


@singledispatch
def network(model: Architecture) -> nn.Module:
    """One torch module for this architecture, its state dict named as in `model.schema()`.

    A user's description makes its own with `model.network()`. Raises TypeError for an unknown one.
    """
    own = getattr(model, "network", None)
    if own is not None:
        made: nn.Module = own()
        return made
    raise TypeError(f"no torch module is registered for the architecture {type(model).__name__}")


@network.register
def _(model: LeNet) -> nn.Module:
    return LeNet5(model)


@network.register
def _(model: ResNet8) -> nn.Module:
    return ResNet(model)


def load(module: nn.Module, part: Part) -> None:
    """Copy a part's tensors into the module; raises RuntimeError when names or shapes differ."""
    module.load_state_dict({name: torch.from_numpy(np.array(tensor)) for name, tensor in part.items()})


def dump(module: nn.Module) -> Part:
    """The module's tensors as a part of its own (copies, on the CPU)."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in module.state_dict().items()}


class Additive(nn.Module):
    """Parts by role; forward is the sum of their logits, in the order given."""

    def __init__(self, model: Architecture, parts: Mapping[str, Part]) -> None:
        super().__init__()
        self.roles = tuple(parts)
        self.networks = nn.ModuleList(network(model) for _ in parts)
        for module, part in zip(self.networks, parts.values(), strict=True):
            load(module, part)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) normalised pixels -> (N, classes) summed logits."""
        return torch.stack([module(x) for module in self.networks]).sum(dim=0)

    def part(self, role: str) -> nn.Module:
        """The network that plays `role`."""
        return self.networks[self.roles.index(role)]

    def dump(self) -> dict[str, Part]:
        """Role -> part."""
        return {role: dump(module) for role, module in zip(self.roles, self.networks, strict=True)}
