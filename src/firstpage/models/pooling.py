"""Pooling: from a feature map, or the tokens of a transformer, to one vector."""

import torch
from torch import Tensor, nn

from firstpage.errors import UserError

POOLINGS = ("avg", "max", "avg+max", "gem", "cls")


class Pooling(nn.Module):
    """One vector [B, C] from a map [B, C, h, w], or from tokens [B, prefix + patches, C], class token first.

    Args:
        kind: `avg`, `max`, their sum `avg+max` (best for pretrained ResNets), `gem` (the generalized mean
            with a learned exponent) or `cls` (the class token; transformers only).
        prefix_tokens: How many tokens precede the patches: a class token, registers. They are not pooled.

    >>> Pooling("avg+max")(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[5.]])
    >>> Pooling("cls")(torch.tensor([[[1.0, 2.0], [5.0, 6.0]]]))
    tensor([[1., 2.]])
    """

    def __init__(self, kind: str, prefix_tokens: int = 1) -> None:
        super().__init__()
        if kind not in POOLINGS:
            raise UserError(f"pooling={kind!r}: choose one of {', '.join(POOLINGS)}")
        self.kind, self.prefix_tokens = kind, prefix_tokens
        self.exponent = nn.Parameter(torch.tensor(3.0)) if kind == "gem" else None

    def forward(self, features: Tensor) -> Tensor:
        """Return the pooled vectors [B, C]; vectors that were pooled before, as they are."""
        if features.ndim == 2:
            return features
        if self.kind == "cls":
            if features.ndim != 3 or not self.prefix_tokens:
                raise UserError(
                    "pooling='cls': this backbone has no class token; choose avg, max, avg+max or gem"
                )
            return features[:, 0]
        positions = self.positions(features)
        if self.exponent is not None:
            return positions.clamp_min(1e-6).pow(self.exponent).mean(dim=1).pow(1 / self.exponent)
        if self.kind == "avg":
            return positions.mean(dim=1)
        if self.kind == "max":
            return positions.amax(dim=1)
        return positions.mean(dim=1) + positions.amax(dim=1)

    def positions(self, features: Tensor) -> Tensor:
        """Return the features of each position of a map, or of each patch: [B, positions, C].

        >>> Pooling("avg").positions(torch.zeros(2, 5, 4, 3)).shape
        torch.Size([2, 12, 5])
        """
        if features.ndim == 3:
            return features[:, self.prefix_tokens :]
        return features.flatten(2).transpose(1, 2)
