"""Retrieval metrics from one blocked pass over the similarities (METHODS §8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
import torch.distributed
from torch import Tensor

from firstpage.errors import UserError
from firstpage.evaluation.bootstrap import bootstrap
from firstpage.evaluation.measures import FPR, RECALL, measure, names
from firstpage.evaluation.ranking import Ties, ranked
from firstpage.evaluation.vectors import Numbers, as_labeled

__all__ = ["Retrieval", "evaluate"]


@dataclass(frozen=True, eq=False)
class Retrieval:
    """What a search returns, measured: percentages, over the queries that have a positive.

    With R positives and N negatives of a query, the i-th positive at rank r_i, so behind r_i − i negatives:

    | name | a query's value |
    |---|---|
    | P@k | hits among the first k, divided by k |
    | R@k | whether there is any hit among the first k |
    | P@R | hits among the first R, divided by R |
    | MAP@R | Σ i / r_i over the hits within the first R, divided by R |
    | mAP | average precision over the whole ranking: Σ i / r_i over all positives, divided by R |
    | MRR | 1 / r_1 |
    | AUC | area under the query's ROC curve: 1 − mean of (r_i − i) / N; ties count as they are ranked |

    Attributes:
        per_query: name → [queries] each query's value, in percent.
        rows: [queries] which of the queries given these are.
        labels: [queries] their classes.
        first: [queries, results] gallery rows of the first results.
        first_labels: [queries, results] their classes.
        without_positive: how many queries had no positive in the gallery and were left out.
        pr_curve: recall levels 0, 0.01 … 1 and the precision at each: a query's best precision at that recall
            or a larger one (interpolated, as TREC does it), averaged over queries.
        roc_curve: false positive rates from 0 to 1 and the true positive rate at each: the share of a query's
            positives behind at most that share of its negatives, averaged over queries.

    >>> found = evaluate(torch.eye(4), torch.tensor([0, 0, 1, 1]), ks=(1,))
    >>> found.queries, found.row()["MRR"] == found.mrr
    (4, True)
    """

    per_query: dict[str, Tensor]
    rows: Tensor
    labels: Tensor
    first: Tensor
    first_labels: Tensor
    without_positive: int
    pr_curve: tuple[Tensor, Tensor]
    roc_curve: tuple[Tensor, Tensor]

    @cached_property
    def _means(self) -> dict[str, float]:
        return {name: values.mean().item() for name, values in self.per_query.items()}

    def row(self) -> dict[str, float]:
        """The figures by their usual names.

        >>> row = evaluate(torch.eye(3), torch.tensor([0, 0, 1]), ks=(1,)).row()
        >>> list(row)
        ['P@1', 'R@1', 'P@R', 'MAP@R', 'mAP', 'MRR', 'AUC']
        """
        return dict(self._means)

    @property
    def queries(self) -> int:
        """How many queries were measured."""
        return len(self.rows)

    @property
    def precision(self) -> dict[int, float]:
        """P@k by k."""
        return self._at("P@")

    @property
    def recall(self) -> dict[int, float]:
        """R@k by k."""
        return self._at("R@")

    def _at(self, prefix: str) -> dict[int, float]:
        named = ((name.removeprefix(prefix), value) for name, value in self._means.items())
        return {int(k): value for k, value in named if k.isdigit()}

    @property
    def r_precision(self) -> float:
        """P@R."""
        return self._means["P@R"]

    @property
    def map_at_r(self) -> float:
        """MAP@R."""
        return self._means["MAP@R"]

    @property
    def mean_average_precision(self) -> float:
        """Average precision over the whole ranking."""
        return self._means["mAP"]

    @property
    def mrr(self) -> float:
        """The mean reciprocal rank of the first hit."""
        return self._means["MRR"]

    @property
    def auc(self) -> float:
        """The mean area under a query's ROC curve."""
        return self._means["AUC"]

    def interval(
        self,
        name: str = "P@1",
        over: Literal["queries", "classes"] = "queries",
        *,
        samples: int = 1000,
        seed: int = 0,
    ) -> tuple[float, float]:
        """The 95 % bootstrap interval of a figure, with the queries or whole classes drawn anew.

        Over classes it says how the figure would vary with other classes; it is the wider and, for classes
        never seen in training, the honest one.

        Raises:
            UserError: an unknown name, or another word than queries or classes.

        >>> found = evaluate(torch.eye(8).roll(1, 0) + 0.9 * torch.eye(8), torch.arange(8) // 2, ks=(1,))
        >>> low, high = found.interval("P@1")
        >>> low < found.precision[1] < high
        True
        """
        if name not in self.per_query:
            raise UserError(f"name={name!r}: not among {', '.join(self.per_query)}")
        values = self.per_query[name]
        weights = None
        if over == "classes":
            codes = torch.unique(self.labels, return_inverse=True)[1]
            weights = torch.bincount(codes)
            values = torch.bincount(codes, values)
        elif over != "queries":
            raise UserError(f"over={over!r}: give 'queries' or 'classes'")
        return bootstrap(values, weights, samples=samples, seed=seed)

    def by_class(self, by: str | None = None) -> dict[int, dict[str, float]]:
        """Each class's number of queries and figures, the worst class first.

        Args:
            by: the figure that orders the classes; the first one if left out.

        >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]])
        >>> found = evaluate(points, torch.tensor([0, 0, 7, 7]), ks=(1,))
        >>> [(label, figures["queries"], figures["P@1"]) for label, figures in found.by_class().items()]
        [(7, 2.0, 50.0), (0, 2.0, 100.0)]
        """
        by = next(iter(self.per_query)) if by is None else by
        if by not in self.per_query:
            raise UserError(f"by={by!r}: not among {', '.join(self.per_query)}")
        classes, codes, counts = torch.unique(self.labels, return_inverse=True, return_counts=True)
        table = torch.stack([torch.bincount(codes, values) / counts for values in self.per_query.values()])
        order = table[list(self.per_query).index(by)].argsort(stable=True)
        return {
            label: {"queries": float(count), **dict(zip(self.per_query, figures, strict=True))}
            for label, count, figures in zip(
                classes[order].tolist(), counts[order].tolist(), table.T[order].tolist(), strict=True
            )
        }

    def confusions(self, count: int = 10) -> list[tuple[int, int, int]]:
        """Class pairs by how often a query of the one has the other first: (query's, retrieved, times).

        >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]])
        >>> evaluate(points, torch.tensor([0, 0, 7, 7]), ks=(1,)).confusions()
        [(7, 0, 1)]
        """
        if not self.first.shape[1]:
            raise UserError("results=0: no first results were kept; evaluate with results of at least 1")
        both = torch.stack([self.labels, self.first_labels[:, 0]], dim=1)
        pairs, times = torch.unique(both[both[:, 0] != both[:, 1]], dim=0, return_counts=True)
        order = times.argsort(descending=True, stable=True)[:count]
        return [
            (query, other, time)
            for (query, other), time in zip(pairs[order].tolist(), times[order].tolist(), strict=True)
        ]


