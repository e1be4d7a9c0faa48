"""The evaluation of a model on its test: metrics with intervals, classes, confusions; as text or JSON."""

import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firstpage.data.catalog import Catalog
from firstpage.data.decode import printable
from firstpage.data.splits import QueryGallery, query_gallery
from firstpage.evaluation import Clustering, Retrieval, Verification, cluster, evaluate, verify
from firstpage.recipes.settings import ModelSettings
from firstpage.report.facts import dataset_name
from firstpage.report.markup import shorten_name
from firstpage.runs.opening import OpenRun
from firstpage.runs.record import Record
from firstpage.runs.run_data import is_same_data

Interval = tuple[float, float]
WORST = 10  # classes and pairs of classes in the text
CLASS_METRICS = ("P@1", "P@5", "R@4", "MAP@R")  # in tables of classes


@dataclass(frozen=True, eq=False)
class EmbeddedTest:
    """The embedded test images of a run or saved model.

    Attributes:
        name: Name of the run or model.
        catalog: The dataset.
        rows: Rows of the queries in the catalog, and those of the gallery if they search one.
        queries: [Q, D] embeddings of the queries.
        gallery: [G, D] embeddings of the gallery, or None.
        protocol: `paper` or `fair`.
        model: Settings of the model, if known.
        record: Contents of the run folder; None for a saved model.
        notes: What a reader must know about the data, such as images that cannot be read.
        exclude_same: Column of the dataset, such as "camera": what has a query's value is no result of it.
        flip: Whether the embeddings are averages over each image and its mirror image.

    >>> from pathlib import Path
    >>> catalog = Catalog("toy", Path(), list("abcd"), np.array([0, 0, 1, 1]), ["auk", "wren"], {})
    >>> test = EmbeddedTest("toy", catalog, QueryGallery(np.arange(4)), torch.eye(4))
    >>> test.labels.tolist(), test.gallery_labels, test.is_own_data
    ([0, 0, 1, 1], None, False)
    """

    name: str
    catalog: Catalog
    rows: QueryGallery
    queries: Tensor
    gallery: Tensor | None = None
    protocol: str = "paper"
    model: ModelSettings | None = None
    record: Record | None = None
    notes: list[str] = field(default_factory=list)
    exclude_same: str | None = None
    flip: bool = False

    @property
    def data(self) -> str:
        """The name of the dataset."""
        return dataset_name(self.catalog.name, self.catalog.root.resolve(), self.catalog.file)

    @property
    def labels(self) -> Tensor:
        """[Q] classes of the queries."""
        return torch.from_numpy(self.catalog.labels[self.rows.queries]).to(self.queries.device)

    @property
    def gallery_labels(self) -> Tensor | None:
        """[G] classes of the gallery, or None."""
        if self.rows.gallery is None:
            return None
        return torch.from_numpy(self.catalog.labels[self.rows.gallery]).to(self.queries.device)

    @property
    def searched_rows(self) -> NDArray[np.int64]:
        """[G] rows of the searched images: the gallery, or the queries if they search one another."""
        return self.rows.queries if self.rows.gallery is None else self.rows.gallery

    @cached_property
    def is_own_data(self) -> bool:
        """Whether the run was trained on exactly this dataset."""
        return is_same_data(self.record, self.catalog)


def embed_test(run: OpenRun, exclude_same: str | None = None) -> EmbeddedTest:
    """Embed the test images of a run.

    Args:
        run: A run or saved model, as `open_run` returns it.
        exclude_same: See `EmbeddedTest`.

    Raises:
        UserError: The data has no test under the protocol of the run, or no such column.

    >>> from firstpage.runs import open_run
    >>> embed_test(open_run("nowhere"))
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no such folder
    """
    notes = []
    if exclude_same is not None:
        run.catalog.column_codes(exclude_same)  # before minutes of embedding
        notes = [f"images with the {exclude_same} of a query are no results of it"]
    queries = run.embed(run.test.queries)
    gallery = None if run.test.gallery is None else run.embed(run.test.gallery)
    about = run.settings.protocol, run.model.settings, run.record, run.notes + notes, exclude_same, run.flip
    return EmbeddedTest(run.name, run.catalog, run.test, queries, gallery, *about)


