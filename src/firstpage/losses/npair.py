"""N-pair-mc loss."""

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction
from firstpage.pairs import Pairs, full_precision


def npair(pairs: Pairs, l2: float = 0.02) -> Tensor:
    """[Q]: log(1 + Σ_{j≠i} exp(f_iᵀf_j⁺ − f_iᵀf_i⁺)) + l2 (‖f_i‖² + ‖f_i⁺‖²) over one pair a class.

    Ranked List, Eq. 2. Products are of the raw embeddings. The mean over queries is the mean over pairs.

    >>> pairs = Pairs.of(torch.tensor([[2.0, 0], [1, 0], [0, 2], [0, 1]]), torch.tensor([0, 0, 1, 1]))
    >>> npair(pairs, l2=0.0)  # two pairs, their anchors the first image of either class
    tensor([0.2539, 0.0000, 0.2539, 0.0000])
    """
    anchor, partner = _first_pairs(pairs)  # [Q]
    # On the CPU, where looking is free, only the anchors are compared: one of each class.
    look = pairs.labels.device.type == "cpu" and not torch.compiler.is_compiling()
    rows = anchor.nonzero()[:, 0] if look else slice(None)
    if isinstance(rows, Tensor) and pairs.candidates is pairs.queries:
        both = pairs.queries[torch.stack([rows, partner[rows]])]  # in one, so that their gradients are
    else:
        both = torch.stack([pairs.queries[rows], pairs.candidates[partner[rows]]])
    queries, positives = both  # f_i and f_i⁺
    with full_precision(queries):
        product = queries @ positives.T  # f_iᵀf_j⁺
    if not look:
        product = torch.where(anchor, product, torch.finfo(product.dtype).min / 8)
    # log(1 + Σ_{j≠i} e^{x_j − x_i}) = −log softmax_i(x)
    cost = -product.log_softmax(dim=1).diagonal()
    if l2:
        cost = cost + l2 * both.square().sum(dim=(0, 2))
    if isinstance(rows, Tensor):
        weight = len(anchor) / len(rows) if len(rows) > 1 else 0.0
        nothing: Tensor = cost.new_zeros(len(anchor))
        return nothing.index_copy(0, rows, weight * cost)
    number = anchor.sum()
    average: Tensor = len(anchor) / number.clamp_min(1)
    return torch.where(anchor & (number > 1), cost, 0.0) * average


def _first_pairs(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """[Q]: whether a query is the first of its class with a positive, and the first positive of each."""
    place = torch.arange(len(pairs.labels), device=pairs.labels.device)
    has_positive, partner = pairs.positive.max(dim=1)  # of equals, the first
    alike = (pairs.labels[:, None] == pairs.labels) & has_positive
    return has_positive & (alike.max(dim=1).indices == place), partner


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
