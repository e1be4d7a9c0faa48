"""Retrieval metrics, computed in one pass over blocks of similarities (METHODS §8)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
import torch.distributed
from torch import Tensor

from firstpage.errors import UserError
from firstpage.evaluation.inputs import ArrayLike, as_codes, as_gallery, as_labeled_vectors
from firstpage.evaluation.intervals import bootstrap_intervals
from firstpage.evaluation.metrics import FALSE_POSITIVE_RATES, RECALL_LEVELS, metric_names, query_metrics
from firstpage.evaluation.ranking import Ranked, ranked
from firstpage.evaluation.ranks import Ties


@dataclass(frozen=True, eq=False)
class Retrieval:
    """Metrics of a search in percent, over the queries that have a positive.

    For a query with R positives and N negatives, and its i-th positive at rank r_i, after r_i − i negatives:

    | name | value of a query |
    |---|---|
    | P@k | hits among the first k, divided by k |
    | R@k | whether there is any hit among the first k |
    | P@R | hits among the first R, divided by R |
    | MAP@R | Σ i / r_i over the hits within the first R, divided by R |
    | mAP | average precision over the whole ranking: Σ i / r_i over all positives, divided by R |
    | MRR | 1 / r_1 |
    | AUC | area under the query's ROC curve: 1 − mean of (r_i − i) / N; ties as they are ranked |

    Attributes:
        per_query: Name → [queries] value of each query, in percent.
        rows: [queries] row index of each query among the embeddings that were passed.
        labels: [queries] class of each query.
        first: [queries, results] gallery row indices of the first results.
        first_labels: [queries, results] classes of the first results.
        without_positive: Number of queries without a positive in the gallery, which are left out.
        pr_curve: Recall levels 0, 0.01 … 1 and the precision at each: the best precision of a query at that
            recall or a larger one (interpolated as in TREC), averaged over queries.
        roc_curve: False positive rates from 0 to 1 and the true positive rate at each: the share of a query's
            positives ranked after at most that share of its negatives, averaged over queries.

    >>> result = evaluate(torch.eye(4), torch.tensor([0, 0, 1, 1]), ks=(1,))
    >>> result.queries, result.metrics()["MRR"] == result.mrr
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

    def metrics(self) -> dict[str, float]:
        """Return the metrics by their usual names.

        >>> list(evaluate(torch.eye(3), torch.tensor([0, 0, 1]), ks=(1,)).metrics())
        ['P@1', 'R@1', 'P@R', 'MAP@R', 'mAP', 'MRR', 'AUC']
        """
        return dict(self._means)

    @property
    def queries(self) -> int:
        """Number of queries that have a positive."""
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
        """Mean reciprocal rank of the first hit."""
        return self._means["MRR"]

    @property
    def auc(self) -> float:
        """Mean area under a query's ROC curve."""
        return self._means["AUC"]

    def interval(
        self,
        name: str = "P@1",
        over: Literal["queries", "classes"] = "queries",
        *,
        samples: int = 1000,
        seed: int = 0,
    ) -> tuple[float, float]:
        """Return the 95 % bootstrap interval of a metric, resampling queries or entire classes.

        Over classes it says how much the metric would vary with other classes: the wider interval and, for
        classes that were not trained on, the appropriate one.

        Raises:
            UserError: The name is unknown, or `over` is neither queries nor classes.

        >>> result = evaluate(torch.eye(8).roll(1, 0) + 0.9 * torch.eye(8), torch.arange(8) // 2, ks=(1,))
        >>> low, high = result.interval("P@1")
        >>> low < result.precision[1] < high
        True
        """
        if name not in self.per_query:
            raise UserError(f"name={name!r}: choose one of {', '.join(self.per_query)}")
        return self.intervals(over, samples=samples, seed=seed)[name]

    def intervals(
        self, over: Literal["queries", "classes"] = "queries", *, samples: int = 1000, seed: int = 0
    ) -> dict[str, tuple[float, float]]:
        """Return the interval of every metric by name, in about the time of one; see `interval`.

        >>> result = evaluate(torch.eye(8).roll(1, 0) + 0.9 * torch.eye(8), torch.arange(8) // 2, ks=(1,))
        >>> result.intervals()["P@1"] == result.interval("P@1")
        True
        """
        values, weights = torch.stack(list(self.per_query.values())), None
        if over == "classes":
            codes = torch.unique(self.labels, return_inverse=True)[1]
            weights = torch.bincount(codes)
            values = torch.stack([torch.bincount(codes, row) for row in values])
        elif over != "queries":
            raise UserError(f"over={over!r}: choose 'queries' or 'classes'")
        found = bootstrap_intervals(values, weights, samples=samples, seed=seed)
        return dict(zip(self.per_query, found, strict=True))

    def by_class(self, by: str | None = None) -> dict[int, dict[str, float]]:
        """Return the number of queries and the metrics of each class, the worst class first.

        Args:
            by: Metric by which to sort the classes. Defaults to the first one.

        >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]])
        >>> result = evaluate(points, torch.tensor([0, 0, 7, 7]), ks=(1,))
        >>> [(label, values["queries"], values["P@1"]) for label, values in result.by_class().items()]
        [(7, 2.0, 50.0), (0, 2.0, 100.0)]
        """
        by = next(iter(self.per_query)) if by is None else by
        if by not in self.per_query:
            raise UserError(f"by={by!r}: choose one of {', '.join(self.per_query)}")
        classes, codes, counts = torch.unique(self.labels, return_inverse=True, return_counts=True)
        table = torch.stack([torch.bincount(codes, values) / counts for values in self.per_query.values()])
        order = table[list(self.per_query).index(by)].argsort(stable=True)
        return {
            label: {"queries": float(count), **dict(zip(self.per_query, values, strict=True))}
            for label, count, values in zip(
                classes[order].tolist(), counts[order].tolist(), table.T[order].tolist(), strict=True
            )
        }

    def confusions(self, count: int = 10) -> list[tuple[int, int, int]]:
        """Return the most frequent wrong first results: (class of the query, class of the result, count).

        >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]])
        >>> evaluate(points, torch.tensor([0, 0, 7, 7]), ks=(1,)).confusions()
        [(7, 0, 1)]
        """
        if not self.first.shape[1]:
            raise UserError("results=0: there are no first results; call evaluate with results of at least 1")
        both = torch.stack([self.labels, self.first_labels[:, 0]], dim=1)
        pairs, counts = torch.unique(both[both[:, 0] != both[:, 1]], dim=0, return_counts=True)
        order = counts.argsort(descending=True, stable=True)[:count]
        return [
            (*pair, times) for pair, times in zip(pairs[order].tolist(), counts[order].tolist(), strict=True)
        ]


