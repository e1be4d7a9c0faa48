"""Verification: whether two images show the same, by a threshold on their similarity (METHODS §8, LFW)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firstpage.data.catalog import VerificationPairs
from firstpage.errors import UserError
from firstpage.evaluation.vectors import Numbers, as_vectors, inverse_lengths
from firstpage.pairs import full_precision

__all__ = ["Verification", "verify"]

_CHUNK = 2**22  # values multiplied together


@dataclass(frozen=True, eq=False)
class Verification:
    """How well a threshold on the similarity tells same pairs from different ones, in percent.

    Attributes:
        accuracy: mean over the folds, each judged by the threshold that is best on all the others.
        standard_error: of that mean: the folds' standard deviation / √folds.
        auc: area under the ROC curve of all pairs, ties counted half.
        tar: false accept rate → true accept rate: the most of the same pairs that a threshold accepts while
            it accepts at most that share of the different ones.
        thresholds: [folds] the threshold of each fold: a cosine from which on a pair is called the same.
        roc: false and true accept rates, from 0 to 1, one point a distinct similarity.
        pairs: how many pairs were judged.

    >>> import numpy as np
    >>> points, zero = torch.eye(2), np.zeros(4, np.int64)
    >>> pairs = VerificationPairs(np.array([0, 0, 1, 1]), zero, np.array([0, 1, 0, 1]), np.arange(4) % 2 == 0)
    >>> found = verify(points, pairs)
    >>> found.accuracy, found.auc, found.thresholds.tolist()
    (100.0, 100.0, [0.5, 0.5])
    """

    accuracy: float
    standard_error: float
    auc: float
    tar: dict[float, float]
    thresholds: Tensor
    roc: tuple[Tensor, Tensor]
    pairs: int

    def row(self) -> dict[str, float]:
        """The figures by their usual names."""
        named = {"accuracy": self.accuracy, "standard error": self.standard_error, "AUC": self.auc}
        return named | {f"TAR@FAR={far:g}": value for far, value in self.tar.items()}


@torch.no_grad()
def verify(
    embeddings: Numbers, pairs: VerificationPairs, *, far: Sequence[float] = (0.1, 0.01, 0.001)
) -> Verification:
    """Judge pairs of images by the cosine of their embeddings, fold by fold.

    The threshold of a fold is the middle between two neighboring similarities of the other folds' pairs (or
    just outside all of them) where most of those are judged right; of several such, the largest.

    Args:
        embeddings: [N, D] of the images that `pairs` names by row, a tensor or an array. They need not
            be normalized.
        pairs: which images to compare, whether they are the same, and in which fold: `catalog.pairs` of LFW
            (read from its pairs.txt), or one's own.
        far: false accept rates.

    Raises:
        UserError: wrong shapes, NaN or a zero vector, rows that are not there, fewer than two folds,
            pairs that are all the same or all different, or a rate outside 0…1.

    >>> import numpy as np
    >>> points, zero = torch.eye(2), np.zeros(4, np.int64)
    >>> pairs = VerificationPairs(np.array([0, 0, 1, 1]), zero, np.array([0, 1, 0, 1]), np.arange(4) % 2 == 0)
    >>> verify(points, pairs, far=(0.5,)).row()
    {'accuracy': 100.0, 'standard error': 0.0, 'AUC': 100.0, 'TAR@FAR=0.5': 100.0}
    """
    embeddings = as_vectors("embeddings", embeddings)
    if not isinstance(pairs, VerificationPairs):
        raise UserError(
            f"pairs: got {type(pairs).__name__}: give VerificationPairs, such as catalog.pairs of LFW"
        )
    left, right, folds = (torch.as_tensor(rows).long() for rows in (pairs.left, pairs.right, pairs.folds))
    same = torch.as_tensor(pairs.same).bool()
    if not len(same) or bool(same.all()) or not bool(same.any()):
        raise UserError(f"pairs: {int(same.sum())} of {len(same)} are the same: give both kinds")
    low, high = int(torch.minimum(left, right).min()), int(torch.maximum(left, right).max())
    if low < 0 or high >= len(embeddings):
        raise UserError(
            f"pairs: rows {low} to {high} do not fit embeddings of shape {tuple(embeddings.shape)}: "
            "give one embedding per image of the catalog"
        )
    if any(not 0 <= rate <= 1 for rate in far):
        raise UserError(f"far={tuple(far)}: a rate lies between 0 and 1")
    parts, fold = torch.unique(folds, return_inverse=True)
    if len(parts) < 2:
        raise UserError("pairs: all in one fold: a threshold needs other folds to be learned from")
    score = _cosines(embeddings, left, right)

    thresholds = torch.stack([_threshold(score[fold != k], same[fold != k]) for k in range(len(parts))])
    right_ones = ((score >= thresholds[fold]) == same).double()
    accuracies = torch.bincount(fold, right_ones) / torch.bincount(fold).double()
    false_rate, true_rate = _roc(score, same)
    return Verification(
        accuracy=100 * accuracies.mean().item(),
        standard_error=100 * accuracies.std().item() / len(parts) ** 0.5,
        auc=100 * torch.trapezoid(true_rate, false_rate).item(),
        tar={rate: 100 * true_rate[false_rate <= rate + 1e-12].max().item() for rate in far},
        thresholds=thresholds,
        roc=(false_rate, true_rate),
        pairs=len(same),
    )


def _cosines(embeddings: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """[P] cosines of the pairs, in float64 on the CPU."""
    scale = inverse_lengths("embeddings", embeddings)
    rows = max(1, _CHUNK // embeddings.shape[1])
    cosines = []
    with full_precision(embeddings):
        for some in zip(torch.split(left, rows), torch.split(right, rows), strict=True):
            one, other = (
                (embeddings[r] * scale[r]).double() for r in (s.to(embeddings.device) for s in some)
            )
            cosines.append((one * other).sum(dim=1))
    return torch.cat(cosines).cpu()


def _accepted(score: Tensor, same: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct similarities, falling, and how many different and same pairs each accepts as a threshold."""
    levels, which = torch.unique(-score, return_inverse=True)
    wrong, right = (torch.bincount(which[kind], minlength=len(levels)).cumsum(0) for kind in (~same, same))
    return -levels, wrong, right


def _threshold(score: Tensor, same: Tensor) -> Tensor:
    """The largest of the thresholds that judge most pairs right."""
    levels, wrong, right = _accepted(score, same)
    zero = torch.zeros(1, dtype=torch.long)
    # Accept none, or all down to a level: right are the same pairs accepted and the different ones refused.
    judged = torch.cat([zero, right - wrong])
    ends = torch.cat([levels[:1] + 1, levels, levels[-1:] - 1])
    return ((ends[:-1] + ends[1:]) / 2)[judged.argmax()]


def _roc(score: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """False and true accept rates, from (0, 0) to (1, 1)."""
    _, *accepted = _accepted(score, same)
    zero = torch.zeros(1, dtype=torch.float64)
    wrong, right = (torch.cat([zero, count.double() / count[-1]]) for count in accepted)
    return wrong, right
