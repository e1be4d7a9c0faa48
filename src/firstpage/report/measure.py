"""All that is said of a model on its test: figures with intervals, classes, confusions; as text or JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from firstpage.data.decode import printable
from firstpage.evaluation import Clustering, Retrieval, Verification, cluster, evaluate, verify
from firstpage.report.subject import Subject

__all__ = ["Estimate", "Measured", "measure", "written"]

Span = tuple[float, float]
WORST = 10  # classes and pairs of classes that a text names
BY_CLASS = ("P@1", "P@5", "R@4", "MAP@R")  # figures of a class that are shown


@dataclass(frozen=True)
class Estimate:
    """A figure in percent, with its 95 % intervals over other queries and over other classes.

    >>> Estimate("P@1", 50.0, (40.0, 60.0), (30.0, 70.0)).value
    50.0
    """

    name: str
    value: float
    queries: Span | None = None
    classes: Span | None = None


@dataclass(frozen=True, eq=False)
class Measured:
    """A subject's figures.

    Attributes:
        subject: what was measured.
        retrieval: what its searches return.
        clustering: how its clusters agree with the classes, unless that was left out.
        verification: how well it tells pairs apart, where the data has pairs.

    >>> from pathlib import Path
    >>> from firstpage.data.catalog import Catalog
    >>> from firstpage.data.splits import QueryGallery
    >>> catalog = Catalog("toy", Path(), list("abcd"), np.array([0, 0, 1, 1]), ["auk", "wren"], {})
    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]])
    >>> subject = Subject("toy", catalog, QueryGallery(np.arange(4)), points)
    >>> found = evaluate(points, subject.labels)
    >>> Measured(subject, found, None, None).classes[0]["class"]
    'wren'
    """

    subject: Subject
    retrieval: Retrieval
    clustering: Clustering | None
    verification: Verification | None

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Every retrieval figure by name, with its intervals."""
        found = {}
        for name, value in self.retrieval.row().items():
            over_queries = self.retrieval.interval(name, over="queries")
            over_classes = self.retrieval.interval(name, over="classes")
            found[name] = Estimate(name, value, over_queries, over_classes)
        return found

    @cached_property
    def classes(self) -> list[dict[str, Any]]:
        """Each class by name, with its queries and their figures; the worst first."""
        names = self.subject.catalog.classes
        return [{"class": names[label]} | figures for label, figures in self.retrieval.by_class().items()]

    def confusions(self, count: int = WORST) -> list[dict[str, Any]]:
        """The pairs of classes most often confused: a first result of the second for a query of the first."""
        names = self.subject.catalog.classes
        return [
            {"query": names[query], "found": names[found], "count": times}
            for query, found, times in self.retrieval.confusions(count)
        ]

    def counted_classes(self) -> str:
        """How many classes were searched for, and out of how many where the data did not say which."""
        held_out = "" if self.subject.catalog.splits else f" of {len(self.subject.catalog.classes):,}"
        return f"{len(self.classes):,}{held_out} {'class' if len(self.classes) == 1 else 'classes'}"

    def headline(self) -> str:
        """What was searched for what, in a line."""
        subject, retrieval = self.subject, self.retrieval
        among = "one another" if subject.gallery is None else f"{len(subject.gallery):,} images"
        return (
            f"{subject.name} on {subject.data}: {retrieval.queries:,} queries among {among}, "
            f"{self.counted_classes()}, {subject.protocol} protocol"
        )

    def text(self, every_class: bool = False) -> str:
        """The figures for a person.

        Args:
            every_class: the table of all classes, not only of the worst.
        """
        lines = [self.headline(), "", f"{'':8}{'%':>7}   {'95 % over queries':>17}   {'over classes':>13}"]
        for estimate in self.estimates.values():
            spans = "".join(
                f"   {written(span):>{width}}"
                for span, width in ((estimate.queries, 17), (estimate.classes, 13))
            )
            lines.append(f"{estimate.name:8}{estimate.value:7.2f}{spans}".rstrip())
        for title, part in (("clusters", self.clustering), ("pairs", self.verification)):
            if part is not None:
                said = [f"{name} {value:.2f}" for name, value in part.row().items()]
                lines.append("")
                for place in range(0, len(said), 4):  # within 80 columns
                    lines.append(f"{'' if place else title:8}  {'  '.join(said[place : place + 4])}")
        listed = self.classes if every_class else self.classes[:WORST]
        title = "classes, the worst first" if every_class else "worst classes"
        lines += ["", *_table(title, listed)]
        confused = self.confusions()
        if confused:
            lines += ["", "most confused (first result of another class)"]
            lines += [
                f"{pair['count']:6}  {_cut(pair['query'], 34)} → {_cut(pair['found'], 34)}"
                for pair in confused
            ]
        if self.retrieval.without_positive:
            lines += [
                "",
                f"{self.retrieval.without_positive:,} queries have no image to find, and are left out",
            ]
        return "\n".join(lines + [line for note in self.subject.notes for line in ("", note)])

    def json(self) -> str:
        """All of it, as JSON."""
        about = {
            "subject": self.subject.name,
            "data": self.subject.data,
            "protocol": self.subject.protocol,
            "queries": self.retrieval.queries,
            "gallery": None if self.subject.gallery is None else len(self.subject.gallery),
            "without_positive": self.retrieval.without_positive,
            "notes": self.subject.notes,
            "retrieval": {name: asdict(estimate) for name, estimate in self.estimates.items()},
            "clustering": None if self.clustering is None else self.clustering.row(),
            "verification": None if self.verification is None else self.verification.row(),
            "classes": self.classes,
            "confusions": self.confusions(),
        }
        return json.dumps(about, indent=2)  # names may hold bytes that are no UTF-8


