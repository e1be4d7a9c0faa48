"""Histogram loss."""

from torch import Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction
from firstpage.pairs import Pairs


def histogram(pairs: Pairs, bins: int = 101) -> Tensor:
    """[Q]: Σ_r h⁻_r Σ_{q≤r} h⁺_q, the chance that a negative pair is more similar than a positive pair.

    h⁺ and h⁻ are soft histograms of the batch's positive and negative similarities. A query's term holds its
    own part of h⁺; their mean is the loss.

    >>> import torch
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]]), torch.tensor([0, 0, 1]))
    >>> histogram(pairs).mean()  # both negatives, 0.8 and 0.96, are above the positive, 0.6
    tensor(1.)
    """
    positive, negative = _soft_counts(pairs, bins)
    density_negative = negative.sum(dim=0) / pairs.negative.sum().clamp_min(1)  # [bins]
    beyond = density_negative.flip(0).cumsum(0).flip(0)  # Σ_{r ≥ q} h⁻_r
    return (positive * beyond).sum(dim=1) * (len(positive) / pairs.positive.sum().clamp_min(1))


def _soft_counts(pairs: Pairs, bins: int) -> tuple[Tensor, ...]:
    """[Q, bins] of positives and of negatives: each shared between its two neighboring nodes of −1 … 1."""
    place = ((pairs.similarity + 1) * ((bins - 1) / 2)).clamp(0, bins - 1)
    below = place.detach().floor().clamp_max(bins - 2)
    counted = (pairs.positive | pairs.negative).to(place.dtype)
    upper = (place - below) * counted
    index = below.long() + bins * pairs.negative  # the histogram of negatives stands behind the other
    counts = place.new_zeros(len(place), 2 * bins)
    return counts.scatter_add(1, index, counted - upper).scatter_add(1, index + 1, upper).chunk(2, dim=1)


class Histogram(Loss):
    """Histogram loss: make it unlikely that a negative pair is more similar than a positive pair.

    From: Ustinova & Lempitsky, Learning Deep Embeddings with Histogram Loss, NIPS 2016, Eq. 1–5.

    Prefer it where you want next to nothing to tune: it has no margin. It needs batches large enough to fill
    a histogram (some hundred positive pairs). pytorch-metric-learning counts each pair once where this counts
    both directions, which is the same histogram.

    Args:
        bins: number of nodes on [−1, 1].
        reduction: over queries.

    >>> import torch
    >>> Histogram()(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]]), torch.tensor([0, 0, 1]))
    tensor(1.)
    """

    def __init__(self, bins: int = 101, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        if bins < 2:
            raise UserError(f"Histogram(bins={bins}): bins must be at least 2, such as 101")
        self.bins = bins

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: the part of each query's positive pairs."""
        return histogram(pairs, self.bins)
