"""Contrastive loss."""

from typing import Literal

import torch
from torch import Generator, Tensor

from firstpage.errors import UserError
from firstpage.losses.base import MinedLoss, Reduction
from firstpage.mining import Mined, NegativeStrategy, PositiveStrategy, Strategy, for_pairs
from firstpage.pairs import Pairs

Form = Literal["squared", "linear"]


def contrastive(pairs: Pairs, mined: Mined, margin: float = 1.0, form: Form = "squared") -> Tensor:
    """[Q]: d² of the positive pairs, [margin − d]₊² of the negative pairs (Sampling Matters, §3).

    The `linear` form is linear in d²: [margin − d²]₊ of the negative pairs (HDC, ABE). Either kind is
    averaged over its active pairs in the batch; the mean over queries is the sum of the two.

    >>> from firstpage.mining import mine
    >>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), torch.tensor([0, 0, 1]))
    >>> contrastive(pairs, mine(pairs)).mean()
    tensor(0.6627)
    """
    positive = torch.where(mined.positive_mask, mined.of_positives(pairs.squared_distance), 0.0)
    if form == "squared":
        pushed = (margin - mined.of_negatives(pairs.distance)).relu().square()
    else:
        pushed = (margin - mined.of_negatives(pairs.squared_distance)).relu()
    negative = torch.where(mined.negative_mask, pushed, 0.0)
    share = positive.sum(dim=1) / positive.count_nonzero().clamp_min(1)
    return len(positive) * (share + negative.sum(dim=1) / negative.count_nonzero().clamp_min(1))


class Contrastive(MinedLoss):
    """Contrastive loss: positives to one point, negatives at least `margin` away.

    From: Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, CVPR 2006; as compared
    in Sampling Matters, §3.

    Prefer `Margin`, which lets classes keep their spread: this is the baseline the papers start from, and
    one margin for all classes is its known weakness. Averaging over all negatives instead of the active ones
    would let the positives collapse the space.

    pytorch-metric-learning does not square the two parts.

    Args:
        margin: the distance beyond which a negative is left alone; its square, in the linear form.
        positives: positive strategy.
        negatives: negative strategy; `semihard` takes the closest negative beyond distance 0.5.
        mining: a strategy for both sides, in place of the two.
        generator: for strategies that draw.
        reduction: over queries.
        form: `squared` for [margin − d]₊² of a negative, `linear` for [margin − d²]₊ as in HDC and ABE.

    >>> Contrastive()(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), torch.tensor([0, 0, 1]))
    tensor(0.6627)
    """

    def __init__(
        self,
        margin: float = 1.0,
        positives: str | PositiveStrategy = "all",
        negatives: str | NegativeStrategy = "all",
        mining: Strategy | None = None,
        generator: Generator | None = None,
        reduction: Reduction = "mean",
        form: Form = "squared",
    ) -> None:
        super().__init__(positives, for_pairs(negatives), mining, generator, reduction)
        if not 0 < margin <= 2:
            raise UserError(
                f"Contrastive(margin={margin}): margin is a distance on the sphere, 0 < margin <= 2"
            )
        if form not in ("squared", "linear"):
            raise UserError(f"Contrastive(form={form!r}): must be squared or linear")
        self.margin = margin
        self.form: Form = form

    def mined_terms(self, pairs: Pairs, mined: Mined) -> Tensor:
        """[Q]: each query's share of the batch's two averages."""
        return contrastive(pairs, mined, self.margin, self.form)
