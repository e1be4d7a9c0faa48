"""Which images a run learns from, which it selects by, and which it is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firstpage.data.catalog import Catalog
from firstpage.data.decode import shown
from firstpage.training.settings import TrainSettings

if TYPE_CHECKING:  # a check of data must not wait for torch
    import torch

    from firstpage.models.embedder import Embedder, Pixels
    from firstpage.training.ranks import Ranks

__all__ = ["Roles", "Search", "assign", "left_out", "searched"]

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Search:
    """A retrieval test: queries, and the gallery they search (None: one another).

    >>> Search(np.arange(3)).gallery is None
    True
    """

    queries: Rows
    gallery: Rows | None = None

    def check(self, labels: NDArray[np.int64]) -> None:
        """Complain of a test in which nothing could be found, or nothing wrongly.

        >>> Search(np.arange(2)).check(np.array([0, 1]))
        Traceback (most recent call last):
        ValueError: data: no test image has another one of its class to find: give the test classes of two ...
        """
        searched = labels[self.queries if self.gallery is None else self.gallery]
        classes, counts = np.unique(searched, return_counts=True)
        if len(classes) < 2:
            raise ValueError(
                f"data: the test searches images of {len(classes)} class: nothing could be found wrongly: "
                "give it at least two classes"
            )
        least = 2 if self.gallery is None else 1  # an image does not find itself
        if not np.isin(labels[self.queries], classes[counts >= least]).any():
            raise ValueError(
                "data: no test image has another one of its class to find: give the test classes of two "
                "images or more"
            )

    def measure(
        self,
        model: Embedder,
        pixels: Pixels,
        labels: NDArray[np.int64],
        ranks: Ranks,
        half: bool | None = None,
    ) -> dict[str, float]:
        """The model's figures in this test, by name; each rank embeds and searches its share."""
        import torch

        from firstpage.evaluation import evaluate

        def part(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
            return ranks.embed(model, pixels, rows, half), torch.from_numpy(labels[rows]).to(model.device)

        gallery = part(self.gallery) if self.gallery is not None else ()
        found = evaluate(*part(self.queries), *gallery, shared=ranks.world > 1)
        return ranks.told(found.row())


@dataclass(frozen=True, eq=False)
class Roles:
    """The rows of a catalog by what a run does with them.

    Attributes:
        train: learnt from.
        select: the test by which the best model is chosen.
        test: the test that is reported; the same as `select` under the `paper` protocol.
    """

    train: Rows
    select: Search
    test: Search | None

    def learnt(self, catalog: Catalog) -> list[str]:
        """Names of the classes that are learnt from or selected by, but not tested."""
        known = [self.train] if self.select is self.test else [self.train, self.select.queries]
        return [catalog.classes[label] for label in np.unique(catalog.labels[np.concatenate(known)])]

    def text(self, catalog: Catalog) -> str:
        """What is learnt from and what is searched, in a line."""

        def count(rows: Rows, of: str = " of") -> str:
            return f"{len(rows):,}{of} {len(np.unique(catalog.labels[rows])):,}"

        parts = [f"{count(self.train, ' images of')} classes to learn from"]
        if self.select is not self.test:
            parts.append(f"{count(self.select.queries)} to select by")
        if self.test is not None:
            parts.append(f"{count(self.test.queries)} to test")
        return f"{catalog.name}: {', '.join(parts)}"


def assign(catalog: Catalog, readable: NDArray[np.bool_], settings: TrainSettings) -> Roles:
    """Cut a catalog for a protocol. Without splits, a fifth of its classes are the test, at least two.

    Under `fair` a split `val` is what models are selected by; without one, a fold of the training classes is.

    Raises:
        ValueError: there is no training split, or nothing of it can be read.

    >>> from pathlib import Path
    >>> catalog = Catalog("x", Path(), list("abcdefghij"), np.arange(10) // 2, list("abcde"), {})
    >>> roles = assign(catalog, np.ones(10, bool), TrainSettings())
    >>> len(roles.train), len(roles.test.queries)
    (6, 4)
    """
    if not catalog.splits:
        count = len(np.unique(catalog.labels))
        if count < 4:
            raise ValueError(
                f"data: of {count} {'class' if count == 1 else 'classes'} none can be kept for a test: "
                "give at least four, or splits train and test"
            )
        catalog = catalog.split_classes(max(2, round(0.2 * count)), seed=0)  # of one class all is right
    splits = {name: rows[readable[rows]] for name, rows in catalog.splits.items()}
    if "train" in splits and not len(splits["train"]):
        raise ValueError(
            f"data: none of its {len(catalog.splits['train']):,} train images can be read: "
            "run firstpage data check PATH"
        )
    if "train" not in splits:
        raise ValueError(
            f"data: catalog {catalog.name!r} has no train split; it has {', '.join(splits) or 'none'}"
        )
    test = searched(splits)
    train = splits["train"]
    if settings.protocol == "paper":
        if test is None:
            raise ValueError(f"data: catalog {catalog.name!r} has no test split: use train.protocol='fair'")
        return Roles(train, test, test)
    if len(splits.get("val", ())):
        return Roles(train, Search(splits["val"]), test)
    fold = catalog.take(train).split_classes(folds=settings.folds, seed=settings.seed)[settings.fold]
    return Roles(train[fold.splits["train"]], Search(train[fold.splits["test"]]), test)


def searched(splits: Mapping[str, Rows]) -> Search | None:
    """The test that a catalog's splits make: queries in a gallery, or test images among one another.

    >>> searched({"train": np.arange(3)}) is None
    True
    """
    if "query" in splits and "gallery" in splits:
        return Search(splits["query"], splits["gallery"])
    return Search(splits["test"]) if "test" in splits else None


def left_out(catalog: Catalog, readable: NDArray[np.bool_]) -> list[str]:
    """A line on the images that cannot be read, if there are any.

    >>> from pathlib import Path
    >>> left_out(Catalog("x", Path(), ["a", "b"], np.zeros(2, int), ["c"], {}), np.array([True, False]))
    ['1 of 2 images cannot be read, such as b: firstpage data check tells why']
    """
    rows = np.flatnonzero(~readable)
    if not len(rows):
        return []
    first = shown(catalog.paths[rows[0]])
    return [
        f"{len(rows):,} of {len(readable):,} images cannot be read, such as {first}: "
        "firstpage data check tells why"
    ]
