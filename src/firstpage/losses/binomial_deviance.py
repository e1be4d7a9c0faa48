"""Binomial deviance loss."""

import torch
from torch import Tensor
from torch.nn import functional as F

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction, masked_sum
from firstpage.pairs import Pairs


def binomial_deviance(pairs: Pairs, alpha: float = 2.0, beta: float = 0.5, cost: float = 25.0) -> Tensor:
    """[Q]: log(1 + e^{−α(s−β)}) on positives, log(1 + e^{αC(s−β)}) on negatives, batch means.

    >>> import torch
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
    >>> binomial_deviance(pairs).mean()
    tensor(2.9408)
    """
    gap = pairs.similarity - beta
    pull = masked_sum(F.softplus(-alpha * gap), pairs.positive) / pairs.positive.sum().clamp_min(1)
    push = masked_sum(F.softplus(alpha * cost * gap), pairs.negative) / pairs.negative.sum().clamp_min(1)
    return len(gap) * (pull + push)


class BinomialDeviance(Loss):
    """Binomial deviance: logistic regression of "same class" on the similarity, negatives costing more.

    From: Yi et al., Deep Metric Learning for Practical Person Re-Identification, 2014; with the constants of
    Ustinova & Lempitsky 2016, who compare with it. Positives and negatives are averaged apart, as they do: a
    plain sum over pairs would let the many negatives drown the positives.

    Prefer it as a smooth pair baseline; every pair counts, so it stays gentle where hinges go silent.

    Args:
        alpha: slope.
        beta: the similarity that separates the two kinds.
        cost: C, how much steeper negatives are.
        reduction: over queries.

    >>> import torch
    >>> BinomialDeviance()(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
    tensor(2.9408)
    """

    def __init__(
        self, alpha: float = 2.0, beta: float = 0.5, cost: float = 25.0, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        if not (alpha > 0 and cost > 0):
            raise UserError(f"BinomialDeviance(alpha={alpha}, cost={cost}): both must be positive")
        if not -1 <= beta <= 1:
            raise UserError(f"BinomialDeviance(beta={beta}): beta is a cosine, -1 <= beta <= 1")
        self.alpha = alpha
        self.beta = beta
        self.cost = cost

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: each query's share of the batch's two averages."""
        return binomial_deviance(pairs, self.alpha, self.beta, self.cost)

    def boosting_weights(self, pairs: Pairs) -> Tensor:
        """[Q, C]: the negative gradient of a pair's loss log(1 + e^{−x}) with respect to x.

        From: Opitz et al., BIER: Boosting Independent Embeddings Robustly, ICCV 2017, algorithm 1. x is
        α(s−β) of a positive and −αC(s−β) of a negative, as in their released code; with respect to s itself
        negatives would cost C twice.

        >>> import torch
        >>> pairs = Pairs.of(torch.eye(3), torch.tensor([0, 0, 1]))
        >>> BinomialDeviance(cost=1).boosting_weights(pairs)[0]  # of itself, of a positive, of a negative
        tensor([0.0000, 0.7311, 0.2689])
        """
        gap = pairs.similarity.detach() - self.beta
        wrong = torch.where(pairs.positive, -self.alpha * gap, self.alpha * self.cost * gap).sigmoid()
        return torch.where(pairs.positive | pairs.negative, wrong, 0.0)
