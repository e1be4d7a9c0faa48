"""DenseNet (Huang et al., 2017), with torchvision's key names."""

import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from firstpage.models.backbones.base import SplitBackbone, initialize


class _DenseLayer(nn.Module):
    """Computes `growth` new channels from all earlier maps."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, *maps: Tensor) -> Tensor:
        # Separate inputs: a checkpoint then stores each map once, not every concatenation of them.
        x = F.relu(self.norm1(torch.cat(maps, dim=1)), inplace=True)
        x = F.relu(self.norm2(self.conv1(x)), inplace=True)
        output: Tensor = self.conv2(x)
        return output


class _Transition(nn.Module):
    """Halves the channels and both sides of the map."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, inputs // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.norm(x), inplace=True)), 2)


class DenseNet(SplitBackbone):
    """DenseNet; its stages are dense blocks 2, 3 and 4, the last after the final norm and ReLU.

    From: Huang et al., Densely Connected Convolutional Networks, CVPR 2017. DenseNet-201 is a network of
    Sampling Wisely. It gains most from `checkpointing`: without, memory grows with the square of a block's
    depth.

    Args:
        depths: Number of layers in each of the four dense blocks.
        growth: Channels that each layer adds.
        checkpointing: See `Backbone`.

    >>> DenseNet((2, 2, 2, 2), growth=8)(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 32, 2, 2])
    """

    ignored_prefixes = ("classifier.",)

    def __init__(
        self,
        depths: tuple[int, int, int, int] = (6, 12, 24, 16),
        growth: int = 32,
        checkpointing: bool = False,
    ) -> None:
        super().__init__(checkpointing)
        channels, widths = 2 * growth, []
        self.features = nn.ModuleDict(
            {
                "conv0": nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
                "norm0": nn.BatchNorm2d(channels),
            }
        )
        for number, depth in enumerate(depths, 1):
            layers = {f"denselayer{n + 1}": _DenseLayer(channels + n * growth, growth) for n in range(depth)}
            self.features[f"denseblock{number}"] = nn.ModuleDict(layers)
            channels += depth * growth
            widths.append(channels)
            if number < 4:
                self.features[f"transition{number}"] = _Transition(channels)
                channels //= 2
        self.features["norm5"] = nn.BatchNorm2d(channels)
        self.widths = widths[1], widths[2], widths[3]
        initialize(self)

    def lower_stages(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of dense blocks 2 and 3: [B, width, H / 8, W / 8], … / 16."""
        x = F.relu(self.features["norm0"](self.features["conv0"](images)), inplace=True)
        x = self._dense_block(1, F.max_pool2d(x, 3, stride=2, padding=1))
        low = self._dense_block(2, x)
        return low, self._dense_block(3, low)

    def high_stage(self, middle: Tensor) -> Tensor:
        """Return the output of dense block 4, after the final norm and ReLU: [B, width, H / 32, W / 32]."""
        return F.relu(self.features["norm5"](self._dense_block(4, middle)), inplace=True)

    def _dense_block(self, number: int, x: Tensor) -> Tensor:
        """Run a dense block, and the transition before it."""
        if number > 1:
            x = self.run_block(self.features[f"transition{number - 1}"], x)
        maps = [x]
        for layer in self.features[f"denseblock{number}"].values():  # type: ignore[operator]
            maps.append(self.run_block(layer, *maps))
        return torch.cat(maps, dim=1)

    def adapt(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename the keys of the first torchvision files (`norm.1` for `norm1`)."""
        old = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")
        return {old.sub(r"\1\2", key): value for key, value in super().adapt(state).items()}
