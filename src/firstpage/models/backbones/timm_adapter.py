"""Networks of timm as backbones: `timm:NAME`. Only this module imports timm."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from firstpage._spelling import suggest
from firstpage.data.augment import IMAGENET_MEAN, IMAGENET_STD
from firstpage.errors import UserError
from firstpage.models.backbones.base import Backbone, Renormalize

# Options of timm.create_model that `backbones.create` sets, or that would read another weights file.
_RESERVED = ("pretrained", "checkpoint_path", "num_classes")


class TimmBackbone(Backbone):
    """A network of timm as a backbone: its last three levels are the stages.

    The stages of a transformer end after a third, two thirds and all of the blocks, and include its prefix
    tokens.

    Args:
        network: A network from `timm.create_model`, or any module with the same `pretrained_cfg`,
            `num_features`, `feature_info` and `forward_intermediates`.
        size: Side of its images in pixels. Defaults to the size its weights were trained on.

    >>> class Levels(nn.Conv2d):
    ...     "The part of timm's interface that is used here."
    ...     pretrained_cfg = {"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    ...     num_features = 4
    ...     feature_info = [{"num_chs": 4}] * 3
    ...     def forward_features(self, images):
    ...         return self(images)
    >>> backbone = TimmBackbone(Levels(3, 4, 1))
    >>> backbone.input_size, backbone.widths, backbone(torch.zeros(1, 3, 32, 32)).shape
    (32, (4, 4, 4), torch.Size([1, 4, 32, 32]))
    """

    def __init__(self, network: Any, size: int | None = None) -> None:  # noqa: ANN401 (timm has no types)
        super().__init__()
        self.network = network
        settings = network.pretrained_cfg
        self.input_size = size or settings["input_size"][-1]
        own = tuple(settings["mean"]), tuple(settings["std"])
        same = own == (IMAGENET_MEAN, IMAGENET_STD)
        self.renormalize: nn.Module = nn.Identity() if same else Renormalize(*own)
        heads = settings.get("classifier") or ()
        self.ignored_prefixes = tuple(f"{head}." for head in ([heads] if isinstance(heads, str) else heads))
        # Only transformers have this attribute.
        self.has_tokens = hasattr(network, "num_prefix_tokens")
        high = int(network.num_features)
        self.prefix_tokens = int(getattr(network, "num_prefix_tokens", 0))
        if self.has_tokens:
            self.widths = (high, high, high)
        else:
            low, middle = (int(level["num_chs"]) for level in list(network.feature_info)[-3:-1])
            self.widths = (low, middle, high)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features of the high stage for `images` [B, 3, H, W]."""
        features: Tensor = self.network.forward_features(self.renormalize(images))
        return self._channels_first(features)

    def stages(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the features of the low, middle and high stage."""
        if not hasattr(self.network, "forward_intermediates"):
            raise UserError(
                f"timm's {type(self.network).__name__} returns only its last features: choose a network with "
                "forward_intermediates, or model.stages=1 and a head other than multilevel"
            )
        images = self.renormalize(images)
        if not self.has_tokens:
            high, (low, middle, _) = self.network.forward_intermediates(images, indices=3)
            return low, middle, self._channels_first(high)
        depth = len(self.network.blocks)
        high, intermediates = self.network.forward_intermediates(
            images,
            indices=[depth // 3 - 1, 2 * depth // 3 - 1],
            output_fmt="NLC",
            return_prefix_tokens=self.prefix_tokens > 0,
        )
        if self.prefix_tokens:
            intermediates = [torch.cat([prefix, patches], dim=1) for patches, prefix in intermediates]
        return intermediates[0], intermediates[1], high

    def check_size(self, height: int, width: int) -> None:
        """Raise a `UserError` for a size that the patches of a transformer do not accept."""
        patches = getattr(self.network, "patch_embed", None)
        own, patch = getattr(patches, "img_size", None), getattr(patches, "patch_size", None)
        if own is None or patch is None or getattr(patches, "dynamic_img_pad", False):
            return
        reason = f"timm's {type(self.network).__name__}: model.crop={height}: it takes images of "
        whole = max(1, height // patch[0]) * patch[0]
        if getattr(patches, "strict_img_size", True):
            if (height, width) != tuple(own):
                flexible = hasattr(self.network, "dynamic_img_size")
                other = f"model.options.dynamic_img_size=true and model.crop={whole}, or " if flexible else ""
                raise UserError(
                    f"{reason}{own[0]} pixels: set {other}model.crop={own[0]} and model.stored alike"
                )
        elif height % patch[0] or width % patch[1]:
            raise UserError(f"{reason}whole patches of {patch[0]} pixels: set model.crop={whole}")

    def adapt(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert the keys of one of timm's weights files to this network's."""
        return {f"network.{key}": value for key, value in super().adapt(state).items()}

    def _channels_first(self, features: Tensor) -> Tensor:
        # forward_features of the Swin family returns the channels last.
        last = getattr(self.network, "output_fmt", "NCHW") == "NHWC"
        return features.permute(0, 3, 1, 2) if last and features.ndim == 4 else features


def create_timm_backbone(
    name: str, options: Mapping[str, object], *, pretrained: bool = False, checkpointing: bool = False
) -> TimmBackbone:
    """Create the network that timm calls `name`.

    Args:
        name: Name with or without a tag: `convnext_tiny`, `convnext_tiny.fb_in22k`.
        options: Further arguments of `timm.create_model`, such as `{"img_size": 224}`.
        pretrained: Whether timm downloads its weights.
        checkpointing: See `Backbone`.

    Raises:
        UserError: timm is not installed or cannot be imported, it has no such network or option, or its
            weights cannot be downloaded.

    >>> try:
    ...     create_timm_backbone("no_such_network", {})
    ... except ValueError as error:  # the rest of the message depends on whether timm is installed
    ...     print(str(error)[:31])
    backbone 'timm:no_such_network'
    """
    for key in _RESERVED:
        if key in options:
            raise UserError(f"backbone 'timm:{name}': option {key!r} is not allowed; use weights to load any")
    try:
        timm = import_module("timm")
    # A torchvision that was built for another torch makes timm raise a RuntimeError.
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
            "give weights=PATH, or leave weights out"
        ) from None
    if checkpointing:
        try:
            network.set_grad_checkpointing()
        except (AssertionError, AttributeError):
            raise UserError(f"checkpointing=True: timm's {name} does not support it; leave it out") from None
    size = options.get("img_size")
    return TimmBackbone(network, size if isinstance(size, int) else None)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
