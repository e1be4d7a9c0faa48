"""Which images of a data set a model is tested by: one rule for figures, evaluations and reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstpage.data.catalog import Catalog
from firstpage.data.splits import QueryGallery, query_gallery, split_catalog
from firstpage.errors import UserError
from firstpage.recipes.settings import TrainSettings
from firstpage.runs.folder import fingerprint
from firstpage.runs.record import Record

__all__ = ["as_learned", "learned_from", "tested", "unchanged"]


def unchanged(record: Record | None, catalog: Catalog) -> bool:
    """Whether a run learned from just this data set, wherever it lies.

    >>> from pathlib import Path
    >>> unchanged(None, Catalog("toy", Path(), list("ab"), np.arange(2), ["auk", "wren"], {}))
    False
    """
    return _data(record).get("fingerprint") == fingerprint(catalog)


def _in_its_place(record: Record | None, catalog: Catalog) -> bool:
    return _data(record).get("root") == str(catalog.root.resolve())


def _data(record: Record | None) -> dict[str, Any]:
    """What a run folder says of the data."""
    return {} if record is None else record.about.get("data") or {}


def as_learned(record: Record | None, catalog: Catalog) -> Catalog:
    """A data set without splits that has changed since a run learned from it, split by what was learned.

    Cut anew, it would test classes that the run knows. Any other data set is as it was.

    >>> from pathlib import Path
    >>> from firstpage.recipes import Recipe
    >>> catalog = Catalog("toy", Path(), list("abc"), np.arange(3), ["auk", "crow", "wren"], {})
    >>> about = {"root": str(Path().resolve()), "fingerprint": "of before", "learned": ["auk", "owl"]}
    >>> as_learned(Record(Path("run"), Recipe(), {"data": about}, []), catalog).split("test").classes
    ['crow', 'wren']
    """
    names = _data(record).get("learned")
    if catalog.splits or not names or not _in_its_place(record, catalog) or unchanged(record, catalog):
        return catalog
    learned = np.isin(np.array(catalog.classes, object)[catalog.labels], names)
    return replace(catalog, splits={"train": np.flatnonzero(learned), "test": np.flatnonzero(~learned)})


def learned_from(record: Record | None, catalog: Catalog) -> bool:
    """Whether a run learned from this data set, or from one in its place that has changed since.

    >>> from pathlib import Path
    >>> from firstpage.recipes import Recipe
    >>> catalog = Catalog("toy", Path(), list("ab"), np.arange(2), ["auk", "wren"], {})
    >>> record = Record(Path("run"), Recipe(), {"data": {"fingerprint": fingerprint(catalog)}}, [])
    >>> learned_from(record, catalog), learned_from(None, catalog)
    (True, False)
    """
    return _in_its_place(record, catalog) or unchanged(record, catalog)


def tested(
    catalog: Catalog, readable: NDArray[np.bool_], settings: TrainSettings, learned: bool
) -> QueryGallery:
    """The test of a catalog under a protocol: as in training, where it has a training split or needs one.

    Args:
        catalog: the data set.
        readable: [N] which of its images can be read.
        settings: of the run.
        learned: whether the run learned from it; without splits, all that it did not learn from is searched.

    Raises:
        UserError: there is no test, or nothing of it can be read.

    >>> from pathlib import Path
    >>> catalog = Catalog("toy", Path(), list("abcdefghij"), np.arange(10) // 2, list("abcde"), {})
    >>> [len(tested(catalog, np.ones(10, bool), TrainSettings(), known).queries) for known in (True, False)]
    [4, 10]
    """
    test: QueryGallery | None
    if not catalog.splits and not learned:
        test = QueryGallery(np.flatnonzero(readable))
    elif catalog.splits and "train" not in catalog.splits:  # LFW and its like are all test
        test = query_gallery({name: rows[readable[rows]] for name, rows in catalog.splits.items()})
    else:
        roles = split_catalog(catalog, readable, settings)
        test = roles.test or roles.validation  # without a test split: the classes held out of training
    if test is None or not len(test.queries) or (test.gallery is not None and not len(test.gallery)):
        raise UserError(f"data: {catalog.name!r} has no test image that can be read")
    return test
