"""Recall@k surrogate loss."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Generator, Tensor

from firstpage.errors import UserError
from firstpage.losses.base import Loss, Reduction, masked_sum
from firstpage.losses.ranking import Step, count_above, slots
from firstpage.pairs import Pairs, full_precision

KS = (1, 2, 4, 8, 16)


def recall_at_k(pairs: Pairs, ks: Sequence[int] = KS, temperature: float = 0.01) -> Tensor:
    """[Q]: 1 − Σ_{x∈P} σ(k − rank(x)) / min(k, |P|), the mean over `ks`.

    rank(x) = 1 + Σ_{z≠x} σ((s_z − s_x)/τ).

    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]]), torch.tensor([0, 0, 1]))
    >>> recall_at_k(pairs, [1])  # the positive has rank 2: 1 - σ(1 - 2)
    tensor([0.7311, 0.7311, 0.0000])
    """
    # The p-th positive has at least p − 1 others half above it, so a rank of at least (p + 1)/2. Those that
    # cannot come within 40 ranks of k add less than 1e-17: leaving them out is exact.
    most = slots(pairs, 2 * (max(ks) + 40))
    similarity = pairs.similarity.detach()
    best, index = similarity.masked_fill(~pairs.positive, -torch.inf).topk(most, dim=1)
    positives, negatives = count_above(pairs, index, Step(temperature))
    rank = positives + negatives + 0.5  # 1 more, and without itself, σ(0) = 0.5
    count = pairs.positive.sum(dim=1)
    recalls = [
        masked_sum((k - rank).sigmoid(), best > -torch.inf) / count.clamp(1, k).to(rank.dtype) for k in ks
    ]
    return torch.where(count > 0, 1 - torch.stack(recalls).mean(dim=0), 0.0)


def simix(pairs: Pairs, count: int = 1, generator: Generator | None = None) -> Pairs:
    """The same pairs with `count` mixed images for each query, as further queries and candidates.

    A mixed image is αx + (1 − α)z of a query x and one of its positives z, α uniform on 0…1, both of unit
    length; it is of their class, and neither it nor its parents are candidates of one another, nor are two of
    the same query. Its similarities are the mixture of its parents': it is not normalized. Queries without a
    positive have no mixed image: their rows and columns are in no mask.

    Returns:
        Pairs of (1 + count)·Q queries, mixed ones last, and C + count·Q candidates, mixed ones last.

    >>> pairs = Pairs.of(torch.eye(3), torch.tensor([0, 0, 1]))
    >>> simix(pairs).positive.int()  # 0 and 1 have a mixed image each, of one another
    tensor([[0, 1, 0, 0, 0, 0],
            [1, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 1, 0],
            [0, 0, 0, 1, 0, 0],
            [0, 0, 0, 0, 0, 0]], dtype=torch.int32)
    """
    device = pairs.labels.device
    lots = torch.rand(count, *pairs.positive.shape, generator=generator, device=device)
    partner = lots.masked_fill(~pairs.positive, -1.0).argmax(dim=2).flatten()  # [count·Q]
    alpha = torch.rand(len(partner), 1, generator=generator, device=device, dtype=pairs.similarity.dtype)
    origin = torch.arange(len(pairs.labels), device=device).repeat(count)  # which query each is of
    real, others = pairs.unit_queries, pairs.unit_candidates
    mixed = alpha * real[origin] + (1 - alpha) * others[partner]
    with full_precision(mixed):
        top = torch.cat([pairs.similarity, real @ mixed.T], dim=1)
        bottom = mixed @ torch.cat([others, mixed]).T
    labels = pairs.labels[origin]
    positive, negative = _extended_masks(pairs, origin, partner)
    return replace(
        pairs,
        queries=torch.cat([pairs.queries, mixed]),
        labels=torch.cat([pairs.labels, labels]),
        candidates=torch.cat([pairs.candidates, mixed]),
        candidate_labels=torch.cat([pairs.candidate_labels, labels]),
        similarity=torch.cat([top, bottom]),
        positive=positive,
        negative=negative,
        image_ids=None,
    )


def _extended_masks(pairs: Pairs, origin: Tensor, partner: Tensor) -> tuple[Tensor, Tensor]:
    """Both masks with a row and a column for each mixed image, which is that of a query and its partner."""
    order, place = (torch.arange(size, device=origin.device) for size in pairs.positive.shape)
    exists = pairs.positive.any(dim=1)[origin]  # [M]
    itself = ~(pairs.positive | pairs.negative)  # [Q, C]
    own = order[:, None] == origin  # [Q, M]
    of_query = exists & ~own & ~itself[:, partner]
    of_mixed = (place != partner[:, None]) & exists[:, None]  # [M, C] its query is in no mask already
    among_mixed = exists & exists[:, None] & ~own[origin]  # [M, M]
    same = pairs.labels[:, None] == pairs.labels[origin]  # [Q, M]

    def extended(mask: Tensor, alike: Tensor) -> Tensor:
        upper = torch.cat([mask, of_query & alike], dim=1)
        return torch.cat([upper, torch.cat([mask[origin] & of_mixed, among_mixed & alike[origin]], dim=1)])

    return extended(pairs.positive, same), extended(pairs.negative, ~same)


class RecallAtK(Loss):
    """Recall@k surrogate: how many of a query's positives are among its first k, for several k at once.

    A sigmoid takes the place of the step twice: in the rank of a positive, and in whether it is within k.

    From: Patel et al., Recall@k Surrogate Loss with Large Batches and Similarity Mixup, CVPR 2022;
    k ∈ {1, 2, 4, 8, 16}, τ = 0.01. SiMix (`simix`) enlarges the batch by mixtures of images of one class. The
    paper mixes all pairs of a class; here each query is mixed with `simix` of its positives, drawn at random,
    and a query's term is the mean of its own and its mixtures'.

    Prefer it with batches of 400 to 4,000 (`batch.chunk`), where a rank in the batch resembles a rank in the
    gallery, and 4 images a class. `TopKPrecision` is the hinge to this sigmoid.

    Memory is O(N²), time that of N² times the positives a query has. On a GPU, where looking at the labels
    would wait, the latter is 2·(max k + 40) (or the candidates, if fewer): 4,096 images are 2·10⁹ sigmoids.
    SiMix makes N as many times larger.

    Args:
        ks: the lengths k of the list.
        temperature: τ of the sigmoid in the rank; that of k − rank is 1.
        simix: mixed images a query; 0 for none.
        generator: for the mixing.
        reduction: over queries.

    >>> points = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    >>> RecallAtK(ks=(1,))(points, torch.tensor([0, 0, 1]))
    tensor(0.4874)
    """

    def __init__(
        self,
        ks: tuple[int, ...] = KS,
        temperature: float = 0.01,
        simix: int = 0,
        generator: Generator | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        if not ks or any(k < 1 for k in ks):
            raise UserError(
                f"RecallAtK(ks={ks}): give one or more whole numbers from 1 on, such as (1, 2, 4)"
            )
        if not temperature > 0:
            raise UserError(f"RecallAtK(temperature={temperature}): temperature must be positive")
        if simix < 0:
            raise UserError(f"RecallAtK(simix={simix}): simix must not be negative")
        self.ks = tuple(ks)
        self.temperature = temperature
        self.simix = simix
        self.generator = generator

    def terms(self, pairs: Pairs) -> Tensor:
        """[Q]: 1 − the smooth recall of each query, its mixed images averaged in."""
        if self.simix:
            pairs = simix(pairs, self.simix, self.generator)
        terms = recall_at_k(pairs, self.ks, self.temperature)
        return terms.view(1 + self.simix, -1).mean(dim=0)
