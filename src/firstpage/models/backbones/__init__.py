"""Backbones: from images to features. One module per family, with the key names of its public weights.

`create(name)` builds one, with or without weights. `names()` lists those of this package; `timm:NAME` is a
network of timm, and `my_package.my_module:MyBackbone` a subclass of `Backbone` in a module of your own.

>>> import torch
>>> from firstpage.models import backbones
>>> backbone = backbones.create("resnet18")
>>> backbone(torch.zeros(1, 3, 64, 64)).shape
torch.Size([1, 512, 2, 2])
"""

import inspect
import os
import re
from collections.abc import Callable
from functools import partial

import torch

from firstpage._plugins import import_object
from firstpage._spelling import suggest
from firstpage._text import summary
from firstpage.data.augment import IMAGENET_MEAN, IMAGENET_STD
from firstpage.errors import UserError
from firstpage.models.backbones.base import Backbone, SplitBackbone
from firstpage.models.backbones.batch_norm import freeze_batch_norm
from firstpage.models.backbones.densenet import DenseNet
from firstpage.models.backbones.googlenet import GoogLeNet
from firstpage.models.backbones.inception_bn import InceptionBN
from firstpage.models.backbones.resnet import ResNet
from firstpage.models.backbones.small import Small
from firstpage.models.backbones.timm_adapter import create_timm_backbone
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
    "SplitBackbone",
    "VisionTransformer",
    "create",
    "describe",
    "freeze_batch_norm",
    "names",
]

_BASIC: dict[str, object] = {"bottleneck": False, "channels": (64, 64, 128, 256, 512)}
_WIDE: dict[str, object] = {"bottleneck": True, "channels": (64, 256, 512, 1024, 2048)}
# Each name's class, and the arguments that make it that network.
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
    """Return the names of this package's backbones.

    >>> names()[:4]
    ['resnet18', 'resnet34', 'resnet50', 'resnet101']
    """
    return list(_NETWORKS)


def describe() -> dict[str, str]:
    """Return a sentence about each of the names.

    >>> describe()["resnet50"]
    'ResNet: 23.5 M parameters, 2048 features, images of 224 pixels.'
    """
    sentences = {}
    for name in names():
        with torch.device("meta"):
            network = create(name)
        millions = sum(parameter.numel() for parameter in network.parameters()) / 1e6
        size = f"{network.widths[-1]} features, images of {network.input_size} pixels"
        family = re.split(r"[;:]", summary(type(network)))[0]
        sentences[name] = f"{family}: {millions:.1f} M parameters, {size}."
    return sentences


def create(
    name: str,
    *,
    weights: str | os.PathLike[str] | None = None,
    checkpointing: bool = False,
    **options: object,
) -> Backbone:
    """Create a backbone by name.

    Args:
        name: One of `names()`; `timm:NAME` for any network of timm (`pip install firstpage[timm]`); or
            `package.module:Class` for a subclass of `Backbone` in a module that can be imported.
        weights: A `.safetensors`, `.pth` or `.pt` file, or `"imagenet"` for torchvision's published weights
            (timm's own for `timm:NAME`), downloaded once. Defaults to random weights.
        checkpointing: Recompute each block in the backward pass instead of storing its activations.
        **options: Arguments of that network: `strides="v1"` for a ResNet, `size=518` for a ViT.

    Raises:
        UserError: There is no such backbone or option, or the weights do not fit.
        FileNotFoundError: The weights file does not exist, or could not be downloaded.

    >>> create("vit_small_14", size=518).pos_embed.shape
    torch.Size([1, 1370, 384])
    >>> create("firstpage.models.backbones.small:Small", checkpointing=True).widths
    (48, 96, 192)
    >>> create("resnet50", stride="v1")
    Traceback (most recent call last):
    firstpage.errors.UserError: backbone 'resnet50': no option 'stride'; did you mean 'strides'? it ...
    >>> create("resnet52")
    Traceback (most recent call last):
    firstpage.errors.UserError: backbone 'resnet52': no such name; did you mean 'resnet50'? ...
    """
    if name.startswith("timm:"):
        pretrained = weights is not None and os.fspath(weights) == "imagenet"
        backbone: Backbone = create_timm_backbone(
            name.removeprefix("timm:"), options, pretrained=pretrained, checkpointing=checkpointing
        )
        weights = None if pretrained else weights
    else:
        build, arguments = _find(name, checkpointing, options)
        backbone = build(**arguments)
    if weights is not None:
        load(backbone, weights, name, {known: partial(create, known) for known in names()})
    return backbone


def _find(
    name: str, checkpointing: bool, options: dict[str, object]
) -> tuple[Callable[..., Backbone], dict[str, object]]:
    """The class of a backbone and the arguments to create it with, checked against its signature."""
    if ":" not in name and name not in _NETWORKS:
        raise UserError(
            f"backbone {name!r}: no such name; {suggest(name, _NETWORKS)}firstpage list backbones names all"
        )
    build, fixed = (_import_class(name), {}) if ":" in name else _NETWORKS[name]
    signature = inspect.signature(build)
    if checkpointing or "checkpointing" in signature.parameters:
        fixed = fixed | {"checkpointing": checkpointing}
    try:
        signature.bind(**fixed, **options)
    except TypeError as error:
        known = [key for key in signature.parameters if key not in {*fixed, "checkpointing"}]
        unknown = next((key for key in options if key not in known), None)
        reason = f"{error}; " if unknown is None else f"no option {unknown!r}; {suggest(unknown, known)}"
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise UserError(f"backbone {name!r}: {reason}{takes}") from None
    return build, fixed | options


def _import_class(name: str) -> type[Backbone]:
    """The subclass of `Backbone` that `package.module:Class` names."""
    imported = import_object(name, "model.backbone")
    if not isinstance(imported, type) or not issubclass(imported, Backbone) or inspect.isabstract(imported):
        raise UserError(
            f"model.backbone={name!r}: not a backbone; write a subclass of "
            "firstpage.models.backbones.Backbone that sets widths and implements stages"
        )
    return imported
