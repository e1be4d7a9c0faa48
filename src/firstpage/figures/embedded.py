"""What the figures need of an embedded dataset: vectors, classes, splits and pictures."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firstpage.errors import UserError

if TYPE_CHECKING:
    from firstpage.data.catalog import Catalog
    from firstpage.runs.record import Record

__all__ = ["Embedded", "read_embedded"]


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings of a dataset, and the dataset itself where it was named.

    Attributes:
        embeddings: [N, D].
        labels: [N] their classes.
        rows: [N] their rows in the catalog.
        catalog: the dataset; None where only the file is known.

    >>> Embedded(torch.eye(5), torch.arange(5)).every(3).labels
    tensor([0, 2, 4])
    """

    embeddings: Tensor
    labels: Tensor
    rows: NDArray[np.int64] | None = None
    catalog: Catalog | None = None

    def part(self, split: str | None) -> Embedded:
        """The images of a split, or all without one. `test` is all that is searched: not train.

        Raises:
            UserError: the dataset is unknown, or has no such split, or none of its images is here.
        """
        if split is None:
            return self
        if self.catalog is None or self.rows is None:
            raise UserError(f"split={split!r}: name the dataset too (--data): it knows who is in which split")
        splits = self.catalog.splits
        if split == "test" and "test" not in splits and "query" in splits:
            searched = np.union1d(splits["query"], splits.get("gallery", splits["query"]))
            wanted = np.setdiff1d(searched, splits.get("train", np.zeros(0, np.int64)))
        elif split in splits:
            wanted = splits[split]
        elif not splits:
            raise UserError(
                f"split={split!r}: the dataset has none: name the folder of a run that learned from it: "
                "it held classes out"
            )
        else:
            raise UserError(f"split={split!r}: the dataset has {', '.join(splits)}")
        kept = np.flatnonzero(np.isin(self.rows, wanted))
        if not len(kept):
            raise UserError(f"split={split!r}: none of its images is among the embeddings")
        chosen = torch.from_numpy(kept)
        return Embedded(self.embeddings[chosen], self.labels[chosen], self.rows[kept], self.catalog)

    def joined(self, other: Embedded) -> Embedded:
        """These images, then others of the same dataset."""
        rows = None if self.rows is None or other.rows is None else np.concatenate([self.rows, other.rows])
        vectors, labels = (self.embeddings, other.embeddings), (self.labels, other.labels)
        return Embedded(torch.cat(vectors), torch.cat(labels), rows, self.catalog)

    def every(self, most: int) -> Embedded:
        """At most so many images, evenly taken from all."""
        chosen = torch.linspace(0, len(self.labels) - 1, min(most, len(self.labels))).long()
        rows = None if self.rows is None else self.rows[chosen.numpy()]
        return Embedded(self.embeddings[chosen], self.labels[chosen], rows, self.catalog)

    def picture(self, place: int, side: int = 64) -> NDArray[np.uint8]:
        """The image at a place of `embeddings`, uint8 [h, w, 3], not much larger than `side`."""
        from firstpage.data.decode import decode_image

        if self.catalog is None or self.rows is None:
            raise UserError("pictures: name the dataset (--data): the embeddings hold none")
        return np.asarray(decode_image(self.catalog.path(int(self.rows[place])), min_side=side))


def read_embedded(path: str | os.PathLike[str], catalog: Catalog | None = None) -> Embedded:
    """Read an .npz file that `firstpage embed` wrote, or embed a dataset by a run's best model.

    Args:
        path: the file; or the folder of a run or of a model.
        catalog: the dataset it was made from, for splits and pictures; what a model shall embed: a run's own,
            where it was, if left out. What a run learned from is cut as in its training.

    Raises:
        FileNotFoundError: there is no model in the folder, or the run's own data is gone.
        UserError: it is no such file, or of another dataset; or a model without its run, and no dataset.

    >>> read_embedded("nowhere.npz")
    Traceback (most recent call last):
    firstpage.errors.UserError: nowhere.npz: no such file: write one with firstpage embed MODEL ...
    """
    if Path(path).is_dir():
        return _embed(Path(path), catalog)
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file: write one with firstpage embed MODEL DATA {path}")
    try:
        with np.load(path) as file:
            vectors, labels, paths = file["embeddings"], file["labels"], file["paths"]
    except (KeyError, OSError, ValueError):
        raise UserError(
            f"{path}: holds no embeddings, labels and paths: write it with firstpage embed"
        ) from None
    rows = None
    if catalog is not None:
        place = {name: row for row, name in enumerate(catalog.paths)}
        strange = next((name for name in paths.tolist() if name not in place), None)
        if strange is not None:
            raise UserError(f"{path}: {strange} is not in {catalog.root}: name the dataset it was made from")
        rows = np.array([place[name] for name in paths.tolist()], np.int64)
    return Embedded(torch.from_numpy(vectors), torch.from_numpy(labels.astype(np.int64)), rows, catalog)


def _embed(folder: Path, catalog: Catalog | None) -> Embedded:
    from firstpage.models.embed import embed_to_file
    from firstpage.runs.record import Record
    from firstpage.runs.tested import as_learned
    from firstpage.runs.trained_on import trained_on

    record = Record.read(folder) if (folder / "run.json").is_file() else None
    if catalog is None:
        if record is None:
            raise UserError(f"{folder}: is no run: name the dataset that it shall embed (--data)")
        catalog = trained_on(record)
    catalog = as_learned(record, catalog)
    with TemporaryDirectory() as place:
        embed_to_file(folder, catalog, Path(place, "all.npz"))
        whole = read_embedded(Path(place, "all.npz"), catalog)
    if record is None or whole.rows is None:
        return whole
    return replace(whole, catalog=_as_cut(catalog, whole.rows, record))


def _as_cut(catalog: Catalog, rows: NDArray[np.int64], record: Record) -> Catalog:
    """The dataset in the splits that a run made of it, if it learned from it: `val` is what it chose by."""
    from firstpage.data.splits import split_catalog
    from firstpage.runs.tested import learned_from, tested

    all_test = bool(catalog.splits) and "train" not in catalog.splits
    if all_test or not learned_from(record, catalog):
        return catalog
    readable = np.isin(np.arange(len(catalog)), rows)
    settings = record.recipe.train
    roles, test = (
        split_catalog(catalog, readable, settings),
        tested(catalog, readable, settings, learned=True),
    )
    splits = catalog.splits | {"train": roles.train}
    if roles.validation is not roles.test:
        splits["val"] = roles.validation.queries
    if test.gallery is None:
        splits["test"] = test.queries
    return replace(catalog, splits=splits)
