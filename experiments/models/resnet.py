"""ResNet-20 for small images: 3 x 3 convolutions only, shortcuts without parameters.

Source: He, Zhang, Ren, Sun, Deep Residual Learning for Image Recognition (arXiv 1512.03385), sec. 4.2.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and an option-A shortcut: every `stride`-th pixel, the missing channels zero."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.missing = channels - in_channels

    def forward(self, x: Tensor) -> Tensor:  # (B, C, H, W) -> (B, channels, H / stride, W / stride)
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu(out + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.missing == 0:
            return x
        before = self.missing // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.missing - before))


def _blocks(widths: tuple[int, ...], depth: int) -> Iterator[BasicBlock]:
    """`depth` blocks per width; each new width but the first halves the image."""
    channels = widths[0]
    for width in widths:
        for _ in range(depth):
            yield BasicBlock(channels, width, stride=1 if width == channels else 2)
            channels = width


class ResNet20(nn.Module):
    """16, 32, 64 channels, three blocks each, global average pool, one linear layer.

    269,722 parameters with 3 channels and 10 classes. The pool makes it indifferent to the image's size (from 4 x 4).

    Source: He et al., sec. 4.2; convolutions and linear layer drawn as in He et al. 2015 (arXiv 1502.01852), normal
    with variance 2 / fan-in.
    """

    def __init__(self, classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(*_blocks((16, 32, 64), depth=3))
        self.linear = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(self.linear.bias)

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) -> (B, classes)
        features = self.blocks(F.relu(self.norm(self.conv(images))))
        return self.linear(torch.mean(features, dim=(2, 3)))
