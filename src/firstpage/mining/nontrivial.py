"""The non-trivial sets of the ranked list loss (Ranked List, §3.2)."""

from functools import partial

from torch import Generator

from firstpage.errors import UserError
from firstpage.mining.mined import Mined, Strategy
from firstpage.pairs import Pairs


def nontrivial(alpha: float = 1.2, margin: float = 0.4) -> Strategy:
    """Positives farther than `alpha − margin` and negatives closer than `alpha`: all that have a loss.

    >>> import torch
    >>> points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
    >>> pairs = Pairs.of(points, torch.tensor([0, 0, 1]))
    >>> nontrivial()(pairs, None).pairs()
    ((tensor([0, 1]), tensor([1, 0])), (tensor([0, 1, 2, 2]), tensor([2, 2, 0, 1])))
    """
    if not 0 < alpha <= 2:
        raise UserError(f"nontrivial(alpha={alpha}): alpha is a distance on the sphere, 0 < alpha <= 2")
    if not 0 <= margin <= alpha:
        raise UserError(f"nontrivial(margin={margin}): need 0 <= margin <= alpha={alpha}")
    return partial(_nontrivial, alpha=alpha, margin=margin)


def _nontrivial(pairs: Pairs, generator: Generator | None, *, alpha: float, margin: float) -> Mined:
    distance = pairs.distance.detach()
    return Mined(
        positives=None,
        positive_mask=pairs.positive & (distance > alpha - margin),
        negatives=None,
        negative_mask=pairs.negative & (distance < alpha),
        paired=False,
    )
