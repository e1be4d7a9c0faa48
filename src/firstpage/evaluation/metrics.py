"""The retrieval metrics, computed from the ranks of each query's positives (METHODS §8)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from firstpage.evaluation.ranking import Ranked

# Where the PR curve and the ROC curve are sampled. The left end of the latter, which matters for the first
# page, is sampled in logarithmic steps.
RECALL_LEVELS = torch.linspace(0, 1, 101, dtype=torch.float64)
FALSE_POSITIVE_RATES = torch.cat(
    [
        torch.zeros(1, dtype=torch.float64),
        torch.logspace(-6, -2, 81, dtype=torch.float64)[:-1],
        torch.linspace(0.01, 1, 100, dtype=torch.float64),
    ]
)


def metric_names(ks: Sequence[int]) -> list[str]:
    """Return the names of the metrics, in the order of `query_metrics`.

    >>> metric_names((1, 10))
    ['P@1', 'P@10', 'R@1', 'R@10', 'P@R', 'MAP@R', 'mAP', 'MRR', 'AUC']
    """
    return [f"P@{k}" for k in ks] + [f"R@{k}" for k in ks] + ["P@R", "MAP@R", "mAP", "MRR", "AUC"]


def query_metrics(
    part: Ranked, negatives: Tensor, ks: Sequence[int], recall: Tensor, fpr: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the metrics of each query and, summed over the queries, points of the PR and the ROC curve.

    Args:
        part: Queries and the ranks of their positives.
        negatives: [B] number of negatives of each query.
        ks: Lengths of the first page.
        recall: Recall levels at which to take the precision.
        fpr: False positive rates at which to take the true positive rate.

    Returns:
        [metrics, B] fractions, and [recall + fpr] sums of both curves.

    >>> part = Ranked(torch.tensor([0]), torch.tensor([[1, 4]]), torch.tensor([2]), torch.empty(1, 0))
    >>> values, _ = query_metrics(part, torch.tensor([8]), (1,), RECALL_LEVELS, FALSE_POSITIVE_RATES)
    >>> dict(zip(metric_names((1,)), values[:, 0].tolist(), strict=True))
    {'P@1': 1.0, 'R@1': 1.0, 'P@R': 0.5, 'MAP@R': 0.5, 'mAP': 0.75, 'MRR': 1.0, 'AUC': 0.875}
    """
    ranks, count = part.ranks, part.relevant.double()
    number = torch.arange(1, ranks.shape[1] + 1, device=ranks.device)
    valid = number <= count[:, None]
    precision = (number / ranks.double()).masked_fill(~valid, 0)  # at each positive
    ahead = (ranks - number).double()  # negatives before each positive
    within = (ranks <= count[:, None]) & valid
    # The first k hold at most k positives, so that later ones need not be looked at.
    hits = [(valid[:, :k] & (ranks[:, :k] <= k)).sum(dim=1).double() for k in ks]
    values = [
        *(hit / k for hit, k in zip(hits, ks, strict=True)),
        *((hit > 0).double() for hit in hits),
        within.sum(dim=1) / count,
        (precision * within).sum(dim=1) / count,
        precision.sum(dim=1) / count,
        1 / ranks[:, 0].double(),
        1 - ahead.masked_fill(~valid, 0).sum(dim=1) / count / negatives,
    ]
    # The best precision from the i-th positive on; recall ρ is reached at positive ⌈ρR⌉. The small shift
    # prevents products such as 0.07 × 100 from rounding up to the next positive.
    best = precision.flip(1).cummax(dim=1).values.flip(1)
    reached = (recall * count[:, None] - 1e-9).ceil().long().clamp(min=1) - 1
    allowed = (fpr * negatives[:, None] + 1e-9).floor()
    passed = torch.searchsorted(ahead.masked_fill(~valid, torch.inf), allowed, right=True)
    curves = torch.cat([best.gather(1, reached), passed / count[:, None]], dim=1).sum(dim=0)
    return torch.stack(values), curves
