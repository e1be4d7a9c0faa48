"""The base class of all backbones: inputs and outputs, gradient checkpointing, initialization."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from firstpage.data.augment import IMAGENET_MEAN, IMAGENET_STD
from firstpage.models.backbones.batch_norm import keep_statistics

Triple = tuple[float, float, float]


class Backbone(nn.Module, ABC):
    """A network from images to features, without a classifier.

    Every backbone takes RGB images in 0..1, normalized by ImageNet's mean and standard deviation; a network
    whose published weights expect other values converts its input. It returns a map [B, C, h, w] or, for a
    transformer, tokens [B, prefix + patches, C], class token first.

    A subclass sets `widths` and implements `stages`. In a module that can be imported, it is the backbone
    `my_package.my_module:MyBackbone` of a recipe.

    Args:
        checkpointing: Recompute the activations of each block in the backward pass instead of storing them:
            a third more time, a fraction of the memory, the same gradients and batch norm statistics.

    Attributes:
        widths: Channels of the low, middle and high stage. The high stage is the output.
        input_size: Side of the images that the published weights expect, in pixels.
        prefix_tokens: How many tokens of a transformer precede the patches.
        mean: Mean of each channel of a normalized input.
        std: Standard deviation of each channel of a normalized input.
        fits_torchvision: Whether torchvision's weights for a network of its name fit this one.
        ignored_prefixes: Prefixes of keys in a public weights file that are no part of this network.

    >>> class Identity(Backbone):
    ...     "Return the images themselves."
    ...     widths = (3, 3, 3)
    ...     def stages(self, images):
    ...         return images, images, images
    >>> Identity()(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 3, 8, 8])
    """

    widths: tuple[int, int, int]
    input_size: int = 224
    prefix_tokens: int = 1
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD
    fits_torchvision: bool = True
    ignored_prefixes: tuple[str, ...] = ()

    def __init__(self, checkpointing: bool = False) -> None:
        super().__init__()
        self.checkpointing = checkpointing

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of the high stage for `images` [B, 3, H, W]."""
        return self.stages(images)[-1]

    @abstractmethod
    def stages(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the features of the low, middle and high stage."""

    def check_size(self, height: int, width: int) -> None:
        """Raise a `UserError` if images of that size are not accepted. Most networks accept any."""

    def adapt(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert the entries of a public weights file to this network's names and shapes."""
        return {key: value for key, value in state.items() if not key.startswith(self.ignored_prefixes)}

    def run_block(self, block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Return `block(*inputs)`, with a gradient checkpoint if `checkpointing` is set."""
        if not (self.checkpointing and torch.is_grad_enabled()):
            return block(*inputs)
        settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        # A compiled graph updates running statistics only once, and accepts no context managers.
        if not torch.compiler.is_compiling():
            layers = block if isinstance(block, nn.Module) else self
            settings["context_fn"] = lambda: (nullcontext(), keep_statistics(layers))
        output: Tensor = checkpoint(block, *inputs, **settings)
        return output


class SplitBackbone(Backbone):
    """A backbone that can be continued from its middle stage, as `model.head = "attention"` does.

    A subclass sets `widths`, and implements `lower_stages` and `high_stage` instead of `stages`.

    >>> class Doubling(SplitBackbone):
    ...     "Doubles the images twice."
    ...     widths = (3, 3, 3)
    ...     def lower_stages(self, images):
    ...         return images, 2 * images
    ...     def high_stage(self, middle):
    ...         return 2 * middle
    >>> Doubling()(torch.ones(1, 3, 1, 1)).flatten()
    tensor([4., 4., 4.])
    """

    def stages(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the features of the low, middle and high stage."""
        low, middle = self.lower_stages(images)
        return low, middle, self.high_stage(middle)

    @abstractmethod
    def lower_stages(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of the low and the middle stage."""

    @abstractmethod
    def high_stage(self, middle: Tensor) -> Tensor:
        """Return the features of the high stage from those of the middle one."""


class Renormalize(nn.Module):
    """Conversion of ImageNet-normalized RGB to the input that a published network was trained on.

    Args:
        mean: The network's own, in its channel order and value range.
        std: The network's own, in its channel order and value range.
        max_value: Value of a white pixel: 1 or 255.
        bgr: Whether the channel order is blue, green, red.

    >>> white = (1 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    >>> Renormalize((104, 117, 128), (1, 1, 1), max_value=255, bgr=True)(white.reshape(1, 3, 1, 1)).flatten()
    tensor([151., 138., 127.])
    """

    factor: Tensor
    shift: Tensor

    def __init__(self, mean: Triple, std: Triple, max_value: float = 1.0, bgr: bool = False) -> None:
        super().__init__()
        self.bgr = bgr
        # In numpy: for arithmetic on the meta device torch would import its compiler, for 2 s.
        from_mean, from_std, to_mean, to_std = np.array([IMAGENET_MEAN, IMAGENET_STD, mean, std], np.float32)
        if bgr:
            from_mean, from_std = from_mean[::-1], from_std[::-1]
        factor = max_value * from_std / to_std
        shift = (max_value * from_mean - to_mean) / to_std
        # Not persistent: these are no weights, and public files do not have them.
        self.register_buffer("factor", torch.tensor(factor).reshape(1, 3, 1, 1), persistent=False)
        self.register_buffer("shift", torch.tensor(shift).reshape(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Convert images [B, 3, H, W]."""
        return (images.flip(1) if self.bgr else images) * self.factor + self.shift


def initialize(network: nn.Module) -> None:
    """Initialize the convolutions of `network` as He et al. do (normal, fan out), and their biases to 0.

    >>> network = nn.Conv2d(3, 64, 7)
    >>> initialize(network)
    >>> round(network.weight.std().item(), 3), network.bias.abs().max().item()
    (0.025, 0.0)
    """
    for layer in network.modules():
        # Without memory there is nothing to draw, and torch would import its compiler, for 2 s, to do it.
        if isinstance(layer, nn.Conv2d) and not layer.weight.is_meta:
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
