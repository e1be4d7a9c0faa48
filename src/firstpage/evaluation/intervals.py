"""Intervals: how much a mean would vary with other queries, other classes, other seeds or folds."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from firstpage.errors import UserError

_DRAWN = 2**22  # entries drawn at a time


def bootstrap_intervals(
    values: Tensor, weights: Tensor | None = None, *, samples: int = 1000, seed: int = 0
) -> list[tuple[float, float]]:
    """Return the 95 % percentile intervals of Σ values / Σ weights, resampling entries with replacement.

    With one entry per query, queries are resampled. With one entry per class (the sum over its queries, and
    their number as weight), classes are; that interval is wider, as queries of a class succeed and fail
    together. All metrics share the resamples, whose drawing takes longer than the rest.

    Where every entry has 100 % (or 0 %), resamples do not vary: the interval then ends where so many entries
    would all have it by chance in one of 40 cases (Clopper and Pearson).

    Args:
        values: [M, N] sums of M metrics.
        weights: [N] how many values each entry is the sum of. Defaults to one.
        samples: Number of resamples.
        seed: Seed of the resampling, which is the same on every machine and device.

    Raises:
        UserError: `samples` is less than 1.

    >>> bootstrap_intervals(torch.tensor([[0.0, 100.0, 100.0, 100.0]]))
    [(25.0, 100.0)]
    >>> [(low, high)] = bootstrap_intervals(torch.full((1, 100), 100.0))
    >>> round(low, 1), high
    (96.4, 100.0)
    """
    if samples < 1:
        raise UserError(f"samples={samples}: must be at least 1")
    generator = torch.Generator().manual_seed(seed)
    count = values.shape[1]
    values = values.double().cpu()
    weights = (torch.ones(count) if weights is None else weights).double().cpu()
    rows = max(1, _DRAWN // count)
    means = []
    for begin in range(0, samples, rows):
        drawn = torch.randint(count, (min(rows, samples - begin), count), generator=generator)
        times = torch.zeros(drawn.shape, dtype=torch.float64)  # how often each entry was drawn
        times.scatter_add_(1, drawn, torch.ones((), dtype=torch.float64).expand_as(drawn))
        means.append(times @ values.T / (times @ weights)[:, None])  # [rows, M]
    ends = torch.cat(means).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)  # [2, M]
    spared = 100 * (1 - 0.025 ** (1 / count))  # what may be missing where nothing is
    return [
        (100 - spared, high) if low == 100 else (low, spared) if high == 0 else (low, high)
        for low, high in ends.T.tolist()
    ]


def mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of a few values, such as those of seeds, and half its 95 % interval by Student's t.

    Both are NaN where they are not known.

    >>> mean_and_half([1.0])
    (1.0, nan)
    """
    count = len(values)
    if not count:
        return float("nan"), float("nan")
    if count == 1:
        return float(values[0]), float("nan")
    from scipy.special import stdtrit  # type: ignore[import-untyped] # a tenth of a second, which few need

    half = stdtrit(count - 1, 0.975) * np.std(values, ddof=1) / count**0.5
    return float(np.mean(values)), float(half)
