"""The hardest pairs of a batch."""

import torch
from torch import Tensor


def hardest(hardness: Tensor, mask: Tensor, count: Tensor) -> Tensor:
    """[Q, C]: the `count` pairs of `mask` that are hardest, over all queries together.

    Pairs as hard as the last one that is chosen, up to rounding, are chosen too: a pair goes with its
    reverse, and the order of a batch does not matter.

    Args:
        hardness: [Q, C] distance of positives, similarity of negatives.
        mask: [Q, C] the pairs to choose from.
        count: How many, a whole number on the device, so that nothing waits for it. More than there are
            chooses all.

    >>> hardness = torch.tensor([[0.9, 0.1], [0.5, 0.7]])
    >>> hardest(hardness, torch.tensor([[True, True], [True, False]]), torch.tensor(2))
    tensor([[ True, False],
            [ True, False]])
    """
    hardness = hardness.detach()
    ranked = hardness.masked_fill(~mask, -torch.inf).flatten().sort(descending=True).values
    last = ranked.gather(0, (count - 1).clamp(0, len(ranked) - 1).reshape(1))
    return mask & (hardness >= last - 16 * torch.finfo(hardness.dtype).eps) & (count > 0)