@torch.no_grad()
def evaluate(
    embeddings: ArrayLike,
    labels: ArrayLike,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    *,
    ks: Sequence[int] = (1, 2, 4, 5, 8, 10),
    ties: Ties = "index",
    results: int = 10,
    block: int | None = None,
    shared: bool = False,
    exclude: ArrayLike | None = None,
    gallery_exclude: ArrayLike | None = None,
) -> Retrieval:
    """Search the gallery for every query by cosine similarity, and compute metrics of the rankings.

    Without a gallery (or if it is the same object as the queries) the queries search each other; each is
    excluded from its own results by identity, not by rank. Every metric is exact over the entire ranking. At
    most half a gibibyte of similarities exists at a time, and the gallery is not copied.

    Args:
        embeddings: [Q, D] queries, a tensor or an array. They need not be normalized.
        labels: [Q] classes of the queries, any integers.
        gallery: [G, D] embeddings to search. Defaults to the queries themselves.
        gallery_labels: [G] classes of the gallery.
        ks: Lengths of the first page.
        ties: Order of equal similarities: by gallery index ("index"), or other classes than the query's
            first, then by index ("pessimistic").
        results: Number of first results to return for each query, for lists and confusions.
        block: Number of queries at a time. Defaults to a number that depends on the size of the gallery.
        shared: Divide the queries among the ranks of `torch.distributed`. Every rank must call this with the
            same arguments, and gets the metrics of all queries.
        exclude: [Q] codes, such as the cameras of the images. What has the code of a query is neither right
            nor wrong for it: it is left out of its gallery. Negative codes leave nothing out.
        gallery_exclude: [G] codes of the gallery, if there is one.

    Raises:
        UserError: Wrong shapes, NaN or a zero vector, an empty gallery, a gallery of a single class, k < 1,
            or no query with a positive.

    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]])
    >>> result = evaluate(points, torch.tensor([0, 0, 1, 1]), ks=(1, 3))
    >>> result.precision[1], result.recall[3], result.first[3].tolist()
    (75.0, 100.0, [1, 0, 2])
    """
    ks = list(dict.fromkeys(ks))
    vectors, labels = as_labeled_vectors("embeddings", embeddings, "labels", labels)
    if gallery is None or gallery is embeddings:
        searched, searched_labels, gallery_exclude = None, labels, exclude
    else:
        searched, searched_labels = as_gallery(vectors, gallery, gallery_labels)
    _check_options(ks, ties, results, block)
    codes = as_codes(exclude, gallery_exclude, labels, searched_labels)
    counts = _class_counts(labels, searched_labels, searched is None, codes)
    classes, gallery_classes, positives, negatives = counts
    # Sorted by the number of positives, so that the queries of one block have similar numbers.
    rows = positives.argsort(stable=True)[int((positives == 0).sum()) :]
    share = rows[torch.distributed.get_rank() :: torch.distributed.get_world_size()] if shared else rows
    results = min(results, int((positives + negatives)[rows].min()))  # what the poorest query has
    sides = vectors, classes, searched, gallery_classes
    parts = ranked(*sides, positives, share, results=results, ties=ties, block=block, exclude=codes)
    values, first, curves = _collect(parts, negatives.clamp(min=1), ks, results)
    if shared:  # the values of a query are zero on all ranks but one
        for tensor in (values, first, curves):
            torch.distributed.all_reduce(tensor)
    rows = rows.sort().values
    first = first[rows]
    recall, fpr = RECALL_LEVELS.clone(), FALSE_POSITIVE_RATES.clone()
    precision, tpr = torch.split((curves / len(rows)).cpu(), [len(recall), len(fpr)])
    return Retrieval(
        per_query=dict(zip(metric_names(ks), 100 * values[:, rows].cpu(), strict=True)),
        rows=rows.cpu(),
        labels=labels[rows].long().cpu(),
        first=first.cpu(),
        first_labels=searched_labels[first].long().cpu(),
        without_positive=len(labels) - len(rows),
        pr_curve=(recall, precision),
        roc_curve=(fpr, tpr),
    )


