"""What a cosine means: the probability that two images show the same class, fitted on held-out classes."""

import json
import os
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike as NumpyLike
from numpy.typing import NDArray
from torch import Tensor

from firstpage import durable
from firstpage._reading import json_checksum, read_json
from firstpage.errors import UserError
from firstpage.evaluation.inputs import ArrayLike, as_gallery, as_labeled_vectors, inverse_norms
from firstpage.pairs import full_precision

VERSION = 1
FILE = "calibration.json"
BINS = 400  # of the stored histogram: each has about as many same and different comparisons, weighed alike
COMPARISONS = 2 * 10**8  # at most; beyond, a random part of the queries stands for all
TABLE = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)  # precisions whose thresholds are printed

_FINE = 2**16  # bins of the first histogram
_BLOCK = 2**22  # cosines at a time
_SMOOTHING = 2.0  # comparisons that each bin gets from the logistic curve

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Calibration:
    """How likely two images of a cosine show the same class, and what a threshold accepts.

    The probability is isotonic in the cosine: it follows the held-out comparisons, however their cosines are
    distributed, and never falls. Where comparisons are few, and beyond all of them, a logistic curve through
    all of them carries it, so that it is never 0 or 1.

    It holds for a `prior`, the share of comparisons that are of the same class before their cosine is known.
    By default that is the share of the held-out images: what holds when each of them searches the others. In
    an index of ten times as many classes of the same size, a tenth of the comparisons are of the same class,
    and a cosine promises less: pass that share as `prior`.

    Args:
        edges: [K + 1] cosines between the bins of the histograms, ascending.
        same: [K] numbers of comparisons of two images of one class.
        different: [K] numbers of comparisons of two images of different classes.
        prior: Share of comparisons that are of the same class, where the probabilities shall hold.
        model: Fingerprint of the embedder.
        dim: Dimensions of its vectors.
        about: What it was fitted on.

    >>> two = Calibration(np.array([-1.0, 0.5, 1.0]), np.array([10, 990]), np.array([990, 10]), 0.5)
    >>> two.probability([-0.25, 0.75]).round(2)
    array([0.01, 0.99])
    >>> two.threshold(0.95)
    0.5
    """

    edges: Floats
    same: NDArray[np.int64]
    different: NDArray[np.int64]
    prior: float
    model: str = ""
    dim: int = 0
    about: str = ""

    def probability(self, scores: NumpyLike) -> Floats:
        """Return the probability of each cosine that the two images show the same class."""
        centers, odds = self._log_odds
        return _sigmoid(np.interp(np.asarray(scores, np.float64), centers, odds))

    def rates(self, thresholds: NumpyLike) -> tuple[Floats, Floats, Floats]:
        """Return what it means to accept comparisons of at least each threshold, as shares from 0 to 1.

        Within a bin, comparisons are taken as evenly distributed.

        Returns:
            The true accept rate, the false accept rate, and the precision: the share of the accepted ones
            that are right at the prior. It is NaN where none is accepted.
        """
        at = np.asarray(thresholds, np.float64)
        true, false = (
            1 - np.interp(at, self.edges, np.concatenate([[0], counts.cumsum() / counts.sum()]))
            for counts in (self.same, self.different)
        )
        right, wrong = self.prior * true, (1 - self.prior) * false
        with np.errstate(invalid="ignore"):
            return true, false, right / (right + wrong)

    def for_gallery(self, labels: NumpyLike) -> Self:
        """Return the calibration for searches among labeled images, unless its prior was set.

        The prior becomes the share of their comparisons that are of the same class. Where it says nothing,
        as all are of one class or each is of its own, that of the held-out images stays.

        Args:
            labels: [N] the classes of the images.
        """
        fitted = self.same.sum() / (self.same.sum() + self.different.sum())
        _, counts = np.unique(np.asarray(labels), return_counts=True)
        share = (counts * (counts - 1)).sum() / max(1, counts.sum() * (counts.sum() - 1))
        return replace(self, prior=float(share)) if self.prior == fitted and 0 < share < 1 else self

    def threshold(self, precision: float) -> float:
        """Return the lowest cosine from which on at least this share of the accepted comparisons is right.

        One more wrong comparison than was seen is counted, so that a few right ones promise little.

        Raises:
            UserError: Not between 0 and 1, or no threshold is so precise.
        """
        if not 0 < precision < 1:
            raise UserError(f"precision={precision}: must lie between 0 and 1, such as 0.95")
        true, false = (
            np.cumsum(counts[::-1])[::-1].astype(np.float64) for counts in (self.same, self.different)
        )
        right = self.prior * true / true[0]
        reached = right / (right + (1 - self.prior) * (false + 1) / false[0])
        enough = np.flatnonzero(reached >= precision)
        if not len(enough):
            best = int(reached.argmax())
            raise UserError(
                f"precision={precision:g}: no score of this model promises it; the best that the held-out "
                f"images show is {reached[best]:.3f}, from score {self.edges[best]:.3f} on: ask for less"
            )
        return float(self.edges[enough[0]])

    def text(self) -> str:
        """Return a table of thresholds, and those of usual precisions."""
        low = np.interp(
            0.5, np.concatenate([[0], self.different.cumsum() / self.different.sum()]), self.edges
        )
        high = np.interp(0.99, np.concatenate([[0], self.same.cumsum() / self.same.sum()]), self.edges)
        thresholds = np.linspace(low, max(high, low), 12)
        lines = [
            self.about,
            f"prior: {self.prior:.3%} of the comparisons are of the same class (1 of {1 / self.prior:,.0f}); "
            "another one is set with --prior",
            "",
            "score    same       TAR         FAR   precision of all from there on",
        ]
        rows = zip(thresholds, self.probability(thresholds), *self.rates(thresholds), strict=True)
        for score, same, true, false, precision in rows:
            lines.append(f"{score:5.3f}  {same:6.1%}  {true:8.2%}  {false:10.4%}   {precision:8.1%}")
        lines.append("")
        for wanted in TABLE:
            try:
                score = self.threshold(wanted)
            except UserError:
                lines.append(f"precision {wanted:6.1%}: not reached")
                continue
            true, false, _ = self.rates(score)
            lines.append(
                f"precision {wanted:6.1%}: score ≥ {score:.3f}, accepts {true:.1%} of the same and "
                f"{false:.4%} of the different ones"
            )
        return "\n".join(lines)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `calibration.json` into the folder of a saved model, completely or not at all."""
        path = Path(folder, FILE)
        durable.write(path, f"{json.dumps(self.table(), indent=1)}\n".encode())
        return path

    def table(self) -> dict[str, Any]:
        """Return the contents of `calibration.json`."""
        table = {"version": VERSION} | asdict(self)
        table |= {name: table[name].tolist() for name in ("edges", "same", "different")}
        return table | {"checksum": json_checksum(table)}

    @classmethod
    def read(cls, folder: str | os.PathLike[str], model: str | None = None) -> Self | None:
        """Read the calibration of a saved model or a run; None if it was not calibrated.

        Args:
            folder: Folder of a saved embedder, or of a run.
            model: Fingerprint of the embedder that it must be of.

        Raises:
            UserError: It is damaged, or of another model.

        >>> Calibration.read("nowhere") is None
        True
        """
        source = Path(folder)
        path = (source / "best" if (source / "best").is_dir() else source) / FILE
        if not path.exists():
            return None
        table = read_json(path)
        again = "run firstpage calibrate again"
        if not isinstance(table, dict) or table.pop("version", None) != VERSION:
            raise UserError(f"{path}: not a calibration of version {VERSION}: {again}")
        if table.pop("checksum", None) != json_checksum({"version": VERSION} | table):
            raise UserError(f"{path}: damaged (it does not have its checksum): {again}")
        try:
            edges = np.array(table.pop("edges"), np.float64)
            same, different = (np.array(table.pop(name), np.int64) for name in ("same", "different"))
            read = cls(edges, same, different, **table)
            read._check()
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: not valid ({error}): {again}") from None
        if model is not None and read.model != model:
            raise UserError(f"{path}: of another model: {again}, or remove it")
        return read

    def _check(self) -> None:
        """Raise an error for what no fit gives."""
        counts = np.stack([self.same, self.different])
        if self.edges.shape != (counts.shape[1] + 1,) or not (np.diff(self.edges) > 0).all():
            raise ValueError("edges must ascend, one more than bins")
        if (counts < 0).any() or not (counts.sum(axis=1) > 0).all():
            raise ValueError("there must be same and different comparisons")
        if not 0 < self.prior < 1:
            raise ValueError("prior must lie between 0 and 1")

    @cached_property
    def _log_odds(self) -> tuple[Floats, Floats]:
        """Cosines, ascending, and the log odds of the same class there."""
        from scipy.optimize import isotonic_regression  # type: ignore[import-untyped]

        same, different = self.same.astype(np.float64), self.different.astype(np.float64)
        centers = (self.edges[:-1] + self.edges[1:]) / 2
        # Fitted as counted; another prior moves all log odds by the same amount.
        shift = _logit(self.prior) - np.log(same.sum() / different.sum())
        ends = np.array([-1.0, *centers, 1.0])
        inner = slice(1, -1)
        logistic = _fit_logistic(centers, same, different, ends)
        weights = np.full(len(ends), _SMOOTHING)
        right = _SMOOTHING * _sigmoid(logistic)
        weights[inner] += same + different
        right[inner] += same
        fitted = isotonic_regression(right / weights, weights=weights).x
        return ends, _logit(fitted.clip(1e-12, 1 - 1e-12)) + shift


def fit_calibration(
    embeddings: ArrayLike,
    labels: ArrayLike,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    *,
    prior: float | None = None,
    model: str = "",
    about: str = "",
    seed: int = 0,
) -> Calibration:
    """Fit a calibration to embedded images of classes that the model was not trained on.

    Every image is compared with all others, or with the gallery. If that were more than `COMPARISONS`, a
    random part of the images is compared with all others, which keeps the share of comparisons of the same
    class.

    Args:
        embeddings: [N, D] embeddings. They need not be normalized.
        labels: [N] their classes.
        gallery: [G, D] images to compare them with. Defaults to the others of `embeddings`.
        gallery_labels: [G] their classes.
        prior: See `Calibration`. Defaults to the share of these images.
        model: Fingerprint of the embedder.
        about: What the images are, for the table.
        seed: Of the random part.

    Raises:
        UserError: Wrong shapes or values, or no comparison of the same class, or none of different ones.

    >>> vectors = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> found = fit_calibration(vectors, [0, 0, 1, 1])
    >>> round(found.prior, 3), bool(found.probability(0.99) > 0.7 > 0.3 > found.probability(0.1))
    (0.333, True)
    """
    queries, classes = as_labeled_vectors("embeddings", embeddings, "labels", labels)
    if prior is not None and not 0 < prior < 1:
        raise UserError(f"prior={prior}: must lie between 0 and 1, such as 0.01")
    others, other_classes, itself = queries, classes, torch.arange(len(queries))
    if gallery is not None:
        others, other_classes = as_gallery(queries, gallery, gallery_labels)
        itself = torch.full((len(queries),), -1)
    most = max(1, COMPARISONS // len(others))
    if len(queries) > most:
        chosen = torch.from_numpy(np.random.default_rng(seed).permutation(len(queries))[:most]).sort().values
        queries, classes, itself = queries[chosen], classes[chosen], itself[chosen]
    same, different = _histograms(queries, classes, others, other_classes, itself)
    for name, counts in (("the same class", same), ("different classes", different)):
        if not counts.sum():
            raise UserError(f"labels: no two images are of {name}; give classes of several images each")
    edges, same, different = _coarsen(same, different)
    if prior is None:
        prior = float(same.sum() / (same.sum() + different.sum()))
    return Calibration(edges, same, different, prior, model, queries.shape[1], about)


def _histograms(
    queries: Tensor, classes: Tensor, others: Tensor, other_classes: Tensor, itself: Tensor
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count comparisons of the same and of different classes in `_FINE` bins of the cosine."""
    scale, other_scale = inverse_norms("embeddings", queries), inverse_norms("gallery", others)
    counts = torch.zeros(2 * _FINE, dtype=torch.int64, device=queries.device)
    rows = max(1, _BLOCK // len(others))
    itself = itself.to(queries.device)
    with torch.no_grad(), full_precision(queries):
        unit = (others * other_scale).float()
        for part in torch.split(torch.arange(len(queries), device=queries.device), rows):
            cosine = (queries[part] * scale[part]).float() @ unit.T
            bins = ((cosine + 1) * (_FINE / 2)).long().clamp_(0, _FINE - 1)
            bins += (classes[part, None] != other_classes) * _FINE
            counts += torch.bincount(bins.view(-1), minlength=2 * _FINE)
            own = itself[part] >= 0
            alone = bins[own, itself[part][own]]
            counts -= torch.bincount(alone, minlength=2 * _FINE)
    same, different = counts.cpu().numpy().reshape(2, _FINE)
    return same, different


def _coarsen(
    same: NDArray[np.int64], different: NDArray[np.int64]
) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Join bins into at most `BINS` that hold about the same share of same and different comparisons."""
    share = same / same.sum() + different / different.sum()
    place = np.minimum((share.cumsum() / 2 * BINS * (1 - 1e-12)).astype(np.int64), BINS - 1)
    used = np.flatnonzero(share)
    starts = np.unique(place[used], return_index=True)[1]
    first = used[starts]  # the lowest cosine that was seen in each
    bounds = np.append(first, used[-1] + 1)
    edges = bounds * (2 / _FINE) - 1
    return edges, np.add.reduceat(same, first), np.add.reduceat(different, first)


def _fit_logistic(scores: Floats, same: Floats, different: Floats, at: Floats) -> Floats:
    """Return the log odds at some cosines of the logistic regression of same on the cosine.

    Same and different comparisons weigh alike in the fit, as there may be thousands of times more of the
    latter, and its penalty keeps the slope finite where a threshold separates them.
    """
    weight = np.concatenate([same / same.sum(), different / different.sum()])
    target = np.repeat([1.0, 0.0], len(scores))
    mean = scores @ (same / same.sum() + different / different.sum()) / 2
    spread = max(float(np.sqrt((np.tile(scores, 2) - mean) ** 2 @ weight / 2)), 1e-6)
    design = np.stack([np.ones(2 * len(scores)), (np.tile(scores, 2) - mean) / spread], axis=1)
    penalty = np.diag([0.0, 2 / (same.sum() + different.sum()) + 1e-4])
    values = np.zeros(2)
    for _ in range(50):  # Newton's method, which is convex here; steps are bounded
        guess = _sigmoid(design @ values)
        gradient = design.T @ (weight * (guess - target)) + penalty @ values
        curvature = (design.T * (weight * guess * (1 - guess))) @ design + penalty
        step = np.linalg.solve(curvature + 1e-9 * np.eye(2), gradient)
        values -= step.clip(-2, 2)
        if np.abs(step).max() < 1e-9:
            break
    values[1] = max(values[1], 0.0)  # a model that is worse than chance gets a constant
    odds: Floats = values[0] + values[1] * (at - mean) / spread + np.log(same.sum() / different.sum())
    return odds


def _sigmoid(odds: Floats) -> Floats:
    return 0.5 * (1 + np.tanh(odds / 2))


def _logit(probability: Any) -> Any:  # noqa: ANN401
    return np.log(probability) - np.log1p(-probability)
