"""Retrieval metrics from one blocked pass over the similarities (METHODS §8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firstpage.pairs import full_precision, unit

__all__ = ["Retrieval", "evaluate"]


@dataclass(frozen=True)
class Retrieval:
    """What a search returns, measured. All are percentages over the queries that have a positive.

    Attributes:
        precision: k → P@k, hits among the first k, divided by k.
        recall: k → R@k, queries with any hit among the first k.
        r_precision: P@R, R being the query's number of positives.
        map_at_r: MAP@R, precision at each hit within the first R, summed and divided by R.
        queries: how many queries were measured.
        without_positive: how many had no positive in the gallery and were left out.

    >>> evaluate(torch.eye(4), torch.tensor([0, 0, 1, 1]), ks=(1,)).queries
    4
    """

    precision: dict[int, float]
    recall: dict[int, float]
    r_precision: float
    map_at_r: float
    queries: int
    without_positive: int

    def row(self) -> dict[str, float]:
        """The figures by their usual names.

        >>> row = evaluate(torch.eye(3), torch.tensor([0, 0, 1]), ks=(1,)).row()
        >>> list(row)
        ['P@1', 'R@1', 'P@R', 'MAP@R']
        """
        return (
            {f"P@{k}": value for k, value in self.precision.items()}
            | {f"R@{k}": value for k, value in self.recall.items()}
            | {"P@R": self.r_precision, "MAP@R": self.map_at_r}
        )


@torch.no_grad()
def evaluate(
    embeddings: Tensor,
    labels: Tensor,
    gallery: Tensor | None = None,
    gallery_labels: Tensor | None = None,
    *,
    ks: Sequence[int] = (1, 2, 4, 5, 8, 10),
    block: int = 1024,
) -> Retrieval:
    """Search the gallery for every query by cosine and measure what comes first.

    Without a gallery the queries search one another, each excluded from its own results by identity, not by
    rank. Equal similarities rank by index. No more than `block` × gallery similarities exist at a time.

    Args:
        embeddings: [Q, D] queries.
        labels: [Q] their classes.
        gallery: [G, D] what is searched; the queries themselves if left out.
        gallery_labels: [G] their classes.
        ks: lengths of the first page.
        block: queries at a time.

    Raises:
        ValueError: wrong shapes, NaN, an empty gallery, k < 1, or no query with a positive.

    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]])
    >>> found = evaluate(points, torch.tensor([0, 0, 1, 1]), ks=(1, 3))
    >>> found.precision[1], found.recall[3]
    (75.0, 100.0)
    """
    alone = gallery is None
    if gallery is None:
        gallery, gallery_labels = embeddings, labels
    if gallery_labels is None:
        raise ValueError("gallery_labels=None: a gallery needs gallery_labels, one integer per row")
    for name, vectors, codes in (("embeddings", embeddings, labels), ("gallery", gallery, gallery_labels)):
        if vectors.ndim != 2 or not len(vectors) or len(codes) != len(vectors):
            raise ValueError(
                f"{name}: shapes {tuple(vectors.shape)} and {tuple(codes.shape)}: one label per row"
            )
        if not bool(vectors.isfinite().all()):
            raise ValueError(
                f"{name}: NaN or infinity among the values: the model that made them has diverged"
            )
    if not ks or min(ks) < 1:
        raise ValueError(f"ks={tuple(ks)}: give at least one k, each at least 1")

    counts = torch.bincount(gallery_labels, minlength=int(labels.max()) + 1)
    relevant = counts[labels] - int(alone)  # [Q] positives of each query
    depth = min(max(int(relevant.max()), *ks, 1), len(gallery) - int(alone))
    if depth < 1 or not bool((relevant > 0).any()):
        raise ValueError("labels: no query has another image of its class in the gallery: nothing to find")
    with full_precision(embeddings):
        queries, candidates = unit(embeddings.float()), unit(gallery.float())
        hits = torch.cat(
            [
                _hits(
                    queries,
                    candidates,
                    labels,
                    gallery_labels,
                    start,
                    min(start + block, len(queries)),
                    depth,
                    alone,
                )
                for start in range(0, len(queries), block)
            ]
        )
    measured = relevant > 0
    hits, relevant = hits[measured].double(), relevant[measured].double()
    found = hits.cumsum(dim=1)  # [Q, depth]
    rank = torch.arange(1, depth + 1, device=hits.device, dtype=hits.dtype)
    within = rank <= relevant[:, None]
    average = (found / rank * hits * within).sum(dim=1) / relevant

    def percent(values: Tensor) -> float:
        return 100 * values.mean().item()

    return Retrieval(
        precision={k: percent(found[:, min(k, depth) - 1] / k) for k in ks},
        recall={k: percent((found[:, min(k, depth) - 1] > 0).double()) for k in ks},
        r_precision=percent((hits * within).sum(dim=1) / relevant),
        map_at_r=percent(average),
        queries=int(measured.sum()),
        without_positive=int((~measured).sum()),
    )


def _hits(
    queries: Tensor,
    candidates: Tensor,
    labels: Tensor,
    candidate_labels: Tensor,
    start: int,
    stop: int,
    depth: int,
    alone: bool,
) -> Tensor:
    """[stop − start, depth]: whether each of a block's first results is of the query's class."""
    similarity = queries[start:stop] @ candidates.T
    if alone:
        similarity.diagonal(start).fill_(-torch.inf)
    first = similarity.topk(depth, dim=1).indices
    return candidate_labels[first] == labels[start:stop, None]