@dataclass(frozen=True)
class Estimate:
    """A metric in percent, with its 95 % bootstrap intervals over queries and over classes.

    >>> Estimate("P@1", 50.0, (40.0, 60.0), (30.0, 70.0)).value
    50.0
    """

    name: str
    value: float
    queries: Interval | None = None
    classes: Interval | None = None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The evaluation of a model on its test.

    Attributes:
        test: The embedded test.
        retrieval: Retrieval metrics and results.
        clustering: Clustering metrics, or None.
        verification: Verification metrics if the dataset has pairs, or None.

    >>> from pathlib import Path
    >>> catalog = Catalog("toy", Path(), list("abcd"), np.array([0, 0, 1, 1]), ["auk", "wren"], {})
    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]])
    >>> test = EmbeddedTest("toy", catalog, QueryGallery(np.arange(4)), points)
    >>> Evaluation(test, evaluate(points, test.labels), None, None).classes[0]["class"]
    'wren'
    """

    test: EmbeddedTest
    retrieval: Retrieval
    clustering: Clustering | None
    verification: Verification | None

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Every retrieval metric by name, with its intervals."""
        queries, classes = self.retrieval.intervals("queries"), self.retrieval.intervals("classes")
        return {
            name: Estimate(name, value, queries[name], classes[name])
            for name, value in self.retrieval.metrics().items()
        }

    @cached_property
    def untrained(self) -> dict[str, float]:
        """Metrics of the untrained model in the same test, as training logged them; empty if it did not."""
        record = self.test.record
        if record is None or not self.test.is_own_data or not record.recipe.schedule.epochs:
            return {}
        if self.test.exclude_same is not None or self.test.flip:
            return {}
        splits = self.test.catalog.splits
        only_validation = bool(splits) and query_gallery(splits) is None  # whose evaluations are in the log
        if record.recipe.train.protocol == self.test.protocol == "fair" and not only_validation:
            return record.result.get("untrained") or {}
        first = next((line for line in record.evaluations if line.get("epoch") == 0), {})
        return first if record.recipe.train.protocol == "paper" or only_validation else {}

    @cached_property
    def classes(self) -> list[dict[str, Any]]:
        """Name, number of queries and metrics of each class, the worst first."""
        names = self.test.catalog.classes
        return [{"class": names[label]} | metrics for label, metrics in self.retrieval.by_class().items()]

    def confusions(self) -> list[dict[str, Any]]:
        """Return the pairs of classes most often confused: the class of a query, and of its first result."""
        names = self.test.catalog.classes
        return [
            {"query": names[query], "found": names[other], "count": times}
            for query, other, times in self.retrieval.confusions(WORST)
        ]

    def class_count(self) -> str:
        """Return the number of test classes, and that of all classes if the dataset has no splits."""
        total = "" if self.test.catalog.splits else f" of {len(np.unique(self.test.catalog.labels)):,}"
        return f"{len(self.classes):,}{total} {'class' if len(self.classes) == 1 else 'classes'}"

    def headline(self) -> str:
        """Describe the test in one line."""
        test, retrieval = self.test, self.retrieval
        among = "one another" if test.gallery is None else f"{len(test.gallery):,} images"
        return (
            f"{test.name} on {test.data}: {retrieval.queries:,} queries among {among}, "
            f"{self.class_count()}, {test.protocol} protocol"
        )

    def text(self, every_class: bool = False) -> str:
        """Format the evaluation as text.

        Args:
            every_class: List all classes, not only the worst.
        """
        before = {name: f"{value:11.2f}" for name, value in self.untrained.items()}
        title = f"{'untrained':>11}" if before else ""
        lines = [
            self.headline(),
            "",
            f"{'':8}{title}{'%':>7}   {'95 % over queries':>17}   {'over classes':>13}",
        ]
        for estimate in self.estimates.values():
            queries, classes = format_interval(estimate.queries), format_interval(estimate.classes)
            values = f"{before.get(estimate.name, ' ' * len(title))}{estimate.value:7.2f}"
            lines.append(f"{estimate.name:8}{values}   {queries:>17}   {classes:>13}".rstrip())
        for title, part in (("clusters", self.clustering), ("pairs", self.verification)):
            if part is not None:
                metrics = [f"{name} {value:.2f}" for name, value in part.metrics().items()]
                if isinstance(part, Verification):
                    metrics.append(f"{part.pairs:,} pairs in {len(part.thresholds)} folds")
                lines.append("")
                for start in range(0, len(metrics), 4):  # within 80 columns
                    lines.append(f"{'' if start else title:8}  {'  '.join(metrics[start : start + 4])}")
        listed = self.classes if every_class else self.classes[:WORST]
        title = "classes, the worst first" if every_class else "worst classes"
        lines += ["", *_table(title, listed)]
        confused = self.confusions()
        if confused:
            lines += ["", "most confused (first result of another class)"]
            lines += [
                f"{pair['count']:6}  {_shorten(pair['query'], 34)} → {_shorten(pair['found'], 34)}"
                for pair in confused
            ]
        omitted = self.retrieval.without_positive
        if omitted:
            many = "query has" if omitted == 1 else "queries have"
            lines += ["", f"omitted: {omitted:,} {many} no other image of the same class to find"]
        return "\n".join(lines + [line for note in self.test.notes for line in ("", note)])

    def json(self) -> str:
        """Format the evaluation as JSON."""
        about = {
            "subject": self.test.name,
            "data": self.test.data,
            "protocol": self.test.protocol,
            "queries": self.retrieval.queries,
            "gallery": None if self.test.gallery is None else len(self.test.gallery),
            "without_positive": self.retrieval.without_positive,
            "notes": self.test.notes,
            "retrieval": {name: asdict(estimate) for name, estimate in self.estimates.items()},
            "untrained": self.untrained,
            "clustering": None if self.clustering is None else self.clustering.metrics(),
            "verification": None if self.verification is None else self.verification.metrics(),
            "classes": self.classes,
            "confusions": self.confusions(),
        }
        return json.dumps(about, indent=2)  # ASCII, because names may not be valid UTF-8


