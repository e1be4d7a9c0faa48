"""PDDM: hard quadruplets, mined by a learned similarity."""

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction
from firstpage.losses.pair_similarity import PairSimilarity
from firstpage.pairs import Pairs, unit


def hard_quadruplets(pairs: Pairs, similarity: PairSimilarity) -> tuple[Tensor, Tensor, Tensor]:
    """Return for each query i the candidates j, k and l [Q] of its hard quadruplet, by the similarity S.

    j is the least similar positive of i, k the most similar negative of i, and l that of j. For a query
    without a positive or without a negative they are any.

    >>> pairs = Pairs.of(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    >>> [chosen.shape for chosen in hard_quadruplets(pairs, PairSimilarity(dim=4))]
    [torch.Size([4]), torch.Size([4]), torch.Size([4])]
    """
    queries, candidates = unit(pairs.queries.detach()), unit(pairs.candidates.detach())
    table = similarity.table(queries, candidates)  # [Q, C]
    j = table.masked_fill(~pairs.positive, torch.inf).argmin(dim=1)
    k = table.masked_fill(~pairs.negative, -torch.inf).argmax(dim=1)
    alone = pairs.candidates is pairs.queries  # then the rows of j are there already
    theirs = table[j] if alone else similarity.table(candidates[j], candidates)
    others = pairs.labels[:, None] != pairs.candidate_labels
    return j, k, theirs.masked_fill(~others, -torch.inf).argmax(dim=1)


def pddm(
    pairs: Pairs, similarity: PairSimilarity, alpha: float = 0.5, beta: float = 1.0, weight: float = 0.5
) -> Tensor:
    """[Q]: two hinges of S and `weight` times two of d², over the hard quadruplet (i, j, k, l) of each query.

    [α + S_ik − S_ij]₊ + [α + S_jl − S_ij]₊ + weight ([β + d_ij² − d_ik²]₊ + [β + d_ij² − d_jl²]₊)

    >>> pairs, similarity = Pairs.of(torch.eye(4), torch.tensor([0, 0, 1, 2])), PairSimilarity(dim=4)
    >>> _ = torch.nn.init.zeros_(similarity.score.weight)  # all are equally similar, and equally far
    >>> pddm(pairs, similarity).detach()  # 2α + weight · 2β, or 0 without a positive
    tensor([2., 2., 0., 0.])
    """
    j, k, l = hard_quadruplets(pairs, similarity)  # noqa: E741 - the paper's
    queries, candidates = pairs.unit_queries, pairs.unit_candidates
    near, far, other = candidates[j], candidates[k], candidates[l]
    s_ij, s_ik, s_jl = similarity(torch.stack([queries, queries, near]), torch.stack([near, far, other]))
    d_ij, d_ik = (2 - 2 * pairs.similarity.gather(1, place[:, None]).squeeze(1) for place in (j, k))
    d_jl = 2 - 2 * (near * other).sum(dim=1)
    learned = (alpha + s_ik - s_ij).relu() + (alpha + s_jl - s_ij).relu()
    distances = (beta + d_ij - d_ik).relu() + (beta + d_ij - d_jl).relu()
    complete = pairs.positive.any(dim=1) & pairs.negative.any(dim=1)
    return torch.where(complete, learned + weight * distances, 0.0)


class PDDM(Loss):
    """PDDM: learns a similarity, mines hard quadruplets by it, and separates both S and distances.

    From: Huang et al., Local Similarity-Aware Deep Feature Embedding, NIPS 2016. A distance means another
    thing where images are dense than where they are sparse; the learned similarity S knows where two images
    are, and so finds the positives and negatives that are truly hard. Every query has a quadruplet of its
    own: itself, its least similar positive, and the most similar negative of either.

    S is a `PairSimilarity` with parameters: give `loss.parameters()` to the optimizer. With `model.rerank` it
    is saved with the model, and `Index.search(rerank=100)` orders the first results by it. S is compared for
    all pairs without gradient, in blocks, and with gradient for the quadruplets alone, so that memory stays
    bounded; it costs a pass of dim² for each pair, which is cheap for up to 512 images.

    Prefer it where you can afford to compare the first page once more at search time. S is no dot product,
    so it cannot search an index by itself.

    Args:
        dim: dimensions of the embedding.
        alpha: margin of S.
        beta: margin of squared distances.
        weight: of the hinges of distances.
        reduction: over queries.

    >>> loss = PDDM(dim=4)
    >>> loss(torch.eye(4, requires_grad=True), torch.tensor([0, 0, 1, 1])).backward()
    >>> loss.similarity.score.weight.grad.shape
    torch.Size([1, 4])
    """

    def __init__(
        self,
        dim: int,
        alpha: float = 0.5,
        beta: float = 1.0,
        weight: float = 0.5,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        for name, value in (("alpha", alpha), ("beta", beta), ("weight", weight)):
            if not 0 <= value < float("inf"):
                raise UserError(f"PDDM({name}={value}): need 0 <= {name} < infinity")
        self.alpha = alpha
        self.beta = beta
        self.weight = weight
        self.similarity = PairSimilarity(dim)

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: the four hinges of each query's quadruplet."""
        dim = pairs.queries.shape[1]
        if dim != self.similarity.dim:
            own = self.similarity.dim
            raise UserError(f"embeddings have {dim} dimensions: PDDM(dim={own}) needs dim={dim}")
        return pddm(pairs, self.similarity, self.alpha, self.beta, self.weight)
