"""Backbones: from images to features. One file a family, each with the key names of its public weights.

`create(name)` builds any of them, with or without weights; `names()` lists them; `timm:NAME` is any other.

>>> import torch
>>> from firstpage.models import backbones
>>> backbone = backbones.create("resnet18")
>>> backbone(torch.zeros(1, 3, 64, 64)).shape
torch.Size([1, 512, 2, 2])
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable

from firstpage._spelling import suggest
from firstpage.errors import UserError
from firstpage.models.backbones.base import IMAGENET_MEAN, IMAGENET_STD, Backbone
from firstpage.models.backbones.batch_norm import freeze_batch_norm
from firstpage.models.backbones.densenet import DenseNet
from firstpage.models.backbones.googlenet import GoogLeNet
from firstpage.models.backbones.inception_bn import InceptionBN
from firstpage.models.backbones.resnet import ResNet
from firstpage.models.backbones.small import Small
from firstpage.models.backbones.through_timm import create_through_timm
from firstpage.models.backbones.vit import VisionTransformer
from firstpage.models.weights import load

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Backbone",
    "DenseNet",
    "GoogLeNet",
    "InceptionBN",
    "ResNet",
    "Small",
    "VisionTransformer",
    "create",
    "freeze_batch_norm",
    "names",
]

_BASIC: dict[str, object] = {"bottleneck": False, "channels": (64, 64, 128, 256, 512)}
_WIDE: dict[str, object] = {"bottleneck": True, "channels": (64, 256, 512, 1024, 2048)}
_NETWORKS: dict[str, tuple[Callable[..., Backbone], dict[str, object]]] = {
    "resnet18": (ResNet, {"depths": (2, 2, 2, 2), **_BASIC}),
    "resnet34": (ResNet, {"depths": (3, 4, 6, 3), **_BASIC}),
    "resnet50": (ResNet, {"depths": (3, 4, 6, 3), **_WIDE}),
    "resnet101": (ResNet, {"depths": (3, 4, 23, 3), **_WIDE}),
    # The face network of Sampling Matters.
    "resnet50-slim": (
        ResNet,
        {"depths": (3, 4, 6, 3), "bottleneck": True, "channels": (64, 96, 192, 384, 768)},
    ),
    "densenet121": (DenseNet, {"depths": (6, 12, 24, 16), "growth": 32}),
    "densenet201": (DenseNet, {"depths": (6, 12, 48, 32), "growth": 32}),
    "googlenet": (GoogLeNet, {}),
    "inception_bn": (InceptionBN, {}),
    "vit_small_14": (VisionTransformer, {"width": 384, "heads": 6, "depth": 12}),
    "vit_base_14": (VisionTransformer, {"width": 768, "heads": 12, "depth": 12}),
    "small": (Small, {}),
}


def names() -> list[str]:
    """The names `create` knows, besides `timm:NAME`.

    >>> names()[:4]
    ['resnet18', 'resnet34', 'resnet50', 'resnet101']
    """
    return list(_NETWORKS)


def create(
    name: str,
    *,
    weights: str | os.PathLike[str] | None = None,
    checkpointing: bool = False,
    **options: object,
) -> Backbone:
    """The backbone of that name.

    Args:
        name: one of `names()`, or `timm:NAME` for any network of timm's (`pip install firstpage[timm]`).
        weights: path of a `.safetensors`, `.pth` or `.pt` file; `"imagenet"` for torchvision's published one
            (timm's own for `timm:NAME`), fetched once; nothing for random ones.
        checkpointing: recompute each block in the backward pass instead of keeping it.
        **options: what that network takes: `strides="v1"` for a ResNet, `size=518` for a ViT.

    >>> create("vit_small_14", size=518).pos_embed.shape
    torch.Size([1, 1370, 384])
    >>> create("resnet50", stride="v1")
    Traceback (most recent call last):
    firstpage.errors.UserError: backbone 'resnet50': no option 'stride'; did you mean 'strides'? it ...
    >>> create("resnet52")
    Traceback (most recent call last):
    firstpage.errors.UserError: backbone 'resnet52': no such name; did you mean 'resnet50'? ...
    """
    if name.startswith("timm:"):
        pretrained = weights is not None and os.fspath(weights) == "imagenet"
        backbone: Backbone = create_through_timm(
            name.removeprefix("timm:"), pretrained=pretrained, checkpointing=checkpointing, **options
        )
        weights = None if pretrained else weights
    else:
        build, settings = _find(name, options)
        backbone = build(**settings, **options, checkpointing=checkpointing)
    if weights is not None:
        load(backbone, weights, name)
    return backbone


def _find(name: str, options: dict[str, object]) -> tuple[Callable[..., Backbone], dict[str, object]]:
    """What builds `name`, once it is known to take `options`."""
    if name not in _NETWORKS:
        raise UserError(
            f"backbone {name!r}: no such name; {suggest(name, _NETWORKS)}backbones.names() lists all"
        )
    build, settings = _NETWORKS[name]
    known = [key for key in inspect.signature(build).parameters if key not in {*settings, "checkpointing"}]
    for key in options:
        if key not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise UserError(f"backbone {name!r}: no option {key!r}; {suggest(key, known)}{takes}")
    return build, settings
