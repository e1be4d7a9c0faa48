"""Lifted structure loss."""

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction, masked_sum
from firstpage.pairs import Pairs


def lifted_structure(pairs: Pairs, alpha: float = 1.0, scale: float = 1.0) -> Tensor:
    """[Q]: [ log(Σ_k e^{α−d_ik} + Σ_l e^{α−d_jl}) + d_ij ]₊² / 2, averaged over the batch's positive pairs.

    k runs over the negatives of query i, l over the queries that are negatives of candidate j. Distances are
    those of embeddings of length `scale`.

    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), torch.tensor([0, 0, 1]))
    >>> lifted_structure(pairs).mean()
    tensor(1.5896)
    """
    distance = pairs.distance if scale == 1 else scale * pairs.distance
    # As in masked_logsumexp, for both sums at once.
    push = torch.where(pairs.negative, alpha - distance, torch.finfo(distance.dtype).min / 8)
    of_query = push.logsumexp(dim=1, keepdim=True)  # [Q, 1]
    of_candidate = push.logsumexp(dim=0, keepdim=True)  # [1, C]
    cost = (torch.logaddexp(of_query, of_candidate) + distance).relu().square()
    positives = pairs.positive.sum().clamp_min(1)
    return masked_sum(cost, pairs.positive) * (len(cost) / (2 * positives))


class LiftedStructure(Loss):
    """Lifted structure loss: each positive pair against all negatives of either of the two.

    From: Oh Song et al., Deep Metric Learning via Lifted Structured Feature Embedding, CVPR 2016, Eq. 4;
    Ranked List, Eq. 3, leaves its square out.

    A baseline of three of the papers. Prefer `RankedList` or `TopKPrecision`, which also use every candidate,
    and learn more from it on every data set compared.

    The original works on embeddings that are not normalized; here, as in the comparisons, they are. On the
    unit sphere no distance is above 2, so e^{α−d} hardly tells near negatives from far ones, and pretrained
    features get worse. A larger `scale`, such as 20 with α = 2, cures that.

    Args:
        alpha: the margin.
        reduction: over queries; the mean is the paper's mean over positive pairs.
        scale: length of the normalized embeddings, by which distances are multiplied.

    >>> LiftedStructure()(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), torch.tensor([0, 0, 1]))
    tensor(1.5896)
    """

    def __init__(self, alpha: float = 1.0, reduction: Reduction = "mean", scale: float = 1.0) -> None:
        super().__init__(reduction)
        if not alpha >= 0:
            raise UserError(f"LiftedStructure(alpha={alpha}): alpha must not be negative")
        if not 0 < scale < float("inf"):
            raise UserError(f"LiftedStructure(scale={scale}): scale must be positive and finite")
        self.alpha, self.scale = alpha, scale

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: the share of each query's positive pairs."""
        return lifted_structure(pairs, self.alpha, self.scale)