@torch.no_grad()
def evaluate(
    embeddings: Numbers,
    labels: Numbers,
    gallery: Numbers | None = None,
    gallery_labels: Numbers | None = None,
    *,
    ks: Sequence[int] = (1, 2, 4, 5, 8, 10),
    ties: Ties = "index",
    results: int = 10,
    block: int | None = None,
    shared: bool = False,
) -> Retrieval:
    """Search the gallery for every query by cosine and measure where what is right comes.

    Without a gallery (or with the very object of the queries) they search one another, each excluded from its
    own results by identity, not by rank. Every metric is exact over the whole ranking; no more than half a
    gibibyte of similarities exists at a time, and the gallery is not copied.

    Args:
        embeddings: [Q, D] queries, a tensor or an array. They need not be normalized.
        labels: [Q] their classes, any integers.
        gallery: [G, D] what is searched; the queries themselves if left out.
        gallery_labels: [G] their classes.
        ks: lengths of the first page.
        ties: of equal similarities the one of smaller gallery index comes first ("index"), or those of
            another class come first ("pessimistic"), by index among themselves.
        results: how many first results to keep for each query, for lists and confusions.
        block: queries at a time; chosen by the size of the gallery if left out.
        shared: every rank of `torch.distributed` calls this with the same arguments, measures its share of
            the queries, and returns the figures of all of them.

    Raises:
        UserError: wrong shapes, NaN or a zero vector, an empty gallery, a gallery of one class, k < 1, or no
            query with a positive.

    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]])
    >>> found = evaluate(points, torch.tensor([0, 0, 1, 1]), ks=(1, 3))
    >>> found.precision[1], found.recall[3], found.first[3].tolist()
    (75.0, 100.0, [1, 0, 2])
    """
    if gallery is embeddings:
        gallery = None
    embeddings, labels = as_labeled("embeddings", embeddings, "labels", labels)
    alone = gallery is None
    if gallery is None:
        searched, searched_labels = embeddings, labels
    elif gallery_labels is None:
        raise UserError("gallery_labels=None: a gallery needs gallery_labels, one integer per row")
    else:
        gallery, gallery_labels = as_labeled("gallery", gallery, "gallery_labels", gallery_labels)
        searched, searched_labels = gallery, gallery_labels
        if gallery.shape[1] != embeddings.shape[1] or gallery.device != embeddings.device:
            raise UserError(
                f"gallery: {gallery.shape[1]} dimensions on {gallery.device}, embeddings "
                f"{embeddings.shape[1]} on {embeddings.device}: embed both with the same model, on one device"
            )
    ks = list(dict.fromkeys(ks))
    if not ks or min(ks) < 1:
        raise UserError(f"ks={tuple(ks)}: give at least one k, each at least 1")
    if results < 0:
        raise UserError(f"results={results}: keep none (0) or more")
    if ties not in ("index", "pessimistic"):
        raise UserError(f"ties={ties!r}: give 'index' or 'pessimistic'")
    if block is not None and block < 1:
        raise UserError(f"block={block}: give at least one query at a time")

    known, codes = torch.unique(torch.cat([labels, searched_labels]), return_inverse=True)
    classes, gallery_classes = codes[: len(labels)], codes[len(codes) - len(searched) :]
    sizes = torch.bincount(gallery_classes, minlength=len(known))
    relevant = sizes[classes] - int(alone)  # [Q] positives of each query
    # Queries with as many positives lie together, so that a step does little for those with fewer.
    rows = relevant.argsort(stable=True)
    rows = rows[int((relevant == 0).sum()) :]
    if not len(rows):
        raise UserError("labels: no query has another image of its class in the gallery: nothing to find")
    if int((sizes > 0).sum()) == 1:
        raise UserError(
            f"{'labels' if alone else 'gallery_labels'}: all {len(searched)} are of one class: "
            "nothing can be found wrongly; give at least two"
        )

    wrong = len(searched) - sizes[classes]  # [Q] negatives of each query
    kept = min(results, len(searched) - int(alone))
    device = embeddings.device
    values = torch.zeros(len(names(ks)), len(labels), dtype=torch.float64, device=device)
    first = torch.zeros(len(labels), kept, dtype=torch.long, device=device)
    curves = torch.zeros(len(RECALL) + len(FPR), dtype=torch.float64, device=device)
    levels = RECALL.to(device), FPR.to(device)
    share = rows
    if shared:
        share = rows[torch.distributed.get_rank() :: torch.distributed.get_world_size()]
    for part in ranked(
        embeddings, classes, gallery, gallery_classes, relevant, share, results=kept, ties=ties, block=block
    ):
        measured, along = measure(part, wrong[part.queries], ks, *levels)
        values[:, part.queries] = measured
        first[part.queries] = part.first
        curves += along
    if shared:  # each query was measured by one rank and is zero with the others
        for tensor in (values, first, curves):
            torch.distributed.all_reduce(tensor)
    rows = rows.sort().values
    figures = 100 * values[:, rows].cpu()
    precision, rate = torch.split((curves / len(rows)).cpu(), [len(RECALL), len(FPR)])
    first = first[rows]
    return Retrieval(
        per_query=dict(zip(names(ks), figures, strict=True)),
        rows=rows.cpu(),
        labels=labels[rows].long().cpu(),
        first=first.cpu(),
        first_labels=searched_labels[first].long().cpu(),
        without_positive=len(labels) - len(rows),
        pr_curve=(RECALL.clone(), precision),
        roc_curve=(FPR.clone(), rate),
    )
