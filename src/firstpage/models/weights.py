"""Weights files: read, checked against a backbone, and loaded into it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from torch import Tensor

from firstpage.data.cache import cache_folder
from firstpage.data.file_download import download_file, file_sha256
from firstpage.errors import UserError

if TYPE_CHECKING:
    from firstpage.models.backbones.base import Backbone

_HOST = "https://download.pytorch.org/models"
# torchvision's first ImageNet weights of each; the name holds the beginning of the file's sha256.
_PUBLISHED = {
    "resnet18": "resnet18-f37072fd.pth",
    "resnet34": "resnet34-b627a593.pth",
    "resnet50": "resnet50-0676ba61.pth",
    "resnet101": "resnet101-63fe2227.pth",
    "densenet121": "densenet121-a639ec97.pth",
    "densenet201": "densenet201-c1103571.pth",
    "googlenet": "googlenet-1378be20.pth",
}
_ELSEWHERE = {
    "inception_bn": "pretrained-models' bn_inception-52deb4733.pth",
    "vit_small_14": "timm's vit_small_patch14_dinov2",
    "vit_base_14": "timm's vit_base_patch14_dinov2",
}


def load(
    backbone: Backbone,
    weights: str | os.PathLike[str],
    name: str,
    known: Mapping[str, Callable[[], Backbone]] = MappingProxyType({}),
) -> None:
    """Load `weights` into `backbone`: all of them or, if they do not fit, none.

    A classifier in the file is ignored. Values are cast to the dtype of the parameters, so files in float16
    work. `num_batches_tracked` may be missing, as it is in older files.

    Args:
        backbone: The network, changed in place.
        weights: A `.safetensors`, `.pth` or `.pt` file, or `"imagenet"` for torchvision's published weights,
            which are downloaded once and cached.
        name: Name of the backbone, for `"imagenet"` and for messages.
        known: What builds other backbones, by name, to say which one a file belongs to.

    Raises:
        UserError: The file is for another network or not readable, or no weights are published.
        FileNotFoundError: The file does not exist, or could not be downloaded.

    >>> from firstpage.models import backbones
    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = f"{folder}/weights.safetensors"
    ...     save_file(backbones.create("small").state_dict(), file)
    ...     load(backbones.create("small"), file, "small")
    """
    public = os.fspath(weights) == "imagenet"
    state = read(fetch(name, fits=backbone.fits_torchvision) if public else weights)
    entries = backbone.adapt(state)
    misfits = _misfits(backbone, entries)
    if misfits:
        network = _recognize(state, known)
        looks = (
            f"it looks like {network}: use that (in a recipe model.backbone)"
            if network
            else f"{_listed(misfits)}"
        )
        raise UserError(f"weights={str(weights)!r}: a weights file of another network than {name}; {looks}")
    backbone.load_state_dict(entries, strict=False)


def read(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read the tensors of a `.safetensors`, `.pth` or `.pt` file, on the CPU, without running any code in it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"gamma": torch.ones(2)}, f"{folder}/weights.pth")
    ...     read(f"{folder}/weights.pth")
    {'gamma': tensor([1., 1.])}
    """
    path = Path(path)
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        raise UserError(f"weights={str(path)!r}: give a .safetensors, .pth or .pt file, or 'imagenet'")
    if not path.is_file():
        raise FileNotFoundError(f"weights={str(path)!r}: no such file; give a path or 'imagenet'")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files make the unpickler raise anything
        reason = str(error).partition("\n")[0].rstrip(". ")
        raise UserError(
            f"weights={str(path)!r}: not a readable file of tensors ({reason}); fetch it again, or save a "
            "state dict with torch.save or safetensors"
        ) from None
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(
            f"weights={str(path)!r}: holds more than tensors by name; torch.save its state dict alone"
        )
    return dict(state)


def fetch(name: str, fits: bool = True) -> Path:
    """The path of torchvision's published ImageNet file for the backbone `name`, fetched if need be.

    It is kept in the folder `weights` of `cache_folder()`, and its sha256 is
    checked against its name, whoever put it there.

    Args:
        name: of a backbone.
        fits: whether the backbone was built as torchvision builds it.

    >>> fetch("small")
    Traceback (most recent call last):
    firstpage.errors.UserError: weights='imagenet': none are published for small; leave weights ...
    """
    if name not in _PUBLISHED:
        where = f"the path of {_ELSEWHERE[name]}" if name in _ELSEWHERE else "a path"
        raise UserError(
            f"weights='imagenet': none are published for {name}; leave weights out, or give {where}"
        )
    if not fits:
        raise UserError(
            f"weights='imagenet': torchvision's file of {name} is for strides='v1.5'; "
            "leave strides out, or give the path of a v1 file"
        )
    file = _PUBLISHED[name]
    expected = file.removesuffix(".pth").rpartition("-")[2]
    folder = cache_folder() / "weights"
    path = folder / file
    if not path.is_file():
        try:
            download_file(f"{_HOST}/{file}", path, sha256=expected, attempts=1)
        except (OSError, UserError) as error:
            raise FileNotFoundError(f"weights='imagenet': {error}; put {file} into {folder}") from None
    elif not file_sha256(path).startswith(expected):
        raise UserError(
            f"weights='imagenet': {path} is damaged, its sha256 does not begin {expected}; "
            "delete it, and it is fetched again"
        )
    return path


def _misfits(backbone: Backbone, entries: Mapping[str, Tensor]) -> list[str]:
    """What does not fit, in words; nothing if the entries fill the backbone."""
    wanted = backbone.state_dict()
    lacking = [key for key in wanted if key not in entries and not key.endswith("num_batches_tracked")]
    unknown = [key for key in entries if key not in wanted]
    wrong = [
        f"{key} is {list(value.shape)}, not {list(wanted[key].shape)}"
        for key, value in entries.items()
        if key in wanted and value.shape != wanted[key].shape
    ]
    return [*wrong, *(f"{key} is missing" for key in lacking), *(f"{key} has no place" for key in unknown)]


def _listed(misfits: list[str]) -> str:
    more = f" and {len(misfits) - 3} more" if len(misfits) > 3 else ""
    return ", ".join(misfits[:3]) + more


def _recognize(state: Mapping[str, Tensor], known: Mapping[str, Callable[[], Backbone]]) -> str | None:
    """Return the backbone that a file fits, if any does."""
    with torch.device("meta"):
        for name, build in known.items():
            backbone = build()
            if not _misfits(backbone, backbone.adapt(state)):
                return name
    return None
