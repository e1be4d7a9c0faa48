"""The split of a dataset for a run: images for training, for model selection, and for the test."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firstpage.data.catalog import Catalog
from firstpage.data.decode import printable
from firstpage.errors import UserError
from firstpage.recipes.settings import TrainSettings

Rows = NDArray[np.int64]

FEW = 5  # classes of a test, below which a line warns of chance


@dataclass(frozen=True, eq=False)
class QueryGallery:
    """The rows of a retrieval test: queries, and the gallery that is searched.

    Args:
        queries: Rows of the query images.
        gallery: Rows of the images to search. None if the queries are searched themselves.

    >>> QueryGallery(np.arange(3)).gallery is None
    True
    """

    queries: Rows
    gallery: Rows | None = None

    @property
    def size(self) -> int:
        """Number of images to embed.

        >>> QueryGallery(np.arange(3), np.arange(5)).size
        8
        """
        return len(self.queries) + (0 if self.gallery is None else len(self.gallery))

    def check(self, labels: NDArray[np.int64]) -> None:
        """Raise an error if no query can be answered correctly, or none incorrectly.

        >>> QueryGallery(np.arange(2)).check(np.array([0, 1]))
        Traceback (most recent call last):
        firstpage.errors.UserError: data: no test image has another image of its class to find; use ...
        """
        gallery = labels[self.queries if self.gallery is None else self.gallery]
        classes, counts = np.unique(gallery, return_counts=True)
        if len(classes) < 2:
            raise UserError(
                f"data: the test searches images of {len(classes)} class, so that every result is correct; "
                "use at least two test classes"
            )
        least = 2 if self.gallery is None else 1  # an image is no result of its own search
        if not np.isin(labels[self.queries], classes[counts >= least]).any():
            raise UserError(
                "data: no test image has another image of its class to find; use test classes with two or "
                "more images"
            )


@dataclass(frozen=True, eq=False)
class DataSplit:
    """The rows of a catalog for training, for model selection and for the test.

    Attributes:
        train: Rows to train on.
        validation: The retrieval test that selects the best model.
        test: The retrieval test that is reported. Under the `paper` protocol the same as `validation`.
    """

    train: Rows
    validation: QueryGallery
    test: QueryGallery | None

    @property
    def tested(self) -> Rows:
        """Rows of the images of both tests, each once.

        >>> test = QueryGallery(np.array([3, 1]), np.array([1, 2]))
        >>> DataSplit(np.array([0]), test, test).tested
        array([1, 2, 3])
        """
        tests = [self.validation] if self.test is None else [self.validation, self.test]
        sides = [rows for test in tests for rows in (test.queries, test.gallery) if rows is not None]
        return np.unique(np.concatenate(sides))

    def train_classes(self, catalog: Catalog) -> list[str]:
        """Return the names of the classes used for training or selection, but not for the test."""
        known = [self.train] if self.validation is self.test else [self.train, self.validation.queries]
        return [catalog.classes[label] for label in np.unique(catalog.labels[np.concatenate(known)])]

    def summary(self, catalog: Catalog) -> str:
        """Describe the split in one line."""

        def count(rows: Rows, of: str = " of") -> str:
            return f"{len(rows):,}{of} {len(np.unique(catalog.labels[rows])):,}"

        parts = [f"training on {count(self.train, ' images of')} classes"]
        if self.validation.queries is self.train:
            parts.append("selecting on the same images, as classes are too few to hold some out")
        elif self.validation is not self.test:
            parts.append(f"selecting on {count(self.validation.queries)}")
        if self.test is not None:
            parts.append(f"testing on {count(self.test.queries)}")
            tested = np.unique(catalog.labels[self.test.queries])
            shared = np.isin(tested, catalog.labels[self.train]).sum()
            if shared:
                parts[-1] += f" ({shared:,} of these classes are in training, too)"
        tests = [self.validation, *([] if self.test is None else [self.test])]
        fewest = min(len(np.unique(catalog.labels[test.queries])) for test in tests)
        chance = "; with so few classes, figures vary by chance: --folds averages" if fewest < FEW else ""
        return f"{catalog.name}: {', '.join(parts)}{chance}"


def split_catalog(catalog: Catalog, readable: NDArray[np.bool_], settings: TrainSettings) -> DataSplit:
    """Split a catalog by the protocol of a run.

    In a catalog without splits, a fifth of the classes, but at least two, become test classes. Under the
    `fair` protocol the best model is selected on the split `val`, or on one fold of the training classes:
    on at least two of them, or, if there are fewer than four, on the training images themselves.

    Raises:
        UserError: There is no training split, or none of its images can be read.

    >>> from pathlib import Path
    >>> catalog = Catalog("x", Path(), list("abcdefghij"), np.arange(10) // 2, list("abcde"), {})
    >>> split = split_catalog(catalog, np.ones(10, bool), TrainSettings(protocol="paper"))
    >>> len(split.train), len(split.test.queries)
    (6, 4)
    """
    catalog = with_splits(catalog)
    splits = {name: rows[readable[rows]] for name, rows in catalog.splits.items()}
    if "train" in splits and not len(splits["train"]):
        raise UserError(
            f"data: none of its {len(catalog.splits['train']):,} train images can be read; "
            "run firstpage data check PATH"
        )
    if "train" not in splits:
        raise UserError(
            f"data: catalog {catalog.name!r} has no train split; it has {', '.join(splits) or 'none'}: "
            "train on other data, and evaluate on this"
        )
    test = query_gallery(splits)
    train = splits["train"]
    if settings.protocol == "paper":
        if test is None:
            raise UserError(f"data: catalog {catalog.name!r} has no test split; use train.protocol='fair'")
        return DataSplit(train, test, test)
    if len(splits.get("val", ())):
        return DataSplit(train, QueryGallery(splits["val"]), test)
    # Every fold needs two classes: with one, every result would be correct.
    count = len(np.unique(catalog.labels[train]))
    folds = max(1, min(settings.folds, count // 2))
    if settings.fold >= folds:
        raise UserError(
            f"train.fold={settings.fold}: {count} training classes give {folds} folds of two or more; "
            f"use train.folds={folds}"
        )
    if folds == 1:
        return DataSplit(train, QueryGallery(train), test)
    fold = catalog.take(train).split_classes(folds=folds, seed=settings.seed)[settings.fold]
    return DataSplit(train[fold.splits["train"]], QueryGallery(train[fold.splits["test"]]), test)


def with_splits(catalog: Catalog) -> Catalog:
    """Return a catalog that has splits: by default a fifth of the classes, at least two, are the test.

    Raises:
        UserError: There are too few classes.

    >>> from pathlib import Path
    >>> catalog = Catalog("x", Path(), list("abcdefghij"), np.arange(10) // 2, list("abcde"), {})
    >>> {name: len(rows) for name, rows in with_splits(catalog).splits.items()}
    {'train': 6, 'test': 4}
    """
    if catalog.splits:
        return catalog
    count = len(np.unique(catalog.labels))
    if count < 4:
        raise UserError(
            f"data: {count} {'class' if count == 1 else 'classes'} cannot be split into train and test; "
            "use at least four, or give splits train and test"
        )
    # With one test class every result would be correct.
    return catalog.split_classes(max(2, round(0.2 * count)), seed=0)


def query_gallery(splits: Mapping[str, Rows]) -> QueryGallery | None:
    """Return the retrieval test of a catalog's splits: `query` in `gallery`, or `test` within itself.

    >>> query_gallery({"train": np.arange(3)}) is None
    True
    """
    if "query" in splits and "gallery" in splits:
        return QueryGallery(splits["query"], splits["gallery"])
    return QueryGallery(splits["test"]) if "test" in splits else None


def unreadable_note(catalog: Catalog, readable: NDArray[np.bool_]) -> list[str]:
    """Return one line about the images that cannot be read; empty if all can.

    >>> from pathlib import Path
    >>> catalog = Catalog("x", Path(), ["a", "b"], np.zeros(2, int), ["c"], {})
    >>> unreadable_note(catalog, np.array([True, False]))
    ['1 of 2 images cannot be read, such as b; firstpage data check lists the reasons']
    """
    rows = np.flatnonzero(~readable)
    if not len(rows):
        return []
    first = printable(catalog.paths[rows[0]])
    return [
        f"{len(rows):,} of {len(readable):,} images cannot be read, such as {first}; "
        "firstpage data check lists the reasons"
    ]
