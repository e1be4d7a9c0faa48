"""The informative pairs of the multi-similarity loss."""

from functools import partial

import torch
from torch import Generator

from firstpage.errors import UserError
from firstpage.mining.mined import Mined, Strategy
from firstpage.pairs import Pairs


def multi_similarity(epsilon: float = 0.1) -> Strategy:
    """Negatives above the least similar positive, positives below the most similar negative, within ε.

    A negative is kept if s_n + ε > min s_p, a positive if s_p − ε < max s_n (Wang et al., Multi-Similarity
    Loss, CVPR 2019). A query without a positive or without a negative has no pair.

    >>> points = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    >>> pairs = Pairs.of(points, torch.tensor([0, 0, 1, 1]))
    >>> multi_similarity()(pairs, None).pairs()
    ((tensor([1, 2]), tensor([0, 3])), (tensor([1, 2]), tensor([2, 1])))
    """
    if not 0 <= epsilon < float("inf"):
        raise UserError(f"multi_similarity(epsilon={epsilon}): need 0 <= epsilon < infinity")
    return partial(_multi_similarity, epsilon=epsilon)


def _multi_similarity(pairs: Pairs, generator: Generator | None, *, epsilon: float) -> Mined:
    similarity = pairs.similarity.detach()
    positives = torch.where(pairs.positive, similarity, torch.inf)
    negatives = torch.where(pairs.negative, similarity, -torch.inf)
    return Mined(
        positives=None,
        positive_mask=pairs.positive & (similarity - epsilon < negatives.amax(dim=1, keepdim=True)),
        negatives=None,
        negative_mask=pairs.negative & (similarity + epsilon > positives.amin(dim=1, keepdim=True)),
        paired=False,
    )
