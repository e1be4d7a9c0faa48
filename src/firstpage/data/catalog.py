"""The catalog of a dataset: its images, their classes, and the splits they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from firstpage.data.marks import Marks
from firstpage.errors import UserError


@dataclass(frozen=True, eq=False)
class VerificationPairs:
    """Pairs of images for face verification, in folds, as the LFW protocol lists them.

    Attributes:
        folds: [P] Fold of each pair, from 0.
        left: [P] Row of the first image.
        right: [P] Row of the second image.
        same: [P] Whether both images show the same class.

    >>> zero, one = np.array([0]), np.array([1])
    >>> len(VerificationPairs(folds=zero, left=zero, right=one, same=np.array([True])))
    1
    """

    folds: NDArray[np.int64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    same: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.folds)


@dataclass(frozen=True, eq=False)
class Catalog:
    """Labeled images and their splits, as returned by every reader.

    No image is opened: a catalog of a million images is a list of paths and a few arrays.

    Attributes:
        name: The kind of dataset, such as "cub" or "folder".
        root: The folder that `paths` are relative to.
        paths: N paths with forward slashes.
        labels: [N] int64, indices into `classes`.
        classes: Class names. A class may have no images.
        splits: Sorted rows of each split: "train" and "test", or "train", "query" and "gallery".
            A row may be in several splits (the train images of Hotels-50K are its gallery), or in none.
        boxes: [N, 4] float32, x0, y0, x1, y1 in pixels of the file. NaN for images without a box.
        groups: [N] int64, super-classes as indices into `group_names`.
        group_names: Names of the super-classes.
        pairs: Verification pairs (LFW).
        columns: N values of each further column of a table, such as "camera"; "" where one is missing.
        unread: Number of image files of each unsupported format, by suffix.
        warnings: Warnings of the reader: missing files, counts that differ from the published ones.
        file: Name of the table that the rows are from; empty if they are from folders.
        notes: How the reader understood the dataset, where that may surprise.
        class_rule: What made a class, if folders did: the `classes` of `read`.
        marks: Results of searches that people marked, to train on as pairs; their images need not be in it.

    Raises:
        UserError: The arrays do not fit each other.

    >>> catalog = Catalog(
    ...     "folder", Path("birds"), ["wren/1.jpg", "wren/2.jpg", "auk/1.jpg"],
    ...     labels=np.array([1, 1, 0]), classes=["auk", "wren"], splits={"test": np.array([2])},
    ... )
    >>> len(catalog), catalog.path(2).as_posix()
    (3, 'birds/auk/1.jpg')
    """

    name: str
    root: Path
    paths: list[str]
    labels: NDArray[np.int64]
    classes: list[str]
    splits: dict[str, NDArray[np.int64]]
    boxes: NDArray[np.float32] | None = None
    groups: NDArray[np.int64] | None = None
    group_names: list[str] = field(default_factory=list)
    pairs: VerificationPairs | None = None
    columns: dict[str, list[str]] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    file: str = ""
    class_rule: str = ""
    marks: Marks | None = None

    def __post_init__(self) -> None:
        rows = len(self.paths)
        shapes = {"labels": (rows,), "boxes": (rows, 4), "groups": (rows,)}
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                raise UserError(
                    f"Catalog({name}): shape {array.shape} does not fit {rows} paths; must be {shape}"
                )
        codes = {"labels": (self.labels, self.classes), "groups": (self.groups, self.group_names)}
        for name, (array, names) in codes.items():
            if array is not None and rows and not 0 <= array.min() <= array.max() < len(names):
                raise UserError(
                    f"Catalog({name}): {array.min()}..{array.max()} must be in 0..{len(names) - 1}"
                )
        for name, values in self.columns.items():
            if len(values) != rows:
                raise UserError(f"Catalog(columns): {len(values)} values of {name!r} for {rows} paths")
        for name, split in self.splits.items():
            if split.size and (split[0] < 0 or split[-1] >= rows or (np.diff(split) <= 0).any()):
                raise UserError(f"Catalog(splits): rows of {name!r} must be ascending and in 0..{rows - 1}")

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, row: int) -> Path:
        """Return the path of the image of one row."""
        return self.root / self.paths[row]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_] | list[int]) -> Catalog:
        """Return the catalog of some rows, in the given order.

        Labels and groups are renumbered, so that every class has an image. Splits, verification pairs and
        further columns are restricted to these rows.

        Args:
            rows: Row indices without repeats, or a mask of length N, such as the `ok` of a store.

        >>> catalog = Catalog("x", Path(), ["a/1", "b/1", "c/1"], np.arange(3), list("abc"), {})
        >>> part = catalog.take([2, 0])
        >>> part.paths, part.labels.tolist(), part.classes
        (['c/1', 'a/1'], [1, 0], ['a', 'c'])
        """
        chosen = np.arange(len(self))[np.asarray(rows, None if len(rows) else np.int64)]
        position = np.full(len(self), -1)
        position[chosen] = np.arange(chosen.size)
        splits = {name: position[split] for name, split in self.splits.items()}
        labels, classes = _renumber(self.labels[chosen], self.classes)
        groups, group_names = None, self.group_names
        if self.groups is not None:
            groups, group_names = _renumber(self.groups[chosen], self.group_names)
        pairs = self.pairs
        if pairs is not None:
            left, right = position[pairs.left], position[pairs.right]
            both = (left >= 0) & (right >= 0)
            pairs = VerificationPairs(pairs.folds[both], left[both], right[both], pairs.same[both])
        return replace(
            self,
            paths=[self.paths[row] for row in chosen],
            labels=labels,
            classes=classes,
            splits={name: np.sort(rows[rows >= 0]) for name, rows in splits.items() if (rows >= 0).any()},
            boxes=None if self.boxes is None else self.boxes[chosen],
            groups=groups,
            group_names=group_names,
            pairs=pairs,
            marks=None,
            columns={name: [values[row] for row in chosen] for name, values in self.columns.items()},
        )

    def column_codes(self, name: str) -> NDArray[np.int64]:
        """Return a further column as numbers: equal for equal values, and -1 where the value is missing.

        Args:
            name: A key of `columns`.

        Raises:
            UserError: There is no such column.

        >>> columns = {"camera": ["c2", "", "c1", "c2"]}
        >>> catalog = Catalog("x", Path(), list("abcd"), np.arange(4), list("abcd"), {}, columns=columns)
        >>> catalog.column_codes("camera").tolist()
        [0, -1, 1, 0]
        """
        if name not in self.columns:
            has = (
                f"its further columns are {', '.join(self.columns)}"
                if self.columns
                else "only a table has them"
            )
            raise UserError(f"column {name!r}: catalog {self.name!r} has no such column; {has}")
        codes: dict[str, int] = {}
        return np.array(
            [codes.setdefault(value, len(codes)) if value else -1 for value in self.columns[name]], np.int64
        )

    def split(self, name: str) -> Catalog:
        """Return the catalog of one split, with its labels renumbered.

        Args:
            name: A key of `splits`.

        Raises:
            UserError: There is no such split.

        >>> splits = {"train": np.array([0]), "test": np.array([1])}
        >>> catalog = Catalog("x", Path(), ["a/1", "b/1"], np.array([0, 1]), ["a", "b"], splits)
        >>> test = catalog.split("test")
        >>> test.paths, test.labels.tolist(), test.classes
        (['b/1'], [0], ['b'])
        """
        if name not in self.splits:
            remedy = f"it has {', '.join(self.splits)}" if self.splits else "make one with split_classes()"
            raise UserError(f"split({name!r}): catalog {self.name!r} has no such split; {remedy}")
        return self.take(self.splits[name])

    @overload
    def split_classes(
        self, test: float | None = None, *, seed: int | None = None, folds: None = None
    ) -> Catalog: ...
    @overload
    def split_classes(self, test: None = None, *, seed: int | None = None, folds: int) -> list[Catalog]: ...
    def split_classes(
        self, test: float | None = None, *, seed: int | None = None, folds: int | None = None
    ) -> Catalog | list[Catalog]:
        """Split by class, as for retrieval: no class is in both "train" and "test".

        Classes without images are ignored. To hold out training classes for model selection, split again:
        `catalog.split("train").split_classes(folds=4, seed=0)`.

        Args:
            test: Number of test classes, or their share in (0, 1). Defaults to half of the classes.
            seed: Shuffle the classes with this seed. By default they keep their order and the last ones
                are the test classes, as in the published splits of CUB and Cars.
            folds: Make this many splits instead. Each class is a test class in exactly one of them.

        Returns:
            This catalog with new splits "train" and "test", or a list of such catalogs, one per fold.

        Raises:
            UserError: "train" or "test" would have no classes, or both `test` and `folds` are given.

        >>> catalog = Catalog("x", Path(), list("abcd"), np.arange(4), list("abcd"), {})
        >>> catalog.split_classes().split("test").classes
        ['c', 'd']
        >>> catalog.split_classes(1, seed=0).split("test").classes
        ['d']
        >>> [fold.split("test").classes for fold in catalog.split_classes(folds=2)]
        [['a', 'b'], ['c', 'd']]
        """
        classes = np.unique(self.labels)
        if seed is not None:
            classes = np.random.default_rng(seed).permutation(classes)
        if folds is not None:
            if test is not None:
                raise UserError(f"split_classes(test={test}, folds={folds}): give one of the two")
            if not 2 <= folds <= classes.size:
                raise UserError(
                    f"split_classes(folds={folds}): must be in 2..{classes.size}, the number of classes"
                )
            return [self._with_test_classes(part) for part in np.array_split(classes, folds)]
        if classes.size < 2:
            raise UserError(
                f"split_classes(): {self.name!r} has {classes.size} class; a split needs at least two"
            )
        share = 0.5 if test is None else test
        count = round(share * classes.size) if isinstance(share, float) and share < 1 else share
        if not (isinstance(count, int) and 0 < count < classes.size):
            raise UserError(
                f"split_classes(test={share}): must be a share in (0, 1) or a number of classes, and "
                f"leave at least one of the {classes.size} classes on each side"
            )
        return self._with_test_classes(classes[classes.size - count :])

    def _with_test_classes(self, classes: NDArray[np.int64]) -> Catalog:
        test = np.isin(self.labels, classes)
        return replace(self, splits={"train": np.flatnonzero(~test), "test": np.flatnonzero(test)})

    def summary(self) -> str:
        """Describe the catalog in a few lines.

        >>> catalog = Catalog("x", Path(), list("abcd"), np.arange(4), list("abcd"), {})
        >>> print(catalog.split_classes().summary())
        x: 4 images, 4 classes
          train: 2 images, 2 classes
          test: 2 images, 2 classes
        """
        extras = [", boxes"] if self.boxes is not None else []
        extras += [f", {len(self.group_names):,} groups"] if self.groups is not None else []
        extras += [f", {len(self.pairs):,} pairs"] if self.pairs is not None else []
        lines = [f"{self.name}: {_counts(self.labels)}{''.join(extras)}"]
        lines += [f"  {name}: {_counts(self.labels[rows])}" for name, rows in self.splits.items()]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def _counts(labels: NDArray[np.int64]) -> str:
    return f"{labels.size:,} images, {np.unique(labels).size:,} classes"


def _renumber(codes: NDArray[np.int64], names: list[str]) -> tuple[NDArray[np.int64], list[str]]:
    present, renumbered = np.unique(codes, return_inverse=True)
    return renumbered, [names[code] for code in present]
