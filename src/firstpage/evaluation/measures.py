"""The retrieval metrics of METHODS §8, each from the ranks of a query's positives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from firstpage.evaluation.ranking import Ranked

__all__ = ["FPR", "RECALL", "measure", "names"]

# Recall levels of the PR curve, and false positive rates of the ROC curve: the left end, where a first page
# lies, in logarithmic steps.
RECALL = torch.linspace(0, 1, 101, dtype=torch.float64)
FPR = torch.cat(
    [
        torch.zeros(1, dtype=torch.float64),
        torch.logspace(-6, -2, 81, dtype=torch.float64)[:-1],
        torch.linspace(0.01, 1, 100, dtype=torch.float64),
    ]
)


def names(ks: Sequence[int]) -> list[str]:
    """The names of the figures, in the order of `measure`.

    >>> names((1, 10))
    ['P@1', 'P@10', 'R@1', 'R@10', 'P@R', 'MAP@R', 'mAP', 'MRR', 'AUC']
    """
    return [f"P@{k}" for k in ks] + [f"R@{k}" for k in ks] + ["P@R", "MAP@R", "mAP", "MRR", "AUC"]


def measure(
    part: Ranked, wrong: Tensor, ks: Sequence[int], recall: Tensor, fpr: Tensor
) -> tuple[Tensor, Tensor]:
    """The figures of each query from the ranks of its positives, and the sums of the queries' curves.

    Args:
        part: queries and the ranks of their positives.
        wrong: [B] negatives of each query.
        ks: lengths of the first page.
        recall: recall levels at which the precision is taken.
        fpr: false positive rates at which the true positive rate is taken.

    Returns:
        [names, B] shares, and [recall + fpr] sums over the queries of both curves.

    >>> part = Ranked(torch.tensor([0]), torch.tensor([[1, 4]]), torch.tensor([2]), torch.empty(1, 0))
    >>> figures, _ = measure(part, torch.tensor([8]), (1,), RECALL, FPR)
    >>> dict(zip(names((1,)), figures[:, 0].tolist(), strict=True))
    {'P@1': 1.0, 'R@1': 1.0, 'P@R': 0.5, 'MAP@R': 0.5, 'mAP': 0.75, 'MRR': 1.0, 'AUC': 0.875}
    """
    ranks, count = part.ranks, part.relevant.double()
    number = torch.arange(1, ranks.shape[1] + 1, device=ranks.device)
    valid = number <= count[:, None]
    precision = (number / ranks.double()).masked_fill(~valid, 0)  # at each positive
    ahead = (ranks - number).double()  # negatives before each positive
    within = (ranks <= count[:, None]) & valid
    hits = [(valid & (ranks <= k)).sum(dim=1).double() for k in ks]
    figures = [
        *(hit / k for hit, k in zip(hits, ks, strict=True)),
        *((hit > 0).double() for hit in hits),
        within.sum(dim=1) / count,
        (precision * within).sum(dim=1) / count,
        precision.sum(dim=1) / count,
        1 / ranks[:, 0].double(),
        1 - ahead.masked_fill(~valid, 0).sum(dim=1) / count / wrong,
    ]
    # The best precision from the i-th positive on; recall ρ is reached at positive ⌈ρR⌉. The small shift
    # keeps products such as 0.07 × 100 from rounding up to the next positive.
    best = precision.flip(1).cummax(dim=1).values.flip(1)
    reached = (recall * count[:, None] - 1e-9).ceil().long().clamp(min=1) - 1
    allowed = (fpr * wrong[:, None] + 1e-9).floor()
    found = torch.searchsorted(ahead.masked_fill(~valid, torch.inf), allowed, right=True)
    curves = torch.cat([best.gather(1, reached), found / count[:, None]], dim=1).sum(dim=0)
    return torch.stack(figures), curves
