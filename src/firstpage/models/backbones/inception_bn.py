"""Inception-BN, also GoogLeNet V2 (Ioffe and Szegedy, 2015), with the key names of pretrained-models."""

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from firstpage.models.backbones.base import Renormalize, SplitBackbone, initialize

# Channels of each cell: 1×1 | 1×1 → 3×3 | 1×1 → 3×3 → 3×3 | projection of the pooled map.
# The two cells without 1×1 and projection halve the map and append the pooled map unchanged.
_CELLS = {
    "3a": (64, 64, 64, 64, 96, 32),
    "3b": (64, 64, 96, 64, 96, 64),
    "3c": (0, 128, 160, 64, 96, 0),
    "4a": (224, 64, 96, 96, 128, 128),
    "4b": (192, 96, 128, 96, 128, 128),
    "4c": (160, 128, 160, 128, 160, 128),
    "4d": (96, 128, 192, 160, 192, 128),
    "4e": (0, 128, 192, 192, 256, 0),
    "5a": (352, 192, 320, 160, 224, 128),
    "5b": (352, 192, 320, 192, 224, 128),
}


class InceptionBN(SplitBackbone):
    """Inception-BN; its stages are inception 3c, 4e and 5b, as Ranked List Loss takes them.

    From: Ioffe and Szegedy, Batch Normalization, ICML 2015. The network of Sampling Wisely and of Ranked List
    Loss. The public weights (pretrained-models' `bninception`) expect BGR in 0..255; the network converts its
    input. Their key names are flat (`inception_3a_1x1`), so the layers are too.

    >>> network = InceptionBN().eval()
    >>> [tuple(features.shape) for features in network.stages(torch.zeros(1, 3, 64, 64))]
    [(1, 576, 4, 4), (1, 1056, 2, 2), (1, 1024, 2, 2)]
    """

    widths = (576, 1056, 1024)
    ignored_prefixes = ("last_linear.", "fc.")

    def __init__(self, checkpointing: bool = False) -> None:
        super().__init__(checkpointing)
        self.renormalize = Renormalize((104.0, 117.0, 128.0), (1.0, 1.0, 1.0), max_value=255.0, bgr=True)
        self._add("conv1_7x7_s2", 3, 64, 7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        channels = 192
        for name, (one, reduce, three, double_reduce, double, projection) in _CELLS.items():
            cell, stride = f"inception_{name}", 1 if one else 2
            if one:
                self._add(f"{cell}_1x1", channels, one, 1)
            self._add(f"{cell}_3x3_reduce", channels, reduce, 1)
            self._add(f"{cell}_3x3", reduce, three, 3, stride)
            self._add(f"{cell}_double_3x3_reduce", channels, double_reduce, 1)
            self._add(f"{cell}_double_3x3_1", double_reduce, double, 3)
            self._add(f"{cell}_double_3x3_2", double, double, 3, stride)
            if projection:
                self._add(f"{cell}_pool_proj", channels, projection, 1)
            channels = one + three + double + (projection or channels)
        initialize(self)

    def lower_stages(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of inception 3c and 4e: [B, width, H / 16, W / 16], … / 32."""
        x = self._convolve("conv1_7x7_s2", self.renormalize(images))
        x = F.max_pool2d(x, 3, stride=2, ceil_mode=True)
        x = self._convolve("conv2_3x3", self._convolve("conv2_3x3_reduce", x))
        x = F.max_pool2d(x, 3, stride=2, ceil_mode=True)
        low = self._cells(x, "3a", "3b", "3c")
        return low, self._cells(low, "4a", "4b", "4c", "4d", "4e")

    def high_stage(self, middle: Tensor) -> Tensor:
        """Return the output of inception 5b: [B, width, H / 32, W / 32]."""
        return self._cells(middle, "5a", "5b")

    def _cells(self, x: Tensor, *names: str) -> Tensor:
        for name in names:
            x = self.run_block(partial(self._cell, name), x)
        return x

    def _add(self, name: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> None:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
        self.add_module(name, convolution)
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))

    def _convolve(self, name: str, x: Tensor) -> Tensor:
        return F.relu(getattr(self, f"{name}_bn")(getattr(self, name)(x)), inplace=True)

    def _cell(self, name: str, x: Tensor) -> Tensor:
        halving = _CELLS[name][0] == 0

        def branch(*layers: str) -> Tensor:
            y = x
            for layer in layers:
                y = self._convolve(f"inception_{name}_{layer}", y)
            return y

        branches = [] if halving else [branch("1x1")]
        branches += [branch("3x3_reduce", "3x3"), branch("double_3x3_reduce", "double_3x3_1", "double_3x3_2")]
        if halving:
            # With an odd side, this map would be one shorter than those of the convolutions without padding.
            padding = (x.shape[2] % 2, x.shape[3] % 2)
            return torch.cat(
                [*branches, F.max_pool2d(x, 3, stride=2, padding=padding, ceil_mode=True)], dim=1
            )
        pooled = F.max_pool2d(x, 3, 1, 1) if name == "5b" else F.avg_pool2d(x, 3, 1, 1)
        return torch.cat([*branches, self._convolve(f"inception_{name}_pool_proj", pooled)], dim=1)

    def adapt(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Flatten the batch norms of the oldest files, which have shape [1, channels]."""
        return {
            key: value.flatten() if "_bn." in key and value.ndim == 2 else value
            for key, value in super().adapt(state).items()
        }
