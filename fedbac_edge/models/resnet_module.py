"""ResNet-8 as a torch module, built from its description in `resnet`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, batch_norm

from fedbac_edge.models.resnet import EPSILON, MOMENTUM, ResNet8


class Norm(nn.Module):
    """Batch normalisation over (N, H, W), as `torch.nn.BatchNorm2d` but without its counter of batches: a
    part holds floats alone, and with a fixed momentum the counter decides nothing."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Statistics of the batch in training (and the running ones follow), the running ones otherwise."""
        return batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, MOMENTUM, EPSILON
        )


class Block(nn.Module):
    """Two 3x3 convolutions and the shortcut around them; a stride above 1 gives the shortcut a 1x1 one."""

    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(narrow, wide, 3, stride, padding=1, bias=False)
        self.norm1 = Norm(wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.norm2 = Norm(wide)
        if stride > 1:
            self.shortcut = nn.Conv2d(narrow, wide, 1, stride, bias=False)
            self.norm3 = Norm(wide)
        self.projects = stride > 1

    def forward(self, x: Tensor) -> Tensor:
        """(N, narrow, H, W) -> (N, wide, H / stride, W / stride)."""
        straight = self.norm3(self.shortcut(x)) if self.projects else x
        x = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(x)) + straight)


class ResNet(nn.Module):
    """Stem, three blocks, average pooling, linear; the state dict has the names of `ResNet8.schema()`."""

    def __init__(self, description: ResNet8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(description.input_shape[0], description.widths[0], 3, padding=1, bias=False)
        self.norm = Norm(description.widths[0])
        for name, narrow, wide, stride in description.blocks:
            self.add_module(name, Block(narrow, wide, stride))
        self.stages = [name for name, *_ in description.blocks]
        self.fc = nn.Linear(description.widths[2], description.classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) normalised pixels -> (N, classes) logits."""
        x = torch.relu(self.norm(self.conv(x)))
        for name in self.stages:
            x = getattr(self, name)(x)
        logits: Tensor = self.fc(adaptive_avg_pool2d(x, 1).flatten(1))
        return logits
