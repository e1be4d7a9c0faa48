"""SoftTriple loss."""

import torch
from torch import Tensor

from firstpage._sphere import Context, short
from firstpage.errors import UserError
from firstpage.losses.base import Reduction, masked_sum
from firstpage.losses.proxies import ProxyLoss
from firstpage.pairs import Pairs, full_precision


def soft_triple(
    pairs: Pairs,
    per_class: int = 10,
    scale: float = 20.0,
    gamma: float = 0.1,
    delta: float = 0.01,
    tau: float = 0.2,
) -> Tensor:
    """[Q]: the cross-entropy over λ(S_c − δ·1[c = y]), S_c = Σ_k softmax_k(s_ck/γ) s_ck, plus τ·R.

    The candidates are the centers, `per_class` of each class in order. R = Σ_c Σ_{t<u} ‖w_t − w_u‖ /
    (C K (K − 1)) lets centers of a class merge; it belongs to no query and is in every term.

    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), torch.eye(2), torch.arange(2))
    >>> soft_triple(pairs, per_class=1, scale=2.0)  # log(1 + e^(-2 * 0.99))
    tensor([0.1293])
    """
    to_centers = pairs.similarity.reshape(len(pairs.labels), -1, per_class)  # [Q, C, K]
    to_class = _soft_maximum(to_centers, gamma)  # [Q, C]
    own = pairs.labels[:, None] == pairs.candidate_labels[::per_class]
    logits = scale * (to_class - delta * own)
    cost = -masked_sum(logits.log_softmax(dim=1), own)  # 0 without a class
    return cost + tau * _mean_spread(pairs.unit_candidates, per_class) if tau else cost


def _soft_maximum(values: Tensor, gamma: float) -> Tensor:
    """Σ_k softmax_k(x_k/γ) x_k over the last dimension."""
    if short(values):
        mean: Tensor = _SoftMaximum.apply(values, gamma)  # type: ignore[no-untyped-call]
        return mean
    return ((values / gamma).softmax(dim=-1) * values).sum(dim=-1)


class _SoftMaximum(torch.autograd.Function):
    """S = Σ_k p_k x_k, p = softmax(x/γ). The gradient is g·p_k (1 + (x_k − S)/γ)."""

    @staticmethod
    def forward(ctx: Context, values: Tensor, gamma: float) -> Tensor:
        scaled = values / gamma
        shares = scaled.softmax(dim=-1)
        mean = gamma * scaled.mul_(shares).sum(dim=-1)
        ctx.save_for_backward(values, shares, mean)
        ctx.gamma = gamma  # type: ignore[attr-defined]
        return mean

    @staticmethod
    def backward(ctx: Context, gradient: Tensor) -> tuple[Tensor, None]:
        values, shares, mean = ctx.saved_tensors
        gamma: float = ctx.gamma  # type: ignore[attr-defined]
        if torch.is_grad_enabled():  # the gradient is itself differentiated, so the shares must be
            shares = (values / gamma).softmax(dim=-1)
        slope = values - (mean - gamma).unsqueeze(-1)
        return slope.mul_(shares).mul_((gradient / gamma).unsqueeze(-1)), None


def _mean_spread(centers: Tensor, per_class: int) -> Tensor:
    """Half the mean distance between centers of one class; 0 if each has but one."""
    vectors = centers.view(-1, per_class, centers.shape[1])  # [C, K, D]
    with full_precision(centers):
        squared = 2 - 2 * vectors @ vectors.mT  # [C, K, K]
    # The paper's 1e-5 keeps the slope finite where centers have merged; rounding may be below 0 there.
    distance = (squared.clamp_min(0) + 1e-5).sqrt().triu(diagonal=1)
    return distance.sum() / max(1, len(vectors) * per_class * (per_class - 1))


class SoftTriple(ProxyLoss):
    """SoftTriple: a softmax over classes, each of which has several learned centers.

    An image belongs to the centers of its class that are near, softly, so a class may have several looks. A
    softmax loss with one center a class is a triplet loss smoothed over all triplets; centers that are not
    needed merge by the term τ·R.

    From: Qian et al., SoftTriple Loss: Deep Metric Learning Without Triplet Sampling, ICCV 2019;
    λ = 20, γ = 0.1, δ = 0.01, τ = 0.2, K = 10. The centers are the parameter `proxies`: give
    `loss.parameters()` to the optimizer, at 100 times the base rate.

    Prefer it where classes have several looks and there are enough images of each to fill them. It costs
    `per_class` times what one proxy a class costs. Candidates passed to the call are not used: the centers
    are the candidates. pytorch-metric-learning leaves the term τ·R out by default.

    Args:
        classes: number of classes. Labels must be below it.
        dim: dimensions of the embedding.
        per_class: K, centers of each class.
        scale: λ, what the similarities are multiplied by.
        gamma: γ, how softly an image belongs to centers: near 0 the nearest one alone counts.
        delta: δ, the margin in cosine.
        tau: τ, weight of the distances between centers of a class.
        reduction: over queries.

    >>> loss = SoftTriple(classes=3, dim=4, per_class=2)
    >>> loss(torch.eye(4, requires_grad=True), torch.tensor([0, 1, 2, 2])).backward()
    >>> loss.proxies.grad.shape
    torch.Size([6, 4])
    """

    def __init__(
        self,
        classes: int,
        dim: int,
        per_class: int = 10,
        scale: float = 20.0,
        gamma: float = 0.1,
        delta: float = 0.01,
        tau: float = 0.2,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(classes, dim, per_class, reduction)
        if not (0 < scale < float("inf") and gamma > 0):
            raise UserError(f"SoftTriple(scale={scale}, gamma={gamma}): both must be positive, scale finite")
        if not 0 <= delta <= 1:
            raise UserError(f"SoftTriple(delta={delta}): delta is a margin in cosine, 0 <= delta <= 1")
        if not 0 <= tau < float("inf"):
            raise UserError(f"SoftTriple(tau={tau}): need 0 <= tau < infinity")
        self.scale = scale
        self.gamma = gamma
        self.delta = delta
        self.tau = tau

    def proxy_terms(self, pairs: Pairs) -> Tensor:
        """[Q]: each query's cross-entropy over classes, and the spread of the centers."""
        return soft_triple(pairs, self.per_class, self.scale, self.gamma, self.delta, self.tau)
