"""Verification: whether two images show the same thing, by a threshold on their similarity (METHODS §8)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firstpage.data.catalog import VerificationPairs
from firstpage.errors import UserError
from firstpage.evaluation.inputs import ArrayLike, as_vectors, inverse_norms
from firstpage.pairs import full_precision

_CHUNK = 2**22  # values multiplied at a time


@dataclass(frozen=True, eq=False)
class Verification:
    """How well a threshold on the similarity separates same from different pairs, in percent.

    Attributes:
        accuracy: Mean accuracy over the folds, each with the threshold that is best on the other folds.
        standard_error: Standard error of that mean: the standard deviation over the folds / √folds.
        auc: Area under the ROC curve of all pairs. Ties count half.
        tar: False accept rate → true accept rate: the largest share of the same pairs that any threshold
            accepts while it accepts at most that share of the different ones.
        thresholds: [folds] threshold of each fold: pairs with at least this cosine are accepted as the same.
        roc: False and true accept rates, from 0 to 1, one point per distinct similarity.
        pairs: Number of pairs.

    >>> import numpy as np
    >>> points, zero = torch.eye(2), np.zeros(4, np.int64)
    >>> pairs = VerificationPairs(np.array([0, 0, 1, 1]), zero, np.array([0, 1, 0, 1]), np.arange(4) % 2 == 0)
    >>> result = verify(points, pairs)
    >>> result.accuracy, result.auc, result.thresholds.tolist()
    (100.0, 100.0, [0.5, 0.5])
    """

    accuracy: float
    standard_error: float
    auc: float
    tar: dict[float, float]
    thresholds: Tensor
    roc: tuple[Tensor, Tensor]
    pairs: int

    def metrics(self) -> dict[str, float]:
        """Return the metrics by their usual names."""
        named = {"accuracy": self.accuracy, "standard error": self.standard_error, "AUC": self.auc}
        return named | {f"TAR@FAR={far:g}": value for far, value in self.tar.items()}


@torch.no_grad()
def verify(
    embeddings: ArrayLike, pairs: VerificationPairs, *, far: Sequence[float] = (0.1, 0.01, 0.001)
) -> Verification:
    """Accept or reject pairs of images by the cosine of their embeddings, cross-validated in folds.

    The threshold of a fold is the midpoint between two neighboring similarities of the other folds' pairs (or
    just outside all of them) that classifies most of those correctly; of several such, the largest.

    Args:
        embeddings: [N, D] embeddings of the images to which `pairs` refers by row index, a tensor or an
            array. They need not be normalized.
        pairs: Which images to compare, whether they are the same, and in which fold: `catalog.pairs` of LFW
            (read from its pairs.txt), or your own.
        far: False accept rates.

    Raises:
        UserError: Wrong shapes, NaN or a zero vector, row indices out of range, fewer than two folds, pairs
            that are all the same or all different, or a rate outside 0..1.

    >>> import numpy as np
    >>> points, zero = torch.eye(2), np.zeros(4, np.int64)
    >>> pairs = VerificationPairs(np.array([0, 0, 1, 1]), zero, np.array([0, 1, 0, 1]), np.arange(4) % 2 == 0)
    >>> verify(points, pairs, far=(0.5,)).metrics()
    {'accuracy': 100.0, 'standard error': 0.0, 'AUC': 100.0, 'TAR@FAR=0.5': 100.0}
    """
    embeddings = as_vectors("embeddings", embeddings)
    if not isinstance(pairs, VerificationPairs):
        raise UserError(
            f"pairs: got {type(pairs).__name__}; give VerificationPairs, such as catalog.pairs of LFW"
        )
    left, right, folds = (torch.as_tensor(rows).long() for rows in (pairs.left, pairs.right, pairs.folds))
    same = torch.as_tensor(pairs.same).bool()
    if not len(same) or bool(same.all()) or not bool(same.any()):
        raise UserError(
            f"pairs: {int(same.sum())} of {len(same)} are the same; give both same and different pairs"
        )
    low, high = int(torch.minimum(left, right).min()), int(torch.maximum(left, right).max())
    if low < 0 or high >= len(embeddings):
        raise UserError(
            f"pairs: rows {low} to {high} do not fit embeddings of shape {tuple(embeddings.shape)}; "
            "give one embedding per image of the catalog"
        )
    if any(not 0 <= rate <= 1 for rate in far):
        raise UserError(f"far={tuple(far)}: each rate must lie in 0..1")
    parts, fold = torch.unique(folds, return_inverse=True)
    if len(parts) < 2:
        raise UserError("pairs: all are in one fold; give at least two folds")
    score = _cosines(embeddings, left, right)

    thresholds = torch.stack([_threshold(score[fold != k], same[fold != k]) for k in range(len(parts))])
    correct = ((score >= thresholds[fold]) == same).double()
    accuracies = torch.bincount(fold, correct) / torch.bincount(fold).double()
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
    scale = inverse_norms("embeddings", embeddings)
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
    """Distinct similarities, descending, and how many different and same pairs are at least that similar."""
    levels, which = torch.unique(-score, return_inverse=True)
    wrong, right = (torch.bincount(which[kind], minlength=len(levels)).cumsum(0) for kind in (~same, same))
    return -levels, wrong, right


def _threshold(score: Tensor, same: Tensor) -> Tensor:
    """The largest of the thresholds that classify most pairs correctly."""
    levels, wrong, right = _accepted(score, same)
    zero = torch.zeros(1, dtype=torch.long)
    # Accept none, or all down to a level; correct are accepted same pairs and rejected different pairs.
    gain = torch.cat([zero, right - wrong])
    ends = torch.cat([levels[:1] + 1, levels, levels[-1:] - 1])
    return ((ends[:-1] + ends[1:]) / 2)[gain.argmax()]


def _roc(score: Tensor, same: Tensor) -> tuple[Tensor, Tensor]:
    """False and true accept rates, from (0, 0) to (1, 1)."""
    _, *accepted = _accepted(score, same)
    zero = torch.zeros(1, dtype=torch.float64)
    wrong, right = (torch.cat([zero, count.double() / count[-1]]) for count in accepted)
    return wrong, right
