"""Smooth-AP loss."""

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction, masked_mean
from firstpage.losses.ranking import Step, count_above, spread_positives
from firstpage.pairs import Pairs


def smooth_ap(pairs: Pairs, temperature: float = 0.01) -> Tensor:
    """[Q]: 1 − (1/|P|) Σ_{i∈P} [1 + Σ_{j∈P} σ((s_j − s_i)/τ)] / [1 + Σ_j σ((s_j − s_i)/τ)], j ≠ i.

    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]]), torch.tensor([0, 0, 1]))
    >>> smooth_ap(pairs)  # the positive comes second
    tensor([0.5000, 0.5000, 0.0000])
    """
    index, mask, _ = spread_positives(pairs)
    positives, negatives = count_above(pairs, index, Step(temperature))
    rank = positives + 0.5  # among the positives: 1 more, and without itself, σ(0) = 0.5
    precision = masked_mean(rank / (rank + negatives), mask)
    return torch.where(mask.any(dim=1), 1 - precision, 0.0)


class SmoothAP(Loss):
    """Smooth-AP: the average precision of each query's ranking, with a sigmoid in place of the step.

    From: Brown et al., Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval, ECCV 2020;
    τ = 0.01. A small τ is close to the true AP, and only pairs of candidates within about 5τ of one another
    then have a gradient.

    Prefer it where the whole list counts (mAP), not its first page, and with large batches: the AP of a batch
    stands for that of the gallery. `Roadmap` mends its vanishing gradients.

    Memory is O(N²), time that of N² times the positives a query has. On a GPU, where looking at the labels
    would wait, the latter is 256 (or the candidates, if fewer): 4,096 images are 4·10⁹ sigmoids. Of more
    than 256 positives, 256 evenly spread over their order stand for all.

    The query is not its own positive here; the authors' code and pytorch-metric-learning count it, always at
    rank 1, and need classes of equal size. The latter takes the number of classes for their size, and so is
    right only where the two are equal.

    Args:
        temperature: τ of the sigmoid.
        reduction: over queries.

    >>> points = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> SmoothAP()(points, torch.tensor([0, 0, 1]))
    tensor(0.3333)
    """

    def __init__(self, temperature: float = 0.01, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        if not temperature > 0:
            raise UserError(f"SmoothAP(temperature={temperature}): temperature must be positive")
        self.temperature = temperature

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: 1 − AP of each query."""
        return smooth_ap(pairs, self.temperature)
