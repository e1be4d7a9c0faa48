"""A similarity of two images that is learned, not a dot product: the unit of PDDM."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from firstpage.errors import UserError

BLOCK = 2**24  # numbers in the largest table at a time


class PairSimilarity(nn.Module):
    """The position-dependent similarity S of two unit vectors, from their difference and their mean.

    From: Huang et al., Local Similarity-Aware Deep Feature Embedding (PDDM), NIPS 2016. With u = |f_i − f_j|
    and v = (f_i + f_j) / 2, u′ and v′ are a ReLU layer of each, scaled to length one; S is a linear function
    of one more ReLU layer of both. So how similar two images are depends on where they lie, not on their
    distance alone. S is larger for images that are more similar, and symmetric.

    Args:
        dim: Dimensions of the embedding, and of all layers.

    >>> similarity = PairSimilarity(dim=4)
    >>> one, other = torch.eye(4), torch.eye(4).roll(1, dims=0)
    >>> similarity(one, other).shape, torch.equal(similarity(one, other), similarity(other, one))
    (torch.Size([4]), True)
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim < 1:
            raise UserError(f"PairSimilarity(dim={dim}): dim must be at least 1")
        self.dim = dim
        self.difference = nn.Linear(dim, dim)
        self.mean = nn.Linear(dim, dim)
        self.both = nn.Linear(2 * dim, dim)
        self.score = nn.Linear(dim, 1)

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        """Return S of vectors of length one, [..., dim] each, as [...]."""
        u = self.difference((one - other).abs()).relu()
        v = self.mean((one + other) / 2).relu()
        scaled = [F.normalize(part, dim=-1, eps=1e-6) for part in (u, v)]
        score: Tensor = self.score(self.both(torch.cat(scaled, dim=-1)).relu())
        return score.squeeze(-1)

    @torch.no_grad()
    def table(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Return S of every query with every candidate [Q, C], a few queries at a time, without gradient.

        >>> PairSimilarity(dim=4).table(torch.eye(4)[:2], torch.eye(4)).shape
        torch.Size([2, 4])
        """
        rows = max(1, BLOCK // (2 * self.dim * len(candidates)))
        return torch.cat([self(some[:, None], candidates[None]) for some in torch.split(queries, rows)])
