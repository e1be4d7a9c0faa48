"""Proxy-NCA loss."""

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Reduction, masked_logsumexp, masked_sum
from firstpage.losses.proxies import ProxyLoss
from firstpage.pairs import Pairs


def proxy_nca(pairs: Pairs, scale: float = 3.0) -> Tensor:
    """[Q]: −log( e^{−‖f−p_y‖²} / Σ_{z≠y} e^{−‖f−p_z‖²} ), the candidates being the proxies.

    Ranked List, Eq. 5, with squared distances as in the original. Embeddings and proxies are unit vectors
    times `scale`.

    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.eye(2), torch.arange(2))
    >>> proxy_nca(pairs)  # its own proxy at squared distance 0, the other at 18
    tensor([-18.])
    """
    slope = 2 * scale**2  # −‖f − p‖² is slope·(s − 1), and the −1 of both parts of the quotient cancels
    others = masked_logsumexp(pairs.similarity, pairs.negative, scale=slope)
    own = slope * masked_sum(pairs.similarity, pairs.positive)
    learnable = pairs.positive.any(dim=1) & pairs.negative.any(dim=1)
    return torch.where(learnable, others - own, 0.0)


class ProxyNCA(ProxyLoss):
    """Proxy-NCA: each image near its class's learned proxy and far from all other proxies.

    From: Movshovitz-Attias et al., No Fuss Distance Metric Learning Using Proxies, ICCV 2017, Eq. 4. The
    proxies are parameters: give `loss.parameters()` to the optimizer, at 10 to 100 times the base rate.

    Prefer it when batches are too small to hold good negatives, and classes few enough that a vector each is
    cheap. It converges fast, since every class is a negative at every step. Candidates passed to the call are
    not used: the proxies are the candidates. The denominator leaves the own class out, as the paper does, so
    the loss may be negative; pytorch-metric-learning's is a softmax over all proxies.

    Args:
        classes: number of classes. Labels must be below it.
        dim: dimensions of the embedding.
        scale: length of embeddings and proxies.
        reduction: over queries.

    >>> loss = ProxyNCA(classes=3, dim=4)
    >>> loss(torch.eye(4, requires_grad=True), torch.tensor([0, 1, 2, 2])).backward()
    >>> loss.proxies.grad.shape
    torch.Size([3, 4])
    """

    def __init__(self, classes: int, dim: int, scale: float = 3.0, reduction: Reduction = "mean") -> None:
        super().__init__(classes, dim, reduction=reduction)
        if not scale > 0:
            raise UserError(f"ProxyNCA(scale={scale}): scale must be positive")
        self.scale = scale

    def proxy_terms(self, pairs: Pairs) -> Tensor:
        """[Q]: each query's own proxy against all others."""
        return proxy_nca(pairs, self.scale)
