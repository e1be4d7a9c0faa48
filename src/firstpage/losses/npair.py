"""N-pair-mc loss."""

import torch
from torch import Tensor
from torch.nn import functional as F

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction, masked_logsumexp
from firstpage.pairs import Pairs, full_precision


def npair(pairs: Pairs, l2: float = 0.02) -> Tensor:
    """[Q]: log(1 + Σ_{j≠i} exp(f_iᵀf_j⁺ − f_iᵀf_i⁺)) + l2 (‖f_i‖² + ‖f_i⁺‖²) over one pair a class.

    Ranked List, Eq. 2. Products are of the raw embeddings. The mean over queries is the mean over pairs.

    >>> pairs = Pairs.of(torch.tensor([[2.0, 0], [1, 0], [0, 2], [0, 1]]), torch.tensor([0, 0, 1, 1]))
    >>> npair(pairs, l2=0.0)  # two pairs, their anchors the first image of either class
    tensor([0.2539, 0.0000, 0.2539, 0.0000])
    """
    order = torch.arange(len(pairs.labels), device=pairs.labels.device)
    earlier = order[None, :] < order[:, None]
    has_positive = pairs.positive.any(dim=1)
    same = pairs.labels[:, None] == pairs.labels[None, :]
    anchor = has_positive & ~(same & earlier & has_positive[None, :]).any(dim=1)  # [Q] first of its class
    # The first positive: the largest of descending scores.
    descending = torch.arange(pairs.positive.shape[1], 0, -1, device=order.device)
    chosen = (pairs.positive * descending).argmax(dim=1)  # [Q]
    positives = pairs.candidates[chosen]  # [Q, D] f_j⁺
    with full_precision(pairs.queries):
        product = pairs.queries @ positives.T  # [Q, Q] f_iᵀf_j⁺
    others = anchor[None, :] & ~same
    cost = F.softplus(masked_logsumexp(product, others) - product.diagonal())
    if l2:
        cost = cost + l2 * (pairs.queries.square().sum(dim=1) + positives.square().sum(dim=1))
    paired = anchor & others.any(dim=1)
    return torch.where(paired, cost, 0.0) * (len(cost) / paired.sum().clamp_min(1))


class NPair(Loss):
    """N-pair loss: pick out an image's partner among the partners of all other classes.

    One pair a class: the anchor is the class's first image in the batch, its partner the next one; further
    images of the class are not used, so batches of two images a class suit it.

    From: Sohn, Improved Deep Metric Learning with Multi-class N-pair Loss Objective, NIPS 2016; Ranked List,
    Eq. 2. It works on embeddings that are not normalized and keeps their length in check by an L2 term: give
    it raw embeddings. (On unit vectors it has little to do; there `NCA(positives="all", negatives="all")`,
    which has a temperature, is the same idea.) pytorch-metric-learning normalizes, and draws at random which
    image of a class is the anchor.

    Args:
        l2: weight of the squared lengths.
        reduction: over queries; the mean is the mean over pairs.

    >>> embeddings = torch.tensor([[2.0, 0], [1, 0], [0, 2], [0, 1]])
    >>> NPair(l2=0.0)(embeddings, torch.tensor([0, 0, 1, 1]))
    tensor(0.1269)
    """

    def __init__(self, l2: float = 0.02, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        if not l2 >= 0:
            raise UserError(f"NPair(l2={l2}): l2 must not be negative")
        self.l2 = l2

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: the cost of each anchor's pair, 0 for images that are no anchor."""
        return npair(pairs, self.l2)
