"""ResNet (He et al., 2016), with torchvision's key names."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from firstpage.errors import UserError
from firstpage.models.backbones.base import SplitBackbone, initialize

Strides = Literal["v1.5", "v1"]


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut.

    >>> import torch
    >>> BasicBlock(16, 32, stride=2)(torch.zeros(1, 16, 8, 8)).shape
    torch.Size([1, 32, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, h, w] to [B, outputs, h / stride, w / stride]."""
        residual = F.relu(self.bn1(self.conv1(x)), inplace=True)
        residual = self.bn2(self.conv2(residual))
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.relu(residual + shortcut, inplace=True)


class Bottleneck(nn.Module):
    """A 3×3 convolution between two 1×1 convolutions, at a quarter of the width, with a shortcut.

    The stride is in the 3×3 convolution or, with `stride_first`, in the first 1×1, as in the paper.

    >>> import torch
    >>> Bottleneck(16, 32, stride=2)(torch.zeros(1, 16, 8, 8)).shape
    torch.Size([1, 32, 4, 4])
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1, stride_first: bool = False) -> None:
        super().__init__()
        inner = outputs // 4
        first, second = (stride, 1) if stride_first else (1, stride)
        self.conv1 = nn.Conv2d(inputs, inner, 1, stride=first, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=second, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs, h, w] to [B, outputs, h / stride, w / stride]."""
        residual = F.relu(self.bn1(self.conv1(x)), inplace=True)
        residual = F.relu(self.bn2(self.conv2(residual)), inplace=True)
        residual = self.bn3(self.conv3(residual))
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.relu(residual + shortcut, inplace=True)


class ResNet(SplitBackbone):
    """ResNet; its stages are layer2, layer3 and layer4.

    From: He et al., Deep Residual Learning for Image Recognition, CVPR 2016. ResNet-18 and -50 are networks
    of Easy Positive, ResNet-50 that of Sampling Matters.

    Two versions of the bottleneck have the same parameters and give different results: the paper's (`"v1"`)
    halves the map in the first 1×1 convolution of a stage, torchvision's (`"v1.5"`) in the 3×3. A weights
    file does not say which it is for, so `strides` must: with the wrong strides a file loads without an
    error, and the features are poor. Without bottlenecks (ResNet-18, -34) both are the same.

    Args:
        depths: Number of blocks in each of the four layers.
        bottleneck: Whether the blocks are `Bottleneck` or `BasicBlock`.
        channels: Channels of the stem and of each layer's output.
        strides: `"v1.5"` as in torchvision, `"v1"` as in the paper.
        checkpointing: See `Backbone`.

    >>> import torch
    >>> ResNet((1, 1, 1, 1), bottleneck=False, channels=(8, 8, 16, 32, 64))(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 64, 2, 2])
    """

    ignored_prefixes = ("fc.",)

    def __init__(
        self,
        depths: tuple[int, int, int, int] = (3, 4, 6, 3),
        bottleneck: bool = True,
        channels: tuple[int, int, int, int, int] = (64, 256, 512, 1024, 2048),
        strides: Strides = "v1.5",
        checkpointing: bool = False,
    ) -> None:
        super().__init__(checkpointing)
        if strides not in ("v1.5", "v1"):
            raise UserError(f"strides={strides!r}: choose 'v1.5' (torchvision's) or 'v1' (the paper's)")
        stride_first = bottleneck and strides == "v1"
        self.fits_torchvision = not stride_first
        self.widths = channels[2:]

        def block(inputs: int, outputs: int, stride: int) -> nn.Module:
            if bottleneck:
                return Bottleneck(inputs, outputs, stride, stride_first)
            return BasicBlock(inputs, outputs, stride)

        def layer(number: int) -> nn.Sequential:
            inputs, outputs = channels[number - 1], channels[number]
            first = block(inputs, outputs, stride=1 if number == 1 else 2)
            return nn.Sequential(first, *(block(outputs, outputs, 1) for _ in range(depths[number - 1] - 1)))

        self.conv1 = nn.Conv2d(3, channels[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0])
        self.layer1, self.layer2, self.layer3, self.layer4 = (layer(number) for number in (1, 2, 3, 4))
        initialize(self)

    def lower_stages(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of layer2 and layer3: [B, width, H / 8, W / 8], … / 16."""
        x = F.relu(self.bn1(self.conv1(images)), inplace=True)
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        low = self._run(self.layer2, self._run(self.layer1, x))
        return low, self._run(self.layer3, low)

    def high_stage(self, middle: Tensor) -> Tensor:
        """Return the output of layer4: [B, width, H / 32, W / 32]."""
        return self._run(self.layer4, middle)

    def _run(self, layer: nn.Sequential, x: Tensor) -> Tensor:
        for block in layer:
            x = self.run_block(block, x)
        return x
