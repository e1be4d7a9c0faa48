"""Every other network, as `timm:NAME`: the only file that knows timm."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from firstpage._spelling import suggest
from firstpage.errors import UserError
from firstpage.models.backbones.base import IMAGENET_MEAN, IMAGENET_STD, Backbone, Renormalize

__all__ = ["ThroughTimm", "create_through_timm"]


class ThroughTimm(Backbone):
    """A network of timm's as a backbone: its last three levels are the stages.

    Of a transformer they are a third, two thirds and all of the blocks, with whatever tokens it puts first.

    Args:
        network: made by `timm.create_model`, or anything that offers the same `pretrained_cfg`,
            `num_features`, `feature_info` and `forward_intermediates`.
        size: pixels a side of its images; what its weights were trained on if left out.

    >>> class Levels(nn.Conv2d):
    ...     "What of timm's interface is used here."
    ...     pretrained_cfg = {"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    ...     num_features = 4
    ...     feature_info = [{"num_chs": 4}] * 3
    ...     def forward_features(self, images):
    ...         return self(images)
    >>> backbone = ThroughTimm(Levels(3, 4, 1))
    >>> backbone.size, backbone.widths, backbone(torch.zeros(1, 3, 32, 32)).shape
    (32, (4, 4, 4), torch.Size([1, 4, 32, 32]))
    """

    def __init__(self, network: Any, size: int | None = None) -> None:  # noqa: ANN401 (timm has no types)
        super().__init__()
        self.network = network
        settings = network.pretrained_cfg
        self.size = size or settings["input_size"][-1]
        own = tuple(settings["mean"]), tuple(settings["std"])
        same = own == (IMAGENET_MEAN, IMAGENET_STD)
        self.renormalize: nn.Module = nn.Identity() if same else Renormalize(*own)
        # Only transformers say how many tokens come before the patches.
        self.has_tokens = hasattr(network, "num_prefix_tokens")
        high = int(network.num_features)
        self.prefix = int(getattr(network, "num_prefix_tokens", 0))
        if self.has_tokens:
            self.widths = (high, high, high)
        else:
            low, middle = (int(level["num_chs"]) for level in list(network.feature_info)[-3:-1])
            self.widths = (low, middle, high)

    def forward(self, images: Tensor) -> Tensor:
        """The features of the high stage for `images` [B, 3, H, W]."""
        features: Tensor = self.network.forward_features(self.renormalize(images))
        return self._channels_first(features)

    def stages(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The features of the low, middle and high stage."""
        if not hasattr(self.network, "forward_intermediates"):
            raise UserError(
                f"stages: timm's {type(self.network).__name__} gives its last features only; "
                "take a network with forward_intermediates, or a head on one stage"
            )
        images = self.renormalize(images)
        if not self.has_tokens:
            high, (low, middle, _) = self.network.forward_intermediates(images, indices=3)
            return low, middle, self._channels_first(high)
        depth = len(self.network.blocks)
        high, kept = self.network.forward_intermediates(
            images,
            indices=[depth // 3 - 1, 2 * depth // 3 - 1],
            output_fmt="NLC",
            return_prefix_tokens=self.prefix > 0,
        )
        if self.prefix:
            kept = [torch.cat([prefix, patches], dim=1) for patches, prefix in kept]
        return kept[0], kept[1], high

    def adapt(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The entries of a file of timm's as this network names them."""
        classifier = self.network.pretrained_cfg.get("classifier") or ()
        heads = (classifier,) if isinstance(classifier, str) else tuple(classifier)
        leave_out = tuple(f"{head}." for head in heads)
        return {f"network.{key}": value for key, value in state.items() if not key.startswith(leave_out)}

    def _channels_first(self, features: Tensor) -> Tensor:
        # forward_features of the Swin family puts the channels last.
        last = getattr(self.network, "output_fmt", "NCHW") == "NHWC"
        return features.permute(0, 3, 1, 2) if last and features.ndim == 4 else features


def create_through_timm(
    name: str, *, pretrained: bool = False, checkpointing: bool = False, **options: object
) -> ThroughTimm:
    """The network timm calls `name`, with `options` for `timm.create_model`.

    Args:
        name: with or without a tag: `convnext_tiny`, `convnext_tiny.fb_in22k`.
        pretrained: whether timm shall fetch its weights.
        checkpointing: see `Backbone`.
        **options: such as `img_size=224`.

    Raises:
        UserError: timm is not installed, or what it needs is broken.

    >>> try:
    ...     create_through_timm("no_such_network")
    ... except (ImportError, ValueError) as error:  # which of them, depends on whether timm is here
    ...     print(str(error)[:31])
    backbone 'timm:no_such_network'
    """
    try:
        timm = import_module("timm")
    # A torchvision that was built for another torch stops timm with a RuntimeError.
    except (ImportError, RuntimeError) as error:
        reason = "" if getattr(error, "name", None) == "timm" else f" ({_first_line(error)})"
        raise UserError(f"backbone 'timm:{name}' needs timm{reason}: pip install firstpage[timm]") from None
    if not timm.is_model(name):
        hint = suggest(name, timm.list_models(), "timm:")
        raise UserError(f"backbone 'timm:{name}': no such name; {hint}timm.list_models() lists all")
    try:
        network = timm.create_model(name, pretrained=pretrained, num_classes=0, **options)
    except TypeError as error:
        raise UserError(f"backbone 'timm:{name}': {_first_line(error)}; see its options in timm") from None
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"backbone 'timm:{name}': timm could not get its weights ({_first_line(error)}): "
            "give weights=PATH, or none"
        ) from None
    if checkpointing:
        try:
            network.set_grad_checkpointing()
        except (AssertionError, AttributeError):
            raise UserError(f"checkpointing=True: timm's {name} cannot; leave it out") from None
    size = options.get("img_size")
    return ThroughTimm(network, size if isinstance(size, int) else None)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
