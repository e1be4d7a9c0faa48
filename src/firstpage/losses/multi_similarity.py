"""Multi-similarity loss."""

from torch import Generator, Tensor
from torch.nn import functional as F

from firstpage import mining as strategies
from firstpage.errors import UserError
from firstpage.losses.base import MinedLoss, Reduction, masked_logsumexp
from firstpage.mining import Mined, Strategy
from firstpage.pairs import Pairs


def multi_similarity(
    pairs: Pairs, mined: Mined, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5
) -> Tensor:
    """[Q]: (1/α) log(1 + Σ_p e^{−α(s−λ)}) + (1/β) log(1 + Σ_n e^{β(s−λ)}) over the mined pairs.

    >>> import torch
    >>> from firstpage.mining import multi_similarity as informative
    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> pairs = Pairs.of(points, torch.tensor([0, 0, 1, 1]))
    >>> multi_similarity(pairs, informative()(pairs, None))
    tensor([0.0000, 0.6787, 0.6787, 0.0000])
    """
    positive, negative = mined.of_both(pairs.similarity)
    pull = masked_logsumexp(positive, mined.positive_mask, scale=-alpha) + alpha * base
    push = masked_logsumexp(negative, mined.negative_mask, scale=beta) - beta * base
    return F.softplus(pull) / alpha + F.softplus(push) / beta


class MultiSimilarity(MinedLoss):
    """Multi-similarity loss: pairs weigh by their own similarity and by how it compares with the others.

    `mining.multi_similarity` first leaves out the pairs that are in order by ε; two soft maxima then weigh
    those that remain. With β far above α, few negatives, the hardest, but many positives have a gradient.

    From: Wang et al., Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning, CVPR 2019.

    Prefer it as a strong, plain loss over pairs where proxies do not fit: many classes, or new ones all the
    time. It wants 4 to 5 images a class. The paper sets β = 50, the authors' code 40.

    pytorch-metric-learning has the same loss, without mining unless a `MultiSimilarityMiner` is given.

    Args:
        alpha: how much harder positives weigh more.
        beta: how much harder negatives weigh more.
        base: λ, the similarity that positives should exceed and negatives stay below.
        epsilon: ε of `mining.multi_similarity`.
        mining: another strategy in its place; `mining.product("all", "all")` looks at every pair.
        generator: for strategies that draw.
        reduction: over queries.

    >>> import torch
    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> MultiSimilarity()(points, torch.tensor([0, 0, 1, 1]))
    tensor(0.3394)
    """

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 0.5,
        epsilon: float = 0.1,
        mining: Strategy | None = None,
        generator: Generator | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        informative = strategies.multi_similarity(epsilon)
        super().__init__("all", "all", informative if mining is None else mining, generator, reduction)
        if not (0 < alpha < float("inf") and 0 < beta < float("inf")):
            raise UserError(f"MultiSimilarity(alpha={alpha}, beta={beta}): both must be positive, finite")
        if not -1 <= base <= 1:
            raise UserError(f"MultiSimilarity(base={base}): base is a cosine, -1 <= base <= 1")
        self.alpha = alpha
        self.beta = beta
        self.base = base

    def mined_terms(self, pairs: Pairs, mined: Mined) -> Tensor:
        """[Q]: the two soft maxima over each query's chosen pairs."""
        return multi_similarity(pairs, mined, self.alpha, self.beta, self.base)
