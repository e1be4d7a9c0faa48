"""Agreement of a partition with the classes: NMI, AMI and pairwise F1 (METHODS §8).

All are computed from the contingency table, of which only the nonzero cells are stored: a table of 11,316
clusters × 11,316 classes has at most as many of them as there are images.
"""

import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.evaluation.inputs import ArrayLike, as_tensor

_CELLS = 2**22  # terms of the expected mutual information computed at a time


@torch.no_grad()
def agreement(assignment: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Return metrics of how well clusters and classes agree, by name, in percent.

    With I the mutual information of both partitions, H their entropies and E the expectation of I over random
    partitions of the same sizes:

    - NMI: I / √(H₁ H₂), normalized by the geometric mean, as in Sampling Matters.
    - NMI arithmetic: I / ½(H₁ + H₂).
    - AMI: (I − E) / (½(H₁ + H₂) − E), which is 0 in expectation for a random partition, where NMI rises with
      the number of clusters (Vinh, Epps & Bailey, 2010); E is exact.
    - F1: 2 × pairs in one cluster and one class / (pairs in one cluster + pairs in one class).

    Equal partitions always agree fully. A single cluster of all images has no information about the classes.

    Args:
        assignment: [N] cluster of each image, any integers, as a tensor or an array.
        labels: [N] class of each image.

    Raises:
        UserError: The shapes differ, or there are no images.

    >>> agreement(torch.tensor([5, 5, 3, 3]), torch.tensor([0, 0, 1, 1]))
    {'NMI': 100.0, 'NMI arithmetic': 100.0, 'AMI': 100.0, 'F1': 100.0}
    """
    assignment, labels = as_tensor("assignment", assignment), as_tensor("labels", labels)
    if assignment.shape != labels.shape or labels.ndim != 1 or not len(labels):
        raise UserError(
            f"assignment: got shape {tuple(assignment.shape)}, labels {tuple(labels.shape)}; "
            "give one integer of each per image"
        )
    images = len(labels)
    _, first, rows = torch.unique(assignment.cpu(), return_inverse=True, return_counts=True)
    _, second, columns = torch.unique(labels.cpu(), return_inverse=True, return_counts=True)
    cells, both = torch.unique(first * len(columns) + second, return_counts=True)
    a, b = rows[cells // len(columns)].double(), columns[cells % len(columns)].double()
    n = both.double()
    information = (n / images * (images * n / (a * b)).log()).sum().clamp(min=0).item()
    shares = [size.double() / images for size in (rows, columns)]
    entropies = [-(share * share.log()).sum().item() for share in shares]
    expected = _expected_information(rows, columns)
    pairs = [(size.double() * (size - 1)).sum().item() for size in (both, rows, columns)]
    mean = sum(entropies) / 2

    def percent(part: float, total: float) -> float:
        return 100 * part / total if total > 0 else 0.0

    # The same partition: also if it is a single part, or one per image, and the metrics would be 0 / 0.
    if len(cells) == len(rows) == len(columns):
        return {"NMI": 100.0, "NMI arithmetic": 100.0, "AMI": 100.0, "F1": 100.0}
    return {
        "NMI": percent(information, (entropies[0] * entropies[1]) ** 0.5),
        "NMI arithmetic": percent(information, mean),
        "AMI": percent(information - expected, mean - expected),
        "F1": percent(2 * pairs[0], pairs[1] + pairs[2]),
    }


def _expected_information(rows: Tensor, columns: Tensor) -> float:
    """E[I] over random tables with these margins: Σ over margins a, b and overlaps n of n/N log(Nn/ab) P(n).

    P is hypergeometric. Only distinct margins are computed, weighted by how often they occur: with N images
    there are at most √(2N) distinct sizes on either side.
    """
    images = int(rows.sum())
    log_factorial = torch.arange(1, images + 2, dtype=torch.float64).lgamma()  # of 0 … N
    sizes, times = torch.unique(rows, return_counts=True)
    others, other_times = torch.unique(columns, return_counts=True)
    total = 0.0
    for a, count in zip(sizes.tolist(), times.tolist(), strict=True):
        widest = min(a, int(others[-1]))
        lines = max(1, _CELLS // widest)
        for b, occur in zip(torch.split(others, lines), torch.split(other_times, lines), strict=True):
            n = torch.arange(1, widest + 1)  # an overlap of 0 adds nothing
            b = b[:, None]
            possible = (n <= b) & (n >= a + b - images)
            log_probability = (
                log_factorial[a]
                + log_factorial[b]
                + log_factorial[images - a]
                + log_factorial[images - b]
                - log_factorial[images]
                - log_factorial[n]
                - log_factorial[a - n]
                - log_factorial[(b - n).clamp(min=0)]
                - log_factorial[(images - a - b + n).clamp(min=0)]
            )
            term = n.double() / images * (n * images / (a * b.double())).log() * log_probability.exp()
            total += count * ((term * possible).sum(dim=1) * occur).sum().item()
    return total
