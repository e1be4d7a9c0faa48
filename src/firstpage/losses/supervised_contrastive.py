"""Supervised contrastive loss."""

from torch import Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction, masked_logsumexp, masked_sum
from firstpage.pairs import Pairs


def supervised_contrastive(pairs: Pairs, temperature: float = 0.1) -> Tensor:
    """[Q]: −log( e^{s_p/τ} / Σ_a e^{s_a/τ} ) averaged over a query's positives p; a is any other image.

    >>> import torch
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), torch.tensor([0, 0, 1]))
    >>> supervised_contrastive(pairs)
    tensor([0.1269, 1.7839, 0.0000])
    """
    everyone = masked_logsumexp(pairs.similarity, pairs.positive | pairs.negative, scale=1 / temperature)
    count = pairs.positive.sum(dim=1)
    own = masked_sum(pairs.similarity, pairs.positive) / temperature
    return (count * everyone - own) / count.clamp_min(1)  # 0 where there is no positive


class SupervisedContrastive(Loss):
    """Supervised contrastive loss: each positive should stand out of all other images of the batch.

    From: Khosla et al., Supervised Contrastive Learning, NeurIPS 2020, Eq. 2 (the sum over positives outside
    the logarithm, the form they recommend); τ = 0.1. Their two views of every image are simply two images of
    a class here.

    It is `NCA(positives="all", negatives="all")` (`batch-all`) but for the denominator, which also holds the
    query's other positives: the positives compete, so a class stops contracting when it is even. Prefer it
    with large batches, and for training from nothing. pytorch-metric-learning's is the same, averaged over
    the queries whose term is not 0.

    Args:
        temperature: τ.
        reduction: over queries.

    >>> import torch
    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
    >>> SupervisedContrastive()(points, torch.tensor([0, 0, 1]))
    tensor(0.6369)
    """

    def __init__(self, temperature: float = 0.1, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        if not temperature > 0:
            raise UserError(f"SupervisedContrastive(temperature={temperature}): temperature must be positive")
        self.temperature = temperature

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: the mean cross-entropy of each query's positives."""
        return supervised_contrastive(pairs, self.temperature)
