"""Ranked list loss (Ranked List)."""

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction, masked_mean
from firstpage.mining import nontrivial
from firstpage.pairs import Pairs


def ranked_list(pairs: Pairs, alpha: float = 1.2, margin: float = 0.4, temperature: float = 10.0) -> Tensor:
    """[Q]: L_P + L_N of each query's non-trivial positives and weighted non-trivial negatives (Eq. 11–13).

    Only the queries receive gradient: the candidates of a list are constants.

    >>> import torch
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]]), torch.tensor([0, 0, 1]))
    >>> ranked_list(pairs)
    tensor([1.1818, 0.9198, 0.5498])
    """
    pairs = pairs.with_constant_candidates()
    mined = nontrivial(alpha, margin)(pairs, None)
    distance = pairs.distance
    too_close = alpha - distance
    # Eq. 9 and its normalization: a softmax over the non-trivial negatives, stable at any temperature.
    exponent = torch.where(mined.negative_mask, temperature * too_close.detach(), -1e30)
    weight = exponent.softmax(dim=1) * mined.negative_mask
    pull = masked_mean(distance - (alpha - margin), mined.positive_mask)
    return pull + (weight * too_close).sum(dim=1)


class RankedList(Loss):
    """Ranked list loss: all of a class within a sphere of diameter α − m, all others beyond α.

    Every non-trivial candidate takes part; negatives weigh by how far they intrude, exp(T(α − d)). A class
    keeps its shape within its sphere. The candidates of a query are constants: only the query moves.

    From: Wang et al., Ranked List Loss for Deep Metric Learning, CVPR 2019, Eq. 8–14.

    Prefer it with few images of many classes (60 × 3) and heads on several stages of the backbone; it is
    insensitive to its margin. The authors' code for CUB takes α = 1.4, m = 0.2 at 20 × 3.

    pytorch-metric-learning's version lets the candidates move too, halves the sum of the two parts, and
    overflows at high temperature; this one weighs by a softmax, which cannot.

    Args:
        alpha: the distance negatives should keep.
        margin: m, how much closer positives should be.
        temperature: T, 0 weighs all non-trivial negatives alike, ∞ is hard mining.
        reduction: over queries.

    >>> import torch
    >>> points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
    >>> RankedList()(points, torch.tensor([0, 0, 1]))
    tensor(0.8838)
    """

    def __init__(
        self,
        alpha: float = 1.2,
        margin: float = 0.4,
        temperature: float = 10.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        if not (0 < alpha <= 2 and 0 <= margin <= alpha):
            raise UserError(
                f"RankedList(alpha={alpha}, margin={margin}): need 0 <= margin <= alpha <= 2, alpha > 0"
            )
        if not 0 <= temperature < float("inf"):
            raise UserError(f"RankedList(temperature={temperature}): need 0 <= temperature < infinity")
        self.alpha = alpha
        self.margin = margin
        self.temperature = temperature

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: L_RLL of each query."""
        return ranked_list(pairs, self.alpha, self.margin, self.temperature)