def measure(subject: Subject, *, clustering: bool = True) -> Measured:
    """Measure a subject in all the ways its data allows.

    Args:
        subject: what to measure.
        clustering: also cluster the test images, which costs much with thousands of classes.

    >>> from pathlib import Path
    >>> from firstpage.data.catalog import Catalog
    >>> from firstpage.data.splits import QueryGallery
    >>> catalog = Catalog("toy", Path(), list("abcd"), np.array([0, 0, 1, 1]), ["auk", "wren"], {})
    >>> points = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.3]])
    >>> subject = Subject("toy", catalog, QueryGallery(np.arange(4)), points)
    >>> measured = measure(subject)
    >>> measured.headline()
    'toy on toy: 4 queries among one another, 2 of 2 classes, paper protocol'
    >>> measured.confusions()
    [{'query': 'wren', 'found': 'auk', 'count': 1}]
    >>> measured.estimates["P@1"].value
    75.0
    """
    labels, gallery_labels = subject.labels, subject.gallery_labels
    retrieval = evaluate(subject.queries, labels, subject.gallery, gallery_labels)
    clusters = None
    if clustering:
        vectors, codes = subject.queries, labels
        if subject.gallery is not None and gallery_labels is not None:
            vectors, codes = torch.cat((vectors, subject.gallery)), torch.cat((codes, gallery_labels))
        if bool((codes != codes[0]).any()):
            clusters = cluster(vectors, codes)
    return Measured(subject, retrieval, clusters, _verified(subject))


def _verified(subject: Subject) -> Verification | None:
    if subject.catalog.pairs is None:
        return None
    pairs = subject.catalog.take(subject.search.queries).pairs  # those of which both images are embedded
    if pairs is None or len(np.unique(pairs.folds)) < 2 or len(np.unique(pairs.same)) < 2:
        return None
    return verify(subject.queries, pairs)


def written(span: Span | None) -> str:
    """An interval in a few characters; nothing where there is none.

    >>> written((61.94, 63.0))
    '61.9–63.0'
    """
    return "" if span is None else f"{span[0]:.1f}–{span[1]:.1f}"


def _cut(name: str, width: int) -> str:
    """A name that leaves its line within 80 columns; the JSON has it whole."""
    name = printable(name)
    return name if len(name) <= width else f"{name[: width - 1]}…"


def _table(title: str, rows: list[dict[str, Any]]) -> list[str]:
    columns = [name for name in BY_CLASS if rows and name in rows[0]]
    names = [_cut(row["class"], 39) for row in rows]
    width = max(len(title), max(map(len, names), default=0))
    lines = [f"{title:{width}}  {'queries':>7}" + "".join(f"{name:>8}" for name in columns)]
    for name, row in zip(names, rows, strict=True):
        figures = "".join(f"{row[name]:8.1f}" for name in columns)
        lines.append(f"{name:{width}}  {row['queries']:7,.0f}{figures}")
    return lines
