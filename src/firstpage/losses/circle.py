"""Circle loss."""

from torch import Tensor
from torch.nn import functional as F

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction, masked_logsumexp
from firstpage.pairs import Pairs


def circle(pairs: Pairs, margin: float = 0.4, scale: float = 80.0) -> Tensor:
    """[Q]: log(1 + Σ_n e^{γ[s_n + m]₊(s_n − m)} · Σ_p e^{−γ[1 + m − s_p]₊(s_p − 1 + m)}).

    The weights [·]₊ are constants: they set the pace of a pair, and are not themselves differentiated.

    >>> import torch
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), torch.tensor([0, 0, 1]))
    >>> circle(pairs, scale=8.0)
    tensor([1.0635, 5.1387, 0.0000])
    """
    similarity = pairs.similarity
    constant = similarity.detach()
    push = scale * (constant + margin).relu() * (similarity - margin)
    pull = -scale * (1 + margin - constant).relu() * (similarity - 1 + margin)
    return F.softplus(masked_logsumexp(push, pairs.negative) + masked_logsumexp(pull, pairs.positive))


class Circle(Loss):
    """Circle loss: every pair learns at its own pace, the farther from its optimum the faster.

    A pair's similarity is weighed by how far it is from 1 + m (positives) or −m (negatives). The border
    between the two kinds becomes a circle, with one target for both, instead of a line.

    From: Sun et al., Circle Loss: A Unified Perspective of Pair Similarity Optimization, CVPR 2020;
    m = 0.4, γ = 80 for fine-grained retrieval (m = 0.25, γ = 256 for faces).

    Prefer it where positives and negatives are unequally far along, as late in training of faces. A query
    without a positive or without a negative has the term 0. pytorch-metric-learning's is the same, averaged
    over the queries whose term is not 0.

    Args:
        margin: m. Positives should exceed 1 − m, negatives stay below m.
        scale: γ, how much the hardest pairs outweigh the others.
        reduction: over queries.

    >>> import torch
    >>> Circle(scale=8.0)(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), torch.tensor([0, 0, 1]))
    tensor(2.0674)
    """

    def __init__(self, margin: float = 0.4, scale: float = 80.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        if not 0 <= margin <= 1:
            raise UserError(f"Circle(margin={margin}): need 0 <= margin <= 1, such as 0.4")
        if not 0 < scale < float("inf"):
            raise UserError(f"Circle(scale={scale}): scale must be positive and finite")
        self.margin = margin
        self.scale = scale

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: the soft difference of each query's hardest negatives and positives."""
        return circle(pairs, self.margin, self.scale)
