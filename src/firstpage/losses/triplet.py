"""Triplet losses, in three forms and over any mining."""

from typing import Literal

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from firstpage.errors import UserError
from firstpage.losses.base import MinedLoss, Reduction, masked_mean, masked_sum
from firstpage.mining import Mined, NegativeStrategy, PositiveStrategy, Strategy
from firstpage.pairs import Pairs

Form = Literal["cosine", "l2", "l2_squared"]
_MARGINS: dict[str, float] = {"cosine": 0.1, "l2": 0.2, "l2_squared": 0.2}


def triplet(pairs: Pairs, mined: Mined, form: Form = "cosine", margin: float = 0.1) -> Tensor:
    """[Q]: the mean of [x_an − x_ap + margin]₊ over a query's triplets.

    x is the similarity s (Sampling Wisely, Eq. 1), −d (`l2`) or −d² (`l2_squared`, Sampling Matters, §3–4).

    >>> from firstpage.mining import mine
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), torch.tensor([0, 0, 1]))
    >>> triplet(pairs, mine(pairs))
    tensor([0.0000, 0.2600, 0.0000])
    """
    if form == "cosine":
        score = pairs.similarity
    elif form == "l2":
        score = -pairs.distance
    else:
        score = 2 * pairs.similarity - 2
    positive, negative = mined.of_both(score)
    if mined.paired:
        return masked_mean((negative - positive + margin).relu(), mined.comparable)
    violation = sum_of_hinges(positive - margin, negative, mined.negative_mask)  # [Q, M]
    triplets = mined.positive_mask.sum(dim=1) * mined.negative_mask.sum(dim=1)
    return masked_sum(violation, mined.positive_mask) / triplets.clamp_min(1)


def sum_of_hinges(bound: Tensor, negative: Tensor, mask: Tensor) -> Tensor:
    """[Q, M]: Σ_k [negative_k − bound]₊ for every bound, without a [Q, M, K] tensor.

    The negatives above a bound are the tail of the sorted row: their sum less as many bounds. The running
    sums are in float64, because the difference of two large ones is what is wanted.

    >>> sum_of_hinges(torch.tensor([[0.5]]), torch.tensor([[0.75, 1.0, 0.0, 9.0]]), torch.arange(4) < 3)
    tensor([[0.7500]])
    """
    ordered = torch.where(mask, negative, -torch.inf).sort(dim=1, descending=True).values
    # The sums that reach −∞ are those of masked entries, which are above no bound.
    tails = F.pad(ordered.cumsum(dim=1, dtype=torch.float64), (1, 0))  # [Q, K + 1]
    above = torch.searchsorted(-ordered.detach(), -bound.detach())  # how many are larger
    return (tails.gather(1, above) - above * bound.double()).to(bound.dtype)


class Triplet(MinedLoss):
    """Triplet loss: a query's negative should be farther than its positive by a margin.

    Three forms: `cosine` [s_an − s_ap + γ]₊ (Sampling Wisely, Eq. 1), `l2` [d_ap − d_an + α]₊ and
    `l2_squared` [d_ap² − d_an² + α]₊ (Sampling Matters, §3–4). The squared form's push fades for the
    hardest negatives, which is how hard mining collapses a space; `l2` pushes alike at every distance.

    From: Weinberger & Saul 2009; Schroff et al., FaceNet, CVPR 2015 (semi-hard). The papers' baselines are
    `triplet-uniform`, `-hard` (Hermans et al. 2017: hardest positive, hardest negative), `-semihard` and
    `-distance`, all of the cosine form.

    Prefer `semihard` negatives where you need a plain, stable baseline. Hard mining is fragile on noisy
    labels. All positives × all negatives costs a sort a row, not N³; the mean is over all triplets, zeros
    included, whereas pytorch-metric-learning averages the non-zero ones by default.

    Args:
        form: `cosine`, `l2` or `l2_squared`.
        margin: γ or α; 0.1 for the cosine form, 0.2 for the others if left out.
        positives: positive strategy.
        negatives: negative strategy.
        mining: a strategy for both sides, in place of the two.
        generator: for strategies that draw.
        reduction: over queries.

    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
    >>> Triplet(negatives="hard", reduction="none")(points, torch.tensor([0, 0, 1]))
    tensor([0.0000, 0.2600, 0.0000])
    """

    def __init__(
        self,
        form: Form = "cosine",
        margin: float | None = None,
        positives: str | PositiveStrategy = "all",
        negatives: str | NegativeStrategy = "semihard",
        mining: Strategy | None = None,
        generator: Generator | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(positives, negatives, mining, generator, reduction)
        if not isinstance(form, str) or form not in _MARGINS:
            raise UserError(f"Triplet(form={form!r}): choose one of {', '.join(_MARGINS)}")
        if margin is not None and not margin >= 0:
            raise UserError(f"Triplet(margin={margin}): margin must not be negative")
        self.form: Form = form
        self.margin = _MARGINS[form] if margin is None else margin

    def mined_terms(self, pairs: Pairs, mined: Mined) -> Tensor:
        """[Q]: the mean hinge over each query's triplets."""
        return triplet(pairs, mined, self.form, self.margin)
