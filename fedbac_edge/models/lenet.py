"""LeNet-5 as a torch module, built from its description in `catalog`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from fedbac_edge.models.catalog import LeNet


class LeNet5(nn.Module):
    """Two unpadded 5x5 convolutions with ReLU and 2x2 max pooling, three linear layers.

    Its state dict has the names and shapes of `LeNet.schema()`.
    """

    def __init__(self, description: LeNet) -> None:
        super().__init__()
        first, second, third, fourth = description.widths
        height, width = description.grid
        self.conv1 = nn.Conv2d(description.input_shape[0], first, 5)
        self.conv2 = nn.Conv2d(first, second, 5)
        self.fc1 = nn.Linear(second * height * width, third)
        self.fc2 = nn.Linear(third, fourth)
        self.fc3 = nn.Linear(fourth, description.classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) normalised pixels -> (N, classes) logits."""
        x = max_pool2d(torch.relu(self.conv1(x)), 2)
        x = max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.fc1(x.flatten(1)))
        x = torch.relu(self.fc2(x))
        logits: Tensor = self.fc3(x)
        return logits
