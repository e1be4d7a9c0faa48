"""What an embedder is made of: the part of a recipe that travels with the saved model."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ModelSettings"]


@dataclass(frozen=True)
class ModelSettings:
    """Settings of an `Embedder`, and the `[model]` table of a recipe.

    Args:
        backbone: a name of `backbones.names()`, or `timm:NAME`.
        options: further settings of that backbone, such as `{"strides": "v1"}` for a ResNet.
        weights: a file of pretrained weights, `imagenet`, or None to start from nothing.
        pooling: `avg`, `max`, `avg+max`, `gem` or `cls`.
        layer_norm: normalise the pooled features before the head.
        head: `linear`, `mlp`, `none` (the pooled features themselves) or `multilevel` (a linear head on each
            of three stages, concatenated).
        dim: dimensions of the embedding (of each level, if there are several).
        standardise: a batch norm without scale on the embedding. A network that starts from nothing maps all
            images to nearly one point, from where losses with a hinge find no way out; this is one.
        freeze_batch_norm: keep the statistics and scales of a pretrained network; best on small data.
        checkpointing: recompute activations in the backward pass, to save memory.
        stored: side of the stored square images.
        resize: how an image becomes that square: `squash`, `shorter` or `pad`.
        crop: side of the central crop the network sees; the backbone's own size if left out.

    >>> ModelSettings(backbone="small", dim=64).pooling
    'avg'
    """

    backbone: str = "resnet50"
    options: dict[str, object] = field(default_factory=dict)
    weights: str | None = None
    pooling: str = "avg"
    layer_norm: bool = False
    head: str = "linear"
    dim: int = 512
    standardise: bool = False
    freeze_batch_norm: bool = False
    checkpointing: bool = False
    stored: int = 256
    resize: str = "squash"
    crop: int | None = None

    def __post_init__(self) -> None:
        if self.head not in ("linear", "mlp", "none", "multilevel"):
            raise ValueError(f"head={self.head!r}: choose one of linear, mlp, none, multilevel")
        if self.dim < 1:
            raise ValueError(f"dim={self.dim}: an embedding needs at least one dimension")
        if self.crop is not None and not 1 <= self.crop <= self.stored:
            raise ValueError(f"crop={self.crop}: must lie in 1..{self.stored}, the side of the stored images")
