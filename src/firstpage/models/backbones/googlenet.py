"""GoogLeNet (Szegedy et al., 2015), with torchvision's key names."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from firstpage.models.backbones.base import Renormalize, SplitBackbone, initialize

# Channels of each cell: 1×1 | 1×1 → 3×3 | 1×1 → "5×5" | projection of the pooled map.
_CELLS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


class _Convolution(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class _Cell(nn.Module):
    """Four branches on one map, concatenated."""

    def __init__(self, inputs: int, one: int, r3: int, three: int, r5: int, five: int, pooled: int) -> None:
        super().__init__()
        self.branch1 = _Convolution(inputs, one, 1)
        self.branch2 = nn.Sequential(_Convolution(inputs, r3, 1), _Convolution(r3, three, 3))
        # 3×3 instead of the paper's 5×5, as the published weights were trained.
        self.branch3 = nn.Sequential(_Convolution(inputs, r5, 1), _Convolution(r5, five, 3))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _Convolution(inputs, pooled, 1))
        self.outputs = one + three + five + pooled

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], dim=1)


class GoogLeNet(SplitBackbone):
    """GoogLeNet as torchvision has it, with batch norm; its stages are inception 3b, 4e and 5b.

    From: Szegedy et al., Going Deeper with Convolutions, CVPR 2015. A network of Easy Positive. The published
    weights expect pixels in −1..1; the network converts its input.

    >>> network = GoogLeNet().eval()
    >>> [tuple(features.shape) for features in network.stages(torch.zeros(1, 3, 64, 64))]
    [(1, 480, 8, 8), (1, 832, 4, 4), (1, 1024, 2, 2)]
    """

    widths = (480, 832, 1024)
    ignored_prefixes = ("fc.", "aux1.", "aux2.")

    def __init__(self, checkpointing: bool = False) -> None:
        super().__init__(checkpointing)
        self.renormalize = Renormalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        self.conv1 = _Convolution(3, 64, 7, stride=2)
        self.conv2 = _Convolution(64, 64, 1)
        self.conv3 = _Convolution(64, 192, 3)
        channels = 192
        for name, table in _CELLS.items():
            cell = _Cell(channels, *table)
            self.add_module(f"inception{name}", cell)
            channels = cell.outputs
        initialize(self)

    def lower_stages(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of inception 3b and 4e: [B, width, H / 8, W / 8], … / 16."""
        x = F.max_pool2d(self.conv1(self.renormalize(images)), 3, stride=2, ceil_mode=True)
        x = F.max_pool2d(self.conv3(self.conv2(x)), 3, stride=2, ceil_mode=True)
        low = self._cells(x, "3a", "3b")
        x = F.max_pool2d(low, 3, stride=2, ceil_mode=True)
        return low, self._cells(x, "4a", "4b", "4c", "4d", "4e")

    def high_stage(self, middle: Tensor) -> Tensor:
        """Return the output of inception 5b: [B, width, H / 32, W / 32]."""
        return self._cells(F.max_pool2d(middle, 2, stride=2, ceil_mode=True), "5a", "5b")

    def _cells(self, x: Tensor, *names: str) -> Tensor:
        for name in names:
            x = self.run_block(getattr(self, f"inception{name}"), x)
        return x
