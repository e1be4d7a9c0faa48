"""Negative strategies: which images of other classes a query looks at.

| name              | looks at                                                   | known from             |
|-------------------|------------------------------------------------------------|------------------------|
| all               | every negative                                             | batch all              |
| hard              | the most similar one, for each positive                    | Easy Positive §3.1     |
| semihard          | the most similar one that is less similar than the positive | FaceNet; Easy Positive |
| uniform           | one per positive, all equally likely                       | Sampling Matters       |
| distance_weighted | one per positive, as likely as its distance is rare        | Sampling Matters §4    |
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Generator, Tensor

from firstpage.errors import UserError
from firstpage.pairs import Pairs

NegativeStrategy = Callable[
    [Pairs, Tensor | None, Tensor, Generator | None], tuple[Tensor | None, Tensor, bool]
]
"""Given the positives' index and mask [Q, M]: the negatives' index, mask, and whether they are paired."""

_Chosen = tuple[Tensor | None, Tensor, bool]


def semihard(beyond: float | None = None) -> NegativeStrategy:
    """The closest negative that is farther away than the positive, or than the distance `beyond`.

    The first is FaceNet's and Easy Positive's rule for triplets, the second the rule for pair losses
    (contrastive, margin), where a negative has no positive of its own: Sampling Matters takes 0.5.
    A positive without such a negative is in no triplet.

    >>> from firstpage import mining
    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.96, 0.28], [0.0, 1.0]])
    >>> pairs = Pairs.of(points, torch.tensor([0, 0, 1, 2]))
    >>> mining.mine(pairs, "easy", semihard()).triplets()  # candidate 2 is closer than the positive
    (tensor([0, 1]), tensor([1, 0]), tensor([3, 3]))
    >>> mining.mine(pairs, "easy", semihard(beyond=0.2)).triplets()
    (tensor([0, 1]), tensor([1, 0]), tensor([2, 2]))
    """
    if beyond is not None and not 0 <= beyond < 2:
        raise UserError(f"semihard(beyond={beyond}): beyond is a distance on the sphere, 0 <= beyond < 2")
    return partial(_semihard, beyond=beyond)


def for_pairs(negatives: str | NegativeStrategy) -> str | NegativeStrategy:
    """The strategy of that name for a pair loss, where `semihard` means the closest beyond distance 0.5.

    >>> for_pairs("uniform")
    'uniform'
    """
    return semihard(beyond=0.5) if negatives == "semihard" else negatives


def distance_weighted(floor: float = 0.5, cutoff: float = 1.4, temperature: float = 1.0) -> NegativeStrategy:
    """One negative for each positive, drawn with probability ∝ q(d)^(−1/temperature).

    Sampling Matters, §4: on a sphere nearly all distances are about √2, so negatives drawn uniformly teach
    nothing and the hardest are noise. Weighting by the inverse density q of the distance spreads the draws
    over all distances.

    The weights are a softmax within each row of −log q, so no row can underflow; released code and
    pytorch-metric-learning subtract a maximum over the batch, which leaves rows of zeros from about 256
    dimensions on and then draws uniformly without a word. Done right, 512 dimensions come close to hard
    mining (two or three effective negatives of 120): raise `temperature` to widen the draw.

    Args:
        floor: distances below it count as it (the paper's λ, as a distance), so that the hardest
            negatives, which may be label noise, do not take all draws.
        cutoff: negatives at or beyond it are not drawn while the row has a closer one.
        temperature: 1 is the paper's; ∞ would be uniform among those before the cutoff.

    >>> from firstpage import mining
    >>> batch = torch.nn.functional.normalize(torch.randn(8, 512), dim=1)
    >>> pairs = Pairs.of(batch, torch.arange(8) // 2)
    >>> anchors, positives, negatives = mining.mine(pairs, "all", distance_weighted()).triplets()
    >>> bool(pairs.negative[anchors, negatives].all())
    True
    """
    if not 0 < floor < cutoff <= 2:
        raise UserError(f"distance_weighted(floor={floor}, cutoff={cutoff}): need 0 < floor < cutoff <= 2")
    if not temperature > 0:
        raise UserError(f"distance_weighted(temperature={temperature}): temperature must be positive")
    return partial(_distance_weighted, floor=floor, cutoff=cutoff, temperature=temperature)


def log_density(distance: Tensor, dimensions: int) -> Tensor:
    """The log of q(d) up to a constant: how common distance d is between points of a `dimensions`-sphere.

    Sampling Matters, §4: q(d) ∝ d^(D−2) (1 − d²/4)^((D−3)/2).

    >>> d = torch.tensor([0.5, 1.0, 1.4142, 1.8])
    >>> int(log_density(d, 128).argmax())  # nearly everything is √2 away
    2
    """
    return torch.xlogy(dimensions - 2, distance) + (dimensions - 3) / 2 * (distance.square() / -4).log1p()


def _all(pairs: Pairs, positives: Tensor | None, mask: Tensor, generator: Generator | None) -> _Chosen:
    return None, pairs.negative, False


def _hard(pairs: Pairs, positives: Tensor | None, mask: Tensor, generator: Generator | None) -> _Chosen:
    best, index = _similarity_of_negatives(pairs).max(dim=1, keepdim=True)
    return index.expand(mask.shape), mask & (best != -torch.inf), True


def _semihard(
    pairs: Pairs,
    positives: Tensor | None,
    mask: Tensor,
    generator: Generator | None,
    *,
    beyond: float | None = None,
) -> _Chosen:
    similarity = pairs.similarity.detach()
    if beyond is not None:
        bound = similarity.new_full((len(similarity), 1), 1 - beyond**2 / 2)
    else:
        bound = similarity if positives is None else similarity.gather(1, positives)  # [Q, M]
    negatives = _similarity_of_negatives(pairs)
    if bound.shape[1] == 1:
        negatives = torch.where(negatives < bound, negatives, -torch.inf)
        best, index = negatives.max(dim=1, keepdim=True)
        found = best > -torch.inf
    else:
        # Among sorted negatives, the last one below each bound: a search, not a [Q, M, C] comparison.
        ordered, order = negatives.sort(dim=1)
        rank = torch.searchsorted(ordered, bound.contiguous()) - 1
        index = order.gather(1, rank.clamp_min(0))
        found = (rank >= 0) & pairs.negative.gather(1, index)
    return index.expand(mask.shape), found & mask, True


def _uniform(pairs: Pairs, positives: Tensor | None, mask: Tensor, generator: Generator | None) -> _Chosen:
    return _draw(pairs.negative.to(pairs.similarity.dtype), pairs.negative, mask, generator)


def _distance_weighted(
    pairs: Pairs,
    positives: Tensor | None,
    mask: Tensor,
    generator: Generator | None,
    *,
    floor: float = 0.5,
    cutoff: float = 1.4,
    temperature: float = 1.0,
) -> _Chosen:
    distance = pairs.distance.detach()
    # Just short of the cutoff, because at d = 2 the density is 0 and its logarithm has no value.
    density = log_density(distance.clamp(floor, cutoff - 1e-6), pairs.queries.shape[1])
    # Those at the cutoff are drawn, all alike, only in a row where nothing outweighs them.
    lowest = torch.finfo(density.dtype).min
    log_weight = torch.where(distance < cutoff, density / -temperature, lowest / 8)
    weight = torch.where(pairs.negative, log_weight, lowest).softmax(dim=1)
    return _draw(weight, pairs.negative, mask, generator)


def _similarity_of_negatives(pairs: Pairs) -> Tensor:
    return torch.where(pairs.negative, pairs.similarity.detach(), -torch.inf)


def _draw(weight: Tensor, allowed: Tensor, mask: Tensor, generator: Generator | None) -> _Chosen:
    """One candidate for each column of `mask` [Q, M], with probability ∝ weight [Q, C].

    By inversion of the cumulative weights. Rounding at their upper end may point past the last one that has
    a weight; the heaviest takes that place, so a row with any `allowed` candidate always draws one.
    """
    cumulative = weight.cumsum(dim=1)
    lots = torch.rand(mask.shape, generator=generator, device=mask.device, dtype=weight.dtype)
    index = torch.searchsorted(cumulative, lots * cumulative[:, -1:], right=True)
    index = index.clamp_max(weight.shape[1] - 1)
    heaviest = weight.argmax(dim=1, keepdim=True)
    index = torch.where(weight.gather(1, index) > 0, index, heaviest)
    return index, mask & allowed.any(dim=1, keepdim=True), True


NEGATIVES: dict[str, NegativeStrategy] = {
    "all": _all,
    "hard": _hard,
    "semihard": _semihard,
    "uniform": _uniform,
    "distance_weighted": _distance_weighted,
}
