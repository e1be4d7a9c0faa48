"""Top-k precision loss (Sampling Wisely)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, SupportsIndex

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction, masked_sum
from firstpage.pairs import Pairs

NEAREST = 0.01  # distance below which the logarithm of a distance is constant: copies have no gradient


def topk_precision(pairs: Pairs, k: int | Sequence[int] = 5, margin: float = 0.1) -> Tensor:
    """[Q]: ℓ_k = Σ_N ŝ − Σ_P ŝ over the misplaced images beside the top-k boundary (Eq. 5).

    Positive i, best first, is misplaced if it is behind the (k − i + 1)-th negative, which then holds its
    place: ℓ_k = Σ_{i ≤ k} [ŝ⁻_(k−i+1) − ŝ⁺_(i)]₊. For several k it is the mean over these pages.

    The paper's second example, k = 5 with six positives and four negatives (Figure 3):

    >>> scores = torch.tensor([0.99, 0.9, 0.8, 0.7, 0.65, 0.55, 0.53, 0.5, 0.4, 0.3])
    >>> others = torch.stack([scores, (1 - scores**2).sqrt()], dim=1)
    >>> same = torch.tensor([1, 1, 0, 1, 0, 1, 1, 0, 1, 0])
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), others, same)
    >>> topk_precision(pairs, k=5, margin=0.0)
    tensor([0.3700])
    """
    similarity = pairs.similarity
    # With fewer candidates than k, all of them are on the page.
    pages = [min(page, similarity.shape[1]) for page in (k if isinstance(k, Sequence) else [k])]
    longest = max(pages)
    none = torch.finfo(similarity.dtype).min  # where there is no further positive or negative
    positives, negatives = (scores.topk(longest).values for scores in _split_scores(pairs))  # [Q, longest]
    negatives = negatives.flip(1)
    if len(pages) > 1:
        positives = torch.cat([positives[:, :page] for page in pages], dim=1)
        negatives = torch.cat([negatives[:, longest - page :] for page in pages], dim=1)
    gaps = (negatives - positives + margin).relu()
    return masked_sum(gaps, positives > none) / len(pages)


def whole_page(pairs: Pairs, margin: float = 0.1) -> Tensor:
    """[Q]: ℓ_k with k the number of each query's positives: all of them before every negative.

    Positive i of n, best first, is compared with the (n − i + 1)-th negative, as in `topk_precision`.

    >>> scores = torch.tensor([[0.9, 0.5, 0.7, 0.2]])
    >>> others = torch.stack([scores, (1 - scores**2).sqrt()], dim=-1)[0]
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), others, torch.tensor([1, 1, 0, 0]))
    >>> whole_page(pairs, margin=0.0)  # 0.7 − 0.5
    tensor([0.2000])
    """
    positives, negatives = (
        scores.sort(dim=1, descending=True).values for scores in _split_scores(pairs)
    )  # [Q, C]
    count = pairs.positive.sum(dim=1, keepdim=True)
    order = torch.arange(positives.shape[1], device=count.device)
    opposite = negatives.gather(1, (count - 1 - order).clamp_min(0))
    return masked_sum((opposite - positives + margin).relu(), order < count)


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
    0 when the page is right by the margin: lowering ℓ_k raises precision at k (Theorems 1–4). For several k,
    such as `k=[1, 2, 4, 8, 16, 32]`, it is the mean over pages of these lengths: a query then learns from
    more of its negatives, which matters where it has few positives. With `whole`, a batch in which most first
    results are right asks for all positives of each query instead: easy data wants that, hard data does not.

    From: Lu et al., Sampling Wisely: Deep Image Embedding by Top-k Precision Optimization, ICCV 2019, Eq. 5.

    Prefer it when the first page is what counts. Keep a single k at or below the positives a query has in its
    batch (images a class, less one); beyond that it asks for a page that the batch cannot fill.
    `mining.boundary` hands the same images to other losses.

    By cosines, as in the paper, it can collapse: a step moves all embeddings toward their common mean by
    Σ (s_n − s_p) over the pairs that it compares, so that it contracts them as long as negatives are nearer
    than positives (docs/methods.md). `score="log"` ranks by −log d instead: no step contracts them, and a
    negative must be farther than a positive by the factor e^γ. A recipe that names just `topk` takes it.

    The paper sums over queries, the mean is the default here. Its released code also adds
    0.1·‖Cov(f) − I‖_F over the batch, which the paper does not mention: `decorrelation=0.1`. It takes
    margin 0.05 on CUB and Cars and 0.2 on Online Products.

    Args:
        k: the length of the first page, or several of them.
        margin: γ, by how much a negative must stay behind, in units of the score.
        decorrelation: weight of ‖Cov(f) − I‖_F over the batch, which the paper does not mention.
        reduction: over queries.
        score: what candidates are ranked by: `cosine`, or `log` for −log of the distance.
        whole: where most queries of a batch have a right first result, take k = the positives of each.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6], [0.0, 1.0]])
    >>> TopKPrecision(k=1)(embeddings, torch.tensor([0, 0, 1, 1]))
    tensor(0.3800)
    """

    def __init__(
        self,
        k: int | tuple[int, ...] = 5,
        margin: float = 0.1,
        decorrelation: float = 0.0,
        reduction: Reduction = "mean",
        score: Literal["cosine", "log"] = "cosine",
        whole: bool = False,
    ) -> None:
        super().__init__(reduction)
        pages = k if isinstance(k, Sequence) else (k,)
        if not pages or not all(isinstance(page, SupportsIndex) for page in pages):
            raise UserError(f"TopKPrecision(k={k}): k must be a whole number, or several")
        if min(pages) < 1:
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
        self.whole = whole

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: ℓ_k of each query."""
        scored = log_distance_score(pairs) if self.score == "log" else pairs
        terms = topk_precision(scored, self.k, self.margin)
        if self.whole:
            terms = torch.where(_are_most_right(scored), whole_page(scored, self.margin), terms)
        if self.decorrelation:
            vectors = pairs.unit_queries
            centered = vectors - vectors.mean(dim=0)
            covariance = centered.T @ centered / len(vectors)  # [D, D]
            identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
            terms = terms + self.decorrelation * torch.linalg.matrix_norm(covariance - identity)
        return terms


def _split_scores(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """[Q, C] scores of positives and of negatives, the least number where a candidate is not one."""
    none = torch.finfo(pairs.similarity.dtype).min
    positives = torch.where(pairs.positive, pairs.similarity, none)
    return positives, torch.where(pairs.negative, pairs.similarity, none)


def _are_most_right(pairs: Pairs) -> Tensor:
    """[]: whether more than half of the queries that have positives have one before every negative."""
    positives, negatives = _split_scores(pairs)
    right = positives.amax(dim=1) > negatives.amax(dim=1)
    return 2 * right.count_nonzero() > pairs.positive.any(dim=1).count_nonzero()