def evaluate_test(test: EmbeddedTest, *, clustering: bool = True) -> Evaluation:
    """Evaluate a model on its test: retrieval, clustering, and verification if the dataset has pairs.

    Args:
        test: The embedded test.
        clustering: Also cluster the test images, which is slow with thousands of classes.

    >>> from pathlib import Path
    >>> catalog = Catalog("toy", Path(), list("abcd"), np.array([0, 0, 1, 1]), ["auk", "wren"], {})
    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]])
    >>> evaluation = evaluate_test(EmbeddedTest("toy", catalog, QueryGallery(np.arange(4)), points))
    >>> evaluation.headline()
    'toy on toy: 4 queries among one another, 2 of 2 classes, paper protocol'
    >>> evaluation.confusions()
    [{'query': 'wren', 'found': 'auk', 'count': 1}]
    >>> evaluation.estimates["P@1"].value
    75.0
    """
    labels, gallery_labels = test.labels, test.gallery_labels
    exclude, gallery_exclude = None, None
    if test.exclude_same is not None:
        codes = test.catalog.column_codes(test.exclude_same)
        exclude, gallery_exclude = codes[test.rows.queries], codes[test.searched_rows]
    retrieval = evaluate(
        test.queries,
        labels,
        test.gallery,
        gallery_labels,
        exclude=exclude,
        gallery_exclude=gallery_exclude,
    )
    clusters = None
    if clustering:
        vectors, classes = test.queries, labels
        if test.gallery is not None and gallery_labels is not None:
            vectors, classes = torch.cat((vectors, test.gallery)), torch.cat((classes, gallery_labels))
        if bool((classes != classes[0]).any()):
            clusters = cluster(vectors, classes)
    verification = None
    if test.catalog.pairs is not None:
        pairs = test.catalog.take(test.rows.queries).pairs  # those with both images embedded
        if pairs is not None and len(np.unique(pairs.folds)) > 1 and len(np.unique(pairs.same)) > 1:
            verification = verify(test.queries, pairs)
        else:
            note = "pairs: not judged; this needs two folds, and both same and different pairs"
            test = replace(test, notes=[*test.notes, note])
    return Evaluation(test, retrieval, clusters, verification)


def format_interval(interval: Interval | None) -> str:
    """Format an interval; None becomes an empty string.

    >>> format_interval((61.94, 63.0))
    '61.9–63.0'
    """
    return "" if interval is None else f"{interval[0]:.1f}–{interval[1]:.1f}"


def _shorten(name: str, width: int) -> str:
    """Shorten a name to keep its line within 80 columns; the JSON has the full name."""
    return shorten_name(printable(name), width)


def _table(title: str, rows: list[dict[str, Any]]) -> list[str]:
    columns = [name for name in CLASS_METRICS if rows and name in rows[0]]
    names = [_shorten(row["class"], 39) for row in rows]
    width = max(len(title), max(map(len, names), default=0))
    lines = [f"{title:{width}}  {'queries':>7}" + "".join(f"{name:>8}" for name in columns)]
    for name, row in zip(names, rows, strict=True):
        metrics = "".join(f"{row[column]:8.1f}" for column in columns)
        lines.append(f"{name:{width}}  {row['queries']:7,.0f}{metrics}")
    return lines
