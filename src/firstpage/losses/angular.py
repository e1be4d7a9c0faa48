"""Angular loss."""

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from firstpage.errors import UserError
from firstpage.losses.base import MinedLoss, Reduction, masked_logsumexp, masked_mean
from firstpage.mining import Mined, NegativeStrategy, PositiveStrategy, Strategy
from firstpage.pairs import Pairs, full_precision


def angular(pairs: Pairs, mined: Mined, degrees: float = 45.0) -> Tensor:
    """[Q]: log(1 + Σ_n exp(4 tan²α (a+p)ᵀn − 2(1+tan²α) aᵀp)), averaged over a query's positives.

    >>> from firstpage.mining import mine
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), torch.tensor([0, 0, 1]))
    >>> angular(pairs, mine(pairs))
    tensor([3.0867, 3.0867, 0.0000])
    """
    tangent = math.tan(math.radians(degrees)) ** 2
    pull = 2 * (1 + tangent) * mined.of_positives(pairs.similarity)  # [Q, M]
    push = _log_sum_over_negatives(pairs, mined, 4 * tangent)
    return masked_mean(F.softplus(push - pull), mined.comparable)


def _log_sum_over_negatives(pairs: Pairs, mined: Mined, scale: float) -> Tensor:
    """[Q, M]: log Σ_n exp(scale (s_an + s_pn)) for each query a and its positive p."""
    among = pairs.candidate_similarity  # [C, C]
    if mined.positives is None and mined.negatives is None and not mined.paired:
        # Σ_n e^{s_an} e^{s_pn} is a matrix product, so no [Q, C, C] tensor. Exponents are at most 0.
        of_query = (scale * (pairs.similarity - 1)).exp()
        of_positive = of_query if among is pairs.similarity else (scale * (among - 1)).exp()
        with full_precision(of_query):
            total = torch.where(mined.negative_mask, of_query, 0.0) @ of_positive.T
        return total.clamp_min(torch.finfo(total.dtype).tiny).log() + 2 * scale
    every = torch.arange(len(among), device=among.device).expand(len(pairs.labels), -1)
    positives = every if mined.positives is None else mined.positives  # [Q, M]
    negatives = every if mined.negatives is None else mined.negatives  # [Q, K]
    from_query = mined.of_negatives(pairs.similarity)  # [Q, K]
    if mined.paired:
        return scale * (from_query + among[positives, negatives])
    exponent = scale * (
        from_query[:, None, :] + among[positives[:, :, None], negatives[:, None, :]]
    )  # [Q, M, K]
    return masked_logsumexp(exponent, mined.negative_mask[:, None, :], dim=2)


class Angular(MinedLoss):
    """Angular loss: bound the angle at the negative of the triangle anchor, positive, negative.

    An angle does not depend on scale, so one α suits classes of any spread.

    From: Wang et al., Deep Metric Learning with Angular Loss, ICCV 2017, Eq. 8; α = 45°. Its sum with N-pair
    is `losses.create("npair-angular")`.

    Prefer it among the older losses where classes differ much in spread (Cars). It needs the similarities of
    the candidates with one another: C² more memory than the others when the candidates are a large memory.

    pytorch-metric-learning normalizes anchors and positives but not negatives; given unit vectors it agrees.

    Args:
        degrees: α. Above 65° the exponentials leave float32.
        positives: positive strategy.
        negatives: negative strategy.
        mining: a strategy for both sides, in place of the two.
        generator: for strategies that draw.
        reduction: over queries.

    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
    >>> Angular()(points, torch.tensor([0, 0, 1]))
    tensor(2.0578)
    """

    def __init__(
        self,
        degrees: float = 45.0,
        positives: str | PositiveStrategy = "all",
        negatives: str | NegativeStrategy = "all",
        mining: Strategy | None = None,
        generator: Generator | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(positives, negatives, mining, generator, reduction)
        if not 0 < degrees <= 65:
            raise UserError(f"Angular(degrees={degrees}): need 0 < degrees <= 65, such as 45")
        self.degrees = degrees

    def mined_terms(self, pairs: Pairs, mined: Mined) -> Tensor:
        """[Q]: the mean over each query's positives."""
        return angular(pairs, mined, self.degrees)
