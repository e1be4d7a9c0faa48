"""Proxy-Anchor loss."""

from torch import Tensor
from torch.nn import functional as F

from firstpage.errors import UserError
from firstpage.losses.base import Reduction, logsumexp_and_shares
from firstpage.losses.proxies import ProxyLoss
from firstpage.pairs import Pairs


def proxy_anchor(pairs: Pairs, alpha: float = 32.0, delta: float = 0.1) -> Tensor:
    """[Q]: (1/|P⁺|) Σ_{P⁺} log(1 + Σ_{x∈p} e^{−α(s−δ)}) + (1/|P|) Σ_P log(1 + Σ_{x∉p} e^{α(s+δ)}).

    The candidates are the proxies P; P⁺ are those with a positive in the batch. Each logarithm is shared out
    among the images of its sum by their part of it; the mean over queries is the two averages.

    >>> import torch
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.eye(2), torch.arange(2))
    >>> proxy_anchor(pairs)  # log(1 + e^(-28.8)) / 1 + log(1 + e^3.2) / 2
    tensor([1.6200])
    """
    pull = _log_sums(pairs.similarity, pairs.positive, -alpha, delta)
    push = _log_sums(pairs.similarity, pairs.negative, alpha, delta)
    with_positive = pairs.positive.any(dim=0).sum().clamp_min(1)
    return len(pull) * (pull / with_positive + push / pairs.similarity.shape[1])


def _log_sums(similarity: Tensor, mask: Tensor, scale: float, delta: float) -> Tensor:
    """[Q]: Σ over columns of log(1 + Σ e^{scale·s + |scale|·δ}), each divided among the rows of its sum."""
    logarithm, shares = logsumexp_and_shares(similarity, mask, dim=0, scale=scale)  # [P] and [Q, P]
    return shares.detach() @ F.softplus(logarithm + abs(scale) * delta)  # a sum of nothing has log(1)


class ProxyAnchor(ProxyLoss):
    """Proxy-Anchor: each proxy pulls its hardest images of the batch most, and pushes the nearest others.

    The proxies take turns as anchors over the batch: unlike with Proxy-NCA, its images compete with one
    another. It converges as fast as losses over proxies do, to what losses over pairs reach.

    From: Kim et al., Proxy Anchor Loss for Deep Metric Learning, CVPR 2020, Eq. 4; α = 32, δ = 0.1. The
    proxies are parameters: give `loss.parameters()` to the optimizer, at 100 times the base rate.

    Prefer it with up to some ten thousand classes of several images each, known before training: it is robust
    and needs no particular batches. The two averages are over proxies, not images, and belong to a batch;
    queries get shares of them. Candidates passed to the call are not used: the proxies are the candidates.
    pytorch-metric-learning's is the same.

    Args:
        classes: number of classes. Labels must be below it.
        dim: dimensions of the embedding.
        alpha: α, how much the hardest images of a proxy outweigh the others.
        delta: δ, the margin in cosine.
        reduction: over queries; the mean is the paper's loss.

    >>> import torch
    >>> loss = ProxyAnchor(classes=3, dim=4)
    >>> loss(torch.eye(4, requires_grad=True), torch.tensor([0, 1, 2, 2])).backward()
    >>> loss.proxies.grad.shape
    torch.Size([3, 4])
    """

    def __init__(
        self, classes: int, dim: int, alpha: float = 32.0, delta: float = 0.1, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(classes, dim, reduction=reduction)
        if not 0 < alpha < float("inf"):
            raise UserError(f"ProxyAnchor(alpha={alpha}): alpha must be positive and finite")
        if not 0 <= delta <= 1:
            raise UserError(f"ProxyAnchor(delta={delta}): delta is a margin in cosine, 0 <= delta <= 1")
        self.alpha = alpha
        self.delta = delta

    def proxy_terms(self, pairs: Pairs) -> Tensor:
        """[Q]: each query's share of the averages over proxies."""
        return proxy_anchor(pairs, self.alpha, self.delta)
