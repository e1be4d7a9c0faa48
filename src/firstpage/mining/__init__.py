"""Mining: who is looked at. A product of positive and negative strategies, and three of their own kind.

`mine(pairs, positives, negatives)` chooses from {all, easy, hard, random} × {all, hard, semihard, uniform,
distance_weighted}. `boundary` (Sampling Wisely), `nontrivial` (Ranked List) and `multi_similarity` (the
loss of that name) choose both sides at once. Every loss with a `mining` argument takes any of them.

>>> import torch
>>> from firstpage import Pairs, mining
>>> pairs = Pairs.of(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]), torch.tensor([0, 0, 1]))
>>> anchors, positives, negatives = mining.mine(pairs, "easy", "hard").triplets()
"""

from firstpage.mining.boundary import boundary
from firstpage.mining.mined import Mined, Strategy
from firstpage.mining.multi_similarity import multi_similarity
from firstpage.mining.negatives import NegativeStrategy, distance_weighted, for_pairs, log_density, semihard
from firstpage.mining.nontrivial import nontrivial
from firstpage.mining.positives import PositiveStrategy
from firstpage.mining.product import mine, product

__all__ = [
    "Mined",
    "NegativeStrategy",
    "PositiveStrategy",
    "Strategy",
    "boundary",
    "distance_weighted",
    "for_pairs",
    "log_density",
    "mine",
    "multi_similarity",
    "nontrivial",
    "product",
    "semihard",
]
