"""What turns features into vectors: a head, attention masks for several learners, and their concatenation."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from firstpage.models.pooling import Pooling
from firstpage.pairs import unit
from firstpage.recipes.settings import ModelSettings


class Head(nn.Sequential):
    """Pooling, an optional layer norm and a linear layer or two: from features to a vector.

    Args:
        widths: Channels of each stage whose features it gets.
        dim: Dimensions of the vector; those of the features if `model.head` is `none`.
        settings: The architecture.
        prefix_tokens: See `Backbone`.

    >>> Head([8], 4, ModelSettings(), 1)(torch.zeros(2, 8, 3, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(self, widths: Sequence[int], dim: int, settings: ModelSettings, prefix_tokens: int) -> None:
        width = sum(widths)
        layers: list[nn.Module] = [Pooling(settings.pooling, prefix_tokens)]
        if settings.layer_norm:
            layers.append(StageNorm(widths))
        if settings.head == "mlp":
            layers += [nn.Linear(width, width), nn.ReLU(inplace=True)]
        if settings.head != "none":
            layers.append(nn.Linear(width, dim))
        if settings.standardize:
            layers.append(nn.BatchNorm1d(dim, affine=False))
        super().__init__(*layers)


class StageNorm(nn.Module):
    """Layer norm without weights, of the features of each stage by themselves.

    Args:
        widths: How many features each stage has.

    >>> StageNorm([2, 2])(torch.tensor([[1.0, 3.0, 50.0, 30.0]])).round()
    tensor([[-1.,  1.,  1., -1.]])
    """

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.widths = list(widths)

    def forward(self, features: Tensor) -> Tensor:
        """Return the normalized features [B, F]."""
        parts = torch.split(features, self.widths, dim=1)
        return torch.cat([layer_norm(part, part.shape[1:]) for part in parts], dim=1)


class Attention(nn.Module):
    """Soft masks on a feature map, one for each learner, so that learners look at different parts.

    From: Kim et al., Attention-based Ensemble for Deep Metric Learning, ECCV 2018 (ABE). The network behind
    the masks is one for all learners. A mask has a value for each channel and position, from two convolutions
    of which the first is shared. There masks are sigmoids, from 0 to 1; here twice that, which starts at
    about 1, so that a pretrained network behind them sees at first what it was trained on.

    Args:
        width: Channels of the map.
        learners: Number of masks.

    >>> Attention(8, 3)(torch.ones(2, 8, 5, 5)).shape  # learner by learner
    torch.Size([6, 8, 5, 5])
    """

    def __init__(self, width: int, learners: int) -> None:
        super().__init__()
        inner = max(1, width // 4)
        self.shared = nn.Conv2d(width, inner, 3, padding=1)
        self.masks = nn.Conv2d(inner, learners * width, 1)
        self.learners = learners

    def forward(self, features: Tensor) -> Tensor:
        """Return the masked maps [learners · B, width, h, w] of a map [B, width, h, w]."""
        masks = 2 * self.masks(self.shared(features).relu()).sigmoid()
        return torch.cat([features * mask for mask in masks.chunk(self.learners, dim=1)])


def concatenate_learners(vectors: Sequence[Tensor]) -> Tensor:
    """Return unit vectors [B, D]: each learner's unit vector times its share of the dimensions, concatenated.

    From: Opitz et al., BIER, ICCV 2017, whose later learners are larger and count more. A learner whose
    vector is long does not outweigh the others.

    Args:
        vectors: [B, dim] of each learner, of any length.

    >>> concatenate_learners([torch.tensor([[9.0]]), torch.tensor([[0.0, 0.0, 2.0]])]).mul(10).round()
    tensor([[3., 0., 0., 9.]])
    """
    dim = sum(level.shape[1] for level in vectors)
    return unit(torch.cat([unit(level.float()) * (level.shape[1] / dim) for level in vectors], dim=1))
