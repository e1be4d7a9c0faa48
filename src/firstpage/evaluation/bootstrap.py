"""Bootstrap intervals: how far a mean would move with other queries, or with other classes."""

from __future__ import annotations

import torch
from torch import Tensor

from firstpage.errors import UserError

__all__ = ["bootstrap"]

_DRAWS = 2**22  # draws that exist at a time


def bootstrap(
    values: Tensor, weights: Tensor | None = None, *, samples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """The 95 % percentile interval of Σ values / Σ weights, whole entries drawn with replacement.

    With one entry a query the queries are drawn; with one entry a class (the sum over its queries, and their
    number as weight) the classes are, which is wider: queries of a class succeed and fail together.

    Args:
        values: [N] sums.
        weights: [N] how many each is the sum of; one if left out.
        samples: resamples.
        seed: of the draws; they are the same on every machine and device.

    Raises:
        UserError: fewer than one sample.

    >>> low, high = bootstrap(torch.tensor([0.0, 100.0, 100.0, 100.0]))
    >>> low, high
    (25.0, 100.0)
    """
    if samples < 1:
        raise UserError(f"samples={samples}: draw at least one")
    generator = torch.Generator().manual_seed(seed)
    count = len(values)
    values = values.double().cpu()
    weights = None if weights is None else weights.double().cpu()
    rows = max(1, _DRAWS // count)
    means = []
    for begin in range(0, samples, rows):
        draws = torch.randint(count, (min(rows, samples - begin), count), generator=generator)
        number = count if weights is None else weights[draws].sum(dim=1)
        means.append(values[draws].sum(dim=1) / number)
    low, high = torch.cat(means).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high
