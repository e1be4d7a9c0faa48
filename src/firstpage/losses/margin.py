"""Margin loss (Sampling Matters)."""

import torch
from torch import Generator, Tensor, nn

from firstpage.errors import UserError
from firstpage.losses.base import MinedLoss, Reduction
from firstpage.mining import Mined, NegativeStrategy, PositiveStrategy, Strategy, for_pairs
from firstpage.pairs import Pairs, check_range


def margin(pairs: Pairs, mined: Mined, beta: Tensor, alpha: float = 0.2, nu: float = 0.0) -> Tensor:
    """[Q]: [α + d − β]₊ of the positive pairs and [α − d + β]₊ of the negative pairs, plus ν·β a pair.

    Sampling Matters, §4. All is divided by the number of active pairs in the batch, and the mean over
    queries is that quotient. `beta` holds one boundary per query, [Q].

    >>> from firstpage.mining import mine
    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
    >>> pairs = Pairs.of(points, torch.tensor([0, 0, 1]))
    >>> margin(pairs, mine(pairs, "all", "all"), torch.full((3,), 1.2)).mean()
    tensor(0.8114)
    """
    boundary = beta[:, None]
    distance = pairs.distance
    too_far = (mined.of_positives(distance) - (boundary - alpha)).relu() * mined.positive_mask
    too_close = ((boundary + alpha) - mined.of_negatives(distance)).relu() * mined.negative_mask
    active = too_far.count_nonzero() + too_close.count_nonzero()
    cost = too_far.sum(dim=1) + too_close.sum(dim=1)
    if nu:
        seen = mined.positive_mask.sum(dim=1) + mined.negative_mask.sum(dim=1)
        cost = cost + nu * beta * seen
    return cost * (len(cost) / active.clamp_min(1))


class Margin(MinedLoss):
    """Margin loss: positives within a learned boundary β, negatives beyond it, each by α.

    β(i) = β⁽⁰⁾ + β_class[c(i)] + β_img[i] is learned with the network: give `loss.parameters()` to the
    optimizer (the authors: SGD at 0.1 divided by the batch size). With `nu > 0` larger boundaries cost more;
    that cost is divided by the active pairs like the rest, so keep ν small once few are left.

    From: Wu et al., Sampling Matters in Deep Embedding Learning, ICCV 2017, §4. At its best β the loss is the
    isotonic regression that separates positive from negative distances with the least effort.

    Prefer it with distance weighted negatives and about five images a class; a strong default when classes
    differ in spread, which β_class absorbs. β_img the authors found inconclusive.

    Released code draws negatives from weights that underflow in high dimension (see
    `mining.distance_weighted`), and counts ν·β once a triplet; here, as in the paper's sum, once a pair.
    Only β_class is kept there, β⁽⁰⁾ being folded into its start value.

    Args:
        alpha: half the width of the band between positives and negatives.
        beta: where β⁽⁰⁾ starts.
        classes: number of classes; turns β_class on. Labels must be below it.
        images: number of images; turns β_img on. The call then needs `image_ids`, below it.
        nu: weight of the boundary's own cost.
        negatives: negative strategy; `semihard` takes the closest negative beyond distance 0.5.
        positives: positive strategy.
        mining: a strategy for both sides, in place of the two.
        learn_beta: False keeps β⁽⁰⁾ where it starts, as in the paper's Table 3.
        generator: for the draws.
        reduction: over queries; the mean is the sum over pairs divided by the number of active pairs.

    >>> loss = Margin(classes=2)
    >>> loss(torch.eye(4, requires_grad=True), torch.tensor([0, 0, 1, 1])).backward()
    >>> loss.beta.grad
    tensor(-1.)
    """

    def __init__(
        self,
        alpha: float = 0.2,
        beta: float = 1.2,
        classes: int | None = None,
        images: int | None = None,
        nu: float = 0.0,
        negatives: str | NegativeStrategy = "distance_weighted",
        positives: str | PositiveStrategy = "all",
        mining: Strategy | None = None,
        learn_beta: bool = True,
        generator: Generator | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(positives, for_pairs(negatives), mining, generator, reduction)
        for name, count in (("classes", classes), ("images", images)):
            if count is not None and count < 1:
                raise UserError(f"Margin({name}={count}): {name} must be at least 1, or None for no such β")
        if not 0 <= alpha < float("inf"):
            raise UserError(f"Margin(alpha={alpha}): need 0 <= alpha < infinity")
        if not 0 <= beta <= 2:
            raise UserError(f"Margin(beta={beta}): beta is a distance on the sphere, 0 <= beta <= 2")
        if not 0 <= nu < float("inf"):
            raise UserError(f"Margin(nu={nu}): need 0 <= nu < infinity")
        self.alpha = alpha
        self.nu = nu
        self.beta = nn.Parameter(torch.tensor(float(beta)), requires_grad=learn_beta)
        self.beta_class = None if classes is None else nn.Parameter(torch.zeros(classes))
        self.beta_image = None if images is None else nn.Parameter(torch.zeros(images))

    def boundary(self, pairs: Pairs) -> Tensor:
        """[Q]: β(i) of each query."""
        beta = self.beta.expand(len(pairs.labels))
        if self.beta_class is not None:
            check_range(
                "labels", pairs.labels, len(self.beta_class), f"Margin(classes={len(self.beta_class)})"
            )
            beta = beta + self.beta_class[pairs.labels]
        if self.beta_image is not None:
            if pairs.image_ids is None:
                raise UserError("image_ids=None: Margin(images=...) has a β for each image: pass image_ids")
            check_range(
                "image_ids", pairs.image_ids, len(self.beta_image), f"Margin(images={len(self.beta_image)})"
            )
            beta = beta + self.beta_image[pairs.image_ids]
        return beta.to(pairs.similarity.dtype)

    def mined_terms(self, pairs: Pairs, mined: Mined) -> Tensor:
        """[Q]: each query's pairs, divided by the batch's active pairs a query."""
        return margin(pairs, mined, self.boundary(pairs), self.alpha, self.nu)
