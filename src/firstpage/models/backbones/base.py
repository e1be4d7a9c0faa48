"""What all backbones share: what they take, what they return, how they save memory, how they begin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from firstpage.data.augment import IMAGENET_MEAN, IMAGENET_STD
from firstpage.models.backbones.batch_norm import keep_statistics

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "Backbone", "Renormalize", "initialize"]

Triple = tuple[float, float, float]


class Backbone(nn.Module, ABC):
    """A network from images to features, without a classifier.

    Every backbone takes RGB images in 0..1, normalized by ImageNet's mean and deviation; one whose published
    weights expect anything else converts on the way in. It returns a map [B, C, h, w] or, for a
    transformer, tokens [B, prefix + patches, C], class token first.

    A subclass sets `widths` and writes `stages`.

    Args:
        checkpointing: keep only the input of each block for the backward pass and compute the rest
            again: a third more time, a fraction of the memory, the same gradients and statistics.

    >>> class Pixels(Backbone):
    ...     "No network at all."
    ...     widths = (3, 3, 3)
    ...     def stages(self, images):
    ...         return images, images, images
    >>> Pixels()(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 3, 8, 8])
    """

    widths: tuple[int, int, int]  # channels of the low, middle and high stage; the high one is the output
    size: int = 224  # pixels a side its published weights expect
    prefix: int = 1  # of a transformer: how many tokens come before the patches
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD
    published: bool = True  # whether the public weights of its name fit it (with other strides, they do not)
    leave_out: ClassVar[tuple[str, ...]] = ()  # how keys of a public file begin that are no part of it

    def __init__(self, checkpointing: bool = False) -> None:
        super().__init__()
        self.checkpointing = checkpointing

    def forward(self, images: Tensor) -> Tensor:
        """The features of the high stage for `images` [B, 3, H, W]."""
        return self.stages(images)[-1]

    @abstractmethod
    def stages(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The features of the low, middle and high stage."""

    def adapt(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The entries of a public weights file as this network names and shapes them; no classifier."""
        return {key: value for key, value in state.items() if not key.startswith(self.leave_out)}

    def through(self, block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """What `block` makes of `inputs`, by way of a checkpoint where that was asked for."""
        if not (self.checkpointing and torch.is_grad_enabled()):
            return block(*inputs)
        settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        # A compiled graph updates running statistics once anyhow, and takes no contexts of ours.
        if not torch.compiler.is_compiling():
            layers = block if isinstance(block, nn.Module) else self
            settings["context_fn"] = lambda: (nullcontext(), keep_statistics(layers))
        output: Tensor = checkpoint(block, *inputs, **settings)
        return output


class Renormalize(nn.Module):
    """From ImageNet-normalized RGB to the input a published network was trained on.

    Args:
        mean: the network's own, in its order of channels and its range.
        std: likewise.
        highest: what white is to the network: 1 or 255.
        bgr: whether its channels are blue, green, red.

    >>> white = (1 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    >>> Renormalize((104, 117, 128), (1, 1, 1), highest=255, bgr=True)(white.reshape(1, 3, 1, 1)).flatten()
    tensor([151., 138., 127.])
    """

    factor: Tensor
    shift: Tensor

    def __init__(self, mean: Triple, std: Triple, highest: float = 1.0, bgr: bool = False) -> None:
        super().__init__()
        self.bgr = bgr
        from_mean, from_std, to_mean, to_std = torch.tensor([IMAGENET_MEAN, IMAGENET_STD, mean, std])
        if bgr:
            from_mean, from_std = from_mean.flip(0), from_std.flip(0)
        factor = highest * from_std / to_std
        shift = (highest * from_mean - to_mean) / to_std
        # Not persistent: these are no weights, and public files do not have them.
        self.register_buffer("factor", factor.reshape(1, 3, 1, 1), persistent=False)
        self.register_buffer("shift", shift.reshape(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """The same images [B, 3, H, W] in the network's terms."""
        return (images.flip(1) if self.bgr else images) * self.factor + self.shift


def initialize(network: nn.Module) -> None:
    """Draws the convolutions of `network` as He et al. do (normal, fan out); biases begin at 0.

    >>> network = nn.Conv2d(3, 64, 7)
    >>> initialize(network)
    >>> round(network.weight.std().item(), 3), network.bias.abs().max().item()
    (0.025, 0.0)
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
