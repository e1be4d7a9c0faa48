"""Top-k precision loss (Sampling Wisely)."""

from dataclasses import replace
from typing import Literal, SupportsIndex

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction, masked_sum
from firstpage.mining import boundary
from firstpage.pairs import Pairs

NEAREST = 0.01  # distance below which the logarithm of a distance is constant: copies have no gradient


def topk_precision(pairs: Pairs, k: int = 5, margin: float = 0.1) -> Tensor:
    """[Q]: ℓ_k = Σ_N ŝ − Σ_P ŝ over the misplaced images beside the top-k boundary (Eq. 5).

    The paper's second example, k = 5 with six positives and four negatives (Figure 3):

    >>> scores = torch.tensor([0.99, 0.9, 0.8, 0.7, 0.65, 0.55, 0.53, 0.5, 0.4, 0.3])
    >>> others = torch.stack([scores, (1 - scores**2).sqrt()], dim=1)
    >>> same = torch.tensor([1, 1, 0, 1, 0, 1, 1, 0, 1, 0])
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), others, same)
    >>> topk_precision(pairs, k=5, margin=0.0)
    tensor([0.3700])
    """
    mined = boundary(k, margin)(pairs, None)
    positive, negative = mined.of_both(pairs.similarity)
    pushed = masked_sum(negative + margin, mined.negative_mask)
    pulled = masked_sum(positive, mined.positive_mask)
    return pushed - pulled


def log_distance_score(pairs: Pairs) -> Pairs:
    """The same pairs, scored by −log d instead of the cosine: the same ranking, whatever the scale of d.

    >>> pairs = Pairs.of(torch.eye(2), torch.tensor([0, 1]))
    >>> log_distance_score(pairs).similarity[0, 1]  # −log √2
    tensor(-0.3466)
    """
    return replace(pairs, similarity=-pairs.distance.clamp_min(NEAREST).log())


class TopKPrecision(Loss):
    """Top-k precision loss ℓ_k: the images that keep a first page of k results from being right.

    For each query it finds the positives that should be among the first k and are not, and the negatives
    that hold their places, and moves just those. γ·(negatives on the page) is a lower bound of it, and it is
    0 when the page is right by the margin: lowering ℓ_k raises precision at k (Theorems 1–4).

    From: Lu et al., Sampling Wisely: Deep Image Embedding by Top-k Precision Optimization, ICCV 2019, Eq. 5.

    Prefer it when the first page is what counts. Keep k at or below the positives a query has in its batch
    (images a class, less one); beyond that it asks for a page that the batch cannot fill. `mining.boundary`
    hands the same images to other losses.

    By cosines, as in the paper, it can collapse: a step moves all embeddings toward their common mean by
    Σ (s_n − s_p) over the pairs that it compares, so that it contracts them as long as negatives are nearer
    than positives (docs/methods.md). `score="log"` ranks by −log d instead: no step contracts them, and a
    negative must be farther than a positive by the factor e^γ. A recipe that names just `topk` takes it.

    The paper sums over queries, the mean is the default here. Its released code also adds
    0.1·‖Cov(f) − I‖_F over the batch, which the paper does not mention: `decorrelation=0.1`. It takes
    margin 0.05 on CUB and Cars and 0.2 on Online Products.

    Args:
        k: the length of the first page.
        margin: γ, by how much a negative must stay behind, in units of the score.
        decorrelation: weight of ‖Cov(f) − I‖_F over the batch, which the paper does not mention.
        reduction: over queries.
        score: what candidates are ranked by: `cosine`, or `log` for −log of the distance.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
    >>> TopKPrecision(k=1)(embeddings, torch.tensor([0, 0, 1, 1]))
    tensor(0.3800)
    """

    def __init__(
        self,
        k: int = 5,
        margin: float = 0.1,
        decorrelation: float = 0.0,
        reduction: Reduction = "mean",
        score: Literal["cosine", "log"] = "cosine",
    ) -> None:
        super().__init__(reduction)
        if not isinstance(k, SupportsIndex):
            raise UserError(f"TopKPrecision(k={k}): k must be a whole number")
        if k < 1:
            raise UserError(f"TopKPrecision(k={k}): k must be at least 1")
        if not 0 <= margin < float("inf"):
            raise UserError(f"TopKPrecision(margin={margin}): need 0 <= margin < infinity")
        if not decorrelation >= 0:
            raise UserError(
                f"TopKPrecision(decorrelation={decorrelation}): decorrelation must not be negative"
            )
        if score not in ("cosine", "log"):
            raise UserError(f"TopKPrecision(score={score!r}): must be cosine or log")
        self.k = k
        self.margin = margin
        self.decorrelation = decorrelation
        self.score = score

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: ℓ_k of each query."""
        scored = log_distance_score(pairs) if self.score == "log" else pairs
        terms = topk_precision(scored, self.k, self.margin)
        if self.decorrelation:
            vectors = pairs.unit_queries
            centered = vectors - vectors.mean(dim=0)
            covariance = centered.T @ centered / len(vectors)  # [D, D]
            identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
            terms = terms + self.decorrelation * torch.linalg.matrix_norm(covariance - identity)
        return terms
