"""A small network for small images on a CPU."""

import torch.nn.functional as F
from torch import Tensor, nn

from firstpage.models.backbones.base import SplitBackbone, initialize
from firstpage.models.backbones.resnet import BasicBlock


class Small(SplitBackbone):
    """Three residual blocks after a 3×3 convolution: 0.7 M parameters, for images of 32 to 64 pixels.

    Its stem has no pooling, so that the last map of a 32-pixel image is still 2×2, but it has a stride:
    without one the network is three times slower, and learns less in the same time. There are no published
    weights: it is for demonstrations and tests, where it learns within minutes on two cores.

    >>> import torch
    >>> Small()(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 192, 4, 4])
    """

    widths = (48, 96, 192)
    input_size = 64

    def __init__(self, checkpointing: bool = False) -> None:
        super().__init__(checkpointing)
        stem = 32
        self.conv = nn.Conv2d(3, stem, 3, stride=2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(stem)
        inputs = (stem, *self.widths)
        self.blocks = nn.ModuleList(
            BasicBlock(before, after, stride=2) for before, after in zip(inputs, self.widths, strict=False)
        )
        initialize(self)

    def lower_stages(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of the first two blocks: [B, width, H / 4, W / 4], … / 8."""
        x = F.relu(self.bn(self.conv(images)), inplace=True)
        low = self.run_block(self.blocks[0], x)
        return low, self.run_block(self.blocks[1], low)

    def high_stage(self, middle: Tensor) -> Tensor:
        """Return the output of the last block: [B, width, H / 16, W / 16]."""
        return self.run_block(self.blocks[2], middle)
