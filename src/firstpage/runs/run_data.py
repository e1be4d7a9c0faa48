"""Which data a run was trained on, and which of it is its test: one rule for evaluations and figures."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstpage.data import read
from firstpage.data.catalog import Catalog
from firstpage.data.splits import QueryGallery, query_gallery, split_catalog
from firstpage.errors import UserError
from firstpage.recipes.settings import TrainSettings
from firstpage.runs.folder import fingerprint
from firstpage.runs.record import Record

__all__ = ["find_data", "is_same_data", "is_trained_on", "restore_splits", "select_test", "training_splits"]

# A run records the folder of a table, but not the name of its file.
_TABLE_SUFFIXES = {"csv": (".csv", ".tsv"), "parquet": (".parquet", ".pq")}


def find_data(record: Record) -> Catalog:
    """Read the dataset a run was trained on, if it is still in its folder and unchanged.

    Raises:
        FileNotFoundError: It was moved or changed.

    >>> from firstpage.recipes.recipe import Recipe
    >>> find_data(Record(Path("runs/a"), Recipe(), {"data": {"name": "cub", "root": "birds"}}, []))
    Traceback (most recent call last):
    FileNotFoundError: runs/a: its data (cub in birds) was moved or changed: pass the dataset with --data
    """
    about = _data(record)
    name, root = str(about.get("name", "")), Path(str(about.get("root", "")))
    # The root of a catalog is the folder of its images: the annotations may be in its parent.
    candidates: list[str | Path] = [root, root.parent]
    candidates += ["glyphs"] if name == "glyphs" else []
    candidates += sorted(path for suffix in _TABLE_SUFFIXES.get(name, ()) for path in root.glob(f"*{suffix}"))
    for path in candidates:
        try:
            with warnings.catch_warnings():  # training showed them already
                warnings.simplefilter("ignore")
                catalog = read(path, kind=name)
        except (OSError, ValueError, TypeError, ImportError):
            continue
        if is_same_data(record, catalog):
            return catalog
    raise FileNotFoundError(
        f"{record.folder}: its data ({name} in {root}) was moved or changed: pass the dataset with --data"
    )


def is_same_data(record: Record | None, catalog: Catalog) -> bool:
    """Return whether a run was trained on exactly this dataset, in whichever folder it is now.

    >>> is_same_data(None, Catalog("toy", Path(), list("ab"), np.arange(2), ["auk", "wren"], {}))
    False
    """
    return _data(record).get("fingerprint") == fingerprint(catalog)


def is_trained_on(record: Record | None, catalog: Catalog) -> bool:
    """Return whether a run was trained on this dataset, or on an earlier version of it in the same folder.

    >>> from firstpage.recipes import Recipe
    >>> catalog = Catalog("toy", Path(), list("ab"), np.arange(2), ["auk", "wren"], {})
    >>> record = Record(Path("run"), Recipe(), {"data": {"fingerprint": fingerprint(catalog)}}, [])
    >>> is_trained_on(record, catalog), is_trained_on(None, catalog)
    (True, False)
    """
    return _is_same_root(record, catalog) or is_same_data(record, catalog)


def _is_same_root(record: Record | None, catalog: Catalog) -> bool:
    return _data(record).get("root") == str(catalog.root.resolve())


def _data(record: Record | None) -> dict[str, Any]:
    """Return what `run.json` records about the data."""
    return {} if record is None else record.about.get("data") or {}


def restore_splits(record: Record | None, catalog: Catalog) -> Catalog:
    """Split a dataset that has no splits and has changed since training by the recorded training classes.

    A new random split would test classes that the run was trained on. Any other dataset is returned as is.

    >>> from firstpage.recipes import Recipe
    >>> catalog = Catalog("toy", Path(), list("abc"), np.arange(3), ["auk", "crow", "wren"], {})
    >>> about = {"root": str(Path().resolve()), "fingerprint": "of before", "learned": ["auk", "owl"]}
    >>> restore_splits(Record(Path("run"), Recipe(), {"data": about}, []), catalog).split("test").classes
    ['crow', 'wren']
    """
    names = _data(record).get("learned")
    if catalog.splits or not names or not _is_same_root(record, catalog) or is_same_data(record, catalog):
        return catalog
    train = np.isin(np.array(catalog.classes, object)[catalog.labels], names)
    return replace(catalog, splits={"train": np.flatnonzero(train), "test": np.flatnonzero(~train)})


def select_test(
    catalog: Catalog, readable: NDArray[np.bool_], settings: TrainSettings, trained: bool
) -> QueryGallery:
    """Select the images of a dataset that a model is tested on.

    A dataset with a training split is split as in training. One without any split is split as in training if
    the run was trained on it; otherwise all of its images are the test.

    Args:
        catalog: The dataset.
        readable: [N] whether each image can be read.
        settings: Training settings of the run.
        trained: Whether the run was trained on the dataset.

    Raises:
        UserError: There is no test, or none of its images can be read.

    >>> catalog = Catalog("toy", Path(), list("abcdefghij"), np.arange(10) // 2, list("abcde"), {})
    >>> readable = np.ones(10, bool)
    >>> [len(select_test(catalog, readable, TrainSettings(), known).queries) for known in (True, False)]
    [4, 10]
    """
    test: QueryGallery | None
    if not catalog.splits and not trained:
        test = QueryGallery(np.flatnonzero(readable))
    elif catalog.splits and "train" not in catalog.splits:  # datasets such as LFW are all test
        test = query_gallery({name: rows[readable[rows]] for name, rows in catalog.splits.items()})
    else:
        split = split_catalog(catalog, readable, settings)
        test = split.test or split.validation  # without a test split: the classes held out of training
    if test is None or not len(test.queries) or (test.gallery is not None and not len(test.gallery)):
        raise UserError(f"data: {catalog.name!r} has no test image that can be read")
    return test


def training_splits(
    record: Record | None, catalog: Catalog, readable: NDArray[np.bool_]
) -> dict[str, NDArray[np.int64]]:
    """Return the splits of a dataset as in the training of a run: `val` are the images it selected by.

    They are the dataset's own if the run was not trained on it, or if the dataset is all test.

    >>> catalog = Catalog("toy", Path(), list("ab"), np.arange(2), ["auk", "wren"], {"test": np.arange(2)})
    >>> training_splits(None, catalog, np.ones(2, bool))
    {'test': array([0, 1])}
    """
    all_test = bool(catalog.splits) and "train" not in catalog.splits
    if record is None or all_test or not is_trained_on(record, catalog):
        return catalog.splits
    settings = record.recipe.train
    split = split_catalog(catalog, readable, settings)
    splits = catalog.splits | {"train": split.train}
    if split.validation is not split.test:
        splits["val"] = split.validation.queries
    test = select_test(catalog, readable, settings, trained=True)
    if test.gallery is None:
        splits["test"] = test.queries
    return splits