def _check_options(ks: Sequence[int], ties: str, results: int, block: int | None) -> None:
    if not ks or min(ks) < 1:
        raise UserError(f"ks={tuple(ks)}: give at least one k, each at least 1")
    if results < 0:
        raise UserError(f"results={results}: must be at least 0")
    if ties not in ("index", "pessimistic"):
        raise UserError(f"ties={ties!r}: choose 'index' or 'pessimistic'")
    if block is not None and block < 1:
        raise UserError(f"block={block}: must be at least 1")


def _class_counts(
    labels: Tensor, gallery_labels: Tensor, each_other: bool, exclude: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Class indices of the queries [Q] and the gallery [G], and each query's positives and negatives [Q]."""
    known, numbers = torch.unique(torch.cat([labels, gallery_labels]), return_inverse=True)
    classes, gallery_classes = torch.split(numbers, [len(labels), len(gallery_labels)])
    sizes = torch.bincount(gallery_classes, minlength=len(known))
    left_out = right = torch.full_like(classes, int(each_other))
    if exclude is not None:
        codes, gallery_codes = exclude
        left_out = _count_equal(codes, gallery_codes)
        both = torch.stack([codes, classes], dim=1), torch.stack([gallery_codes, gallery_classes], dim=1)
        right = _count_equal(*both)
        if each_other:  # a query without a code of its own is left out all the same
            left_out, right = left_out.clamp(min=1), right.clamp(min=1)
    positives = sizes[classes] - right
    if not bool((positives > 0).any()):
        rest = "" if exclude is None else " that is not excluded"
        raise UserError(
            f"labels: no query has another image of its class in the gallery{rest}: nothing to find"
        )
    if int((sizes > 0).sum()) == 1:
        name = "labels" if each_other else "gallery_labels"
        raise UserError(f"{name}: all {len(gallery_labels)} are of one class; give at least two classes")
    return classes, gallery_classes, positives, len(gallery_labels) - left_out - positives


def _count_equal(rows: Tensor, among: Tensor) -> Tensor:
    """[Q]: how many rows of `among` are equal to each of `rows`."""
    known, codes = torch.unique(torch.cat([rows, among]), return_inverse=True, dim=0)
    mine, theirs = torch.split(codes, [len(rows), len(among)])
    return torch.bincount(theirs, minlength=len(known))[mine]


def _collect(
    parts: Iterable[Ranked], negatives: Tensor, ks: Sequence[int], results: int
) -> tuple[Tensor, Tensor, Tensor]:
    """[metrics, Q] fractions, [Q, results] first results, and the sums of both curves over the queries."""
    count, device = len(negatives), negatives.device
    levels = RECALL_LEVELS.to(device), FALSE_POSITIVE_RATES.to(device)
    values = torch.zeros(len(metric_names(ks)), count, dtype=torch.float64, device=device)
    first = torch.zeros(count, results, dtype=torch.long, device=device)
    curves = torch.zeros(sum(map(len, levels)), dtype=torch.float64, device=device)
    for part in parts:
        values[:, part.queries], sums = query_metrics(part, negatives[part.queries], ks, *levels)
        first[part.queries] = part.first
        curves += sums
    return values, first, curves
