"""The misplaced images beside the top-k boundary (Sampling Wisely, §3.3)."""

from functools import partial

import torch
from torch import Generator

from firstpage.errors import UserError
from firstpage.mining.mined import Mined, Strategy
from firstpage.pairs import Pairs


def boundary(k: int = 5, margin: float = 0.1) -> Strategy:
    """The misplaced positives P and misplaced negatives N of each query's first page of k results.

    Candidates are ranked by ŝ, the similarity with `margin` added to negatives. P holds those of the
    m = min(k, n⁺) best positives that fell off the first page, N as many negatives that took their places,
    the ones nearest the page's edge (Eq. 6, 7, 9 and 10 in one). `losses.TopKPrecision` is Σ_N ŝ − Σ_P ŝ;
    given to another loss as `mining=boundary(k, margin)`, the same images teach that loss, which the paper
    leaves for future work (§5).

    >>> from firstpage import losses
    >>> scores = torch.tensor([0.9, 0.8, 0.7, 0.6])  # ranked: negative, positive, negative, positive
    >>> query, others = torch.tensor([[1.0, 0.0]]), torch.stack([scores, (1 - scores**2).sqrt()], dim=1)
    >>> pairs = Pairs.of(query, torch.tensor([1]), others, torch.tensor([0, 1, 0, 1]))
    >>> boundary(k=2, margin=0.0)(pairs, None).triplets()  # 3 should stand where 0 stands
    (tensor([0]), tensor([3]), tensor([0]))
    >>> loss = losses.NCA(mining=boundary(k=2, margin=0.1))
    """
    if not isinstance(k, int) or k < 1:
        raise UserError(f"boundary(k={k}): k must be at least 1")
    if not 0 <= margin < float("inf"):
        raise UserError(f"boundary(margin={margin}): need 0 <= margin < infinity")
    return partial(_boundary, k=k, margin=margin)


def _boundary(pairs: Pairs, generator: Generator | None, *, k: int, margin: float) -> Mined:
    similarity = pairs.similarity.detach()
    k = min(k, similarity.shape[1])  # with fewer candidates than k, all of them are on the page
    best_positives, positives = torch.where(pairs.positive, similarity, -torch.inf).topk(k)  # [Q, k]
    lowest = torch.finfo(similarity.dtype).min  # where there is none, and still above a missing positive
    best_negatives, negatives = torch.where(pairs.negative, similarity, lowest).topk(k)
    # Positive i (from 0) is on the page if less than k − i negatives are above it: if it is not below the
    # (k − i)-th. Both kinds are sorted, so these are the first ones.
    on_page = (best_positives >= (best_negatives + margin).flip(1)).sum(dim=1, keepdim=True)
    present = best_positives > -torch.inf
    deserving = present.sum(dim=1, keepdim=True)  # m = min(k, n⁺)
    rank = torch.arange(k, device=similarity.device)
    from_end = torch.arange(k, 0, -1, device=similarity.device)  # k − rank
    return Mined(
        positives=positives,
        positive_mask=present & (rank >= on_page),
        negatives=negatives,
        negative_mask=(from_end <= deserving) & (from_end > on_page),
        paired=False,
    )
