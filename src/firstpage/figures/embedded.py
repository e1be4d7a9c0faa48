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

if TYPE_CHECKING:
    from firstpage.data.catalog import Catalog

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
            ValueError: the dataset is unknown, or has no such split, or none of its images is here.
        """
        if split is None:
            return self
        if self.catalog is None or self.rows is None:
            raise ValueError(
                f"split={split!r}: name the dataset too (--data): it knows who is in which split"
            )
        splits = self.catalog.splits
        if split == "test" and "test" not in splits and "query" in splits:
            searched = np.union1d(splits["query"], splits.get("gallery", splits["query"]))
            wanted = np.setdiff1d(searched, splits.get("train", np.zeros(0, np.int64)))
        elif split in splits:
            wanted = splits[split]
        elif not splits:
            raise ValueError(
                f"split={split!r}: the dataset has none: name the run folder instead: it held classes out"
            )
        else:
            raise ValueError(f"split={split!r}: the dataset has {', '.join(splits)}")
        kept = np.flatnonzero(np.isin(self.rows, wanted))
        if not len(kept):
            raise ValueError(f"split={split!r}: none of its images is among the embeddings")
        chosen = torch.from_numpy(kept)
        return Embedded(self.embeddings[chosen], self.labels[chosen], self.rows[kept], self.catalog)

    def every(self, most: int) -> Embedded:
        """At most so many images, evenly taken from all."""
        chosen = torch.linspace(0, len(self.labels) - 1, min(most, len(self.labels))).long()
        rows = None if self.rows is None else self.rows[chosen.numpy()]
        return Embedded(self.embeddings[chosen], self.labels[chosen], rows, self.catalog)

    def picture(self, place: int, side: int = 64) -> NDArray[np.uint8]:
        """The image at a place of `embeddings`, uint8 [h, w, 3], not much larger than `side`."""
        from firstpage.data.decode import decode

        if self.catalog is None or self.rows is None:
            raise ValueError("pictures: name the dataset (--data): the embeddings hold none")
        return np.asarray(decode(self.catalog.path(int(self.rows[place])), enough=side))


def read_embedded(path: str | os.PathLike[str], catalog: Catalog | None = None) -> Embedded:
    """Read an .npz file that `firstpage embed` wrote, or embed a dataset by a run's best model.

    Args:
        path: the file; or the folder of a run or of a model.
        catalog: the dataset it was made from, for splits and pictures; what a model shall embed: a run's own,
            where it was, if left out. One without splits is cut by classes, as in training.

    Raises:
        FileNotFoundError: there is no model in the folder, or the run's own data is gone.
        ValueError: it is no such file, or of another dataset; or a model without its run, and no dataset.

    >>> read_embedded("nowhere.npz")
    Traceback (most recent call last):
    ValueError: nowhere.npz: no such file: write one with firstpage embed MODEL DATA nowhere.npz
    """
    if Path(path).is_dir():
        return _embed(Path(path), catalog)
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such file: write one with firstpage embed MODEL DATA {path}")
    try:
        with np.load(path) as file:
            vectors, labels, paths = file["embeddings"], file["labels"], file["paths"]
    except (KeyError, OSError, ValueError):
        raise ValueError(
            f"{path}: holds no embeddings, labels and paths: write it with firstpage embed"
        ) from None
    rows = None
    if catalog is not None:
        place = {name: row for row, name in enumerate(catalog.paths)}
        strange = next((name for name in paths.tolist() if name not in place), None)
        if strange is not None:
            raise ValueError(f"{path}: {strange} is not in {catalog.root}: name the dataset it was made from")
        rows = np.array([place[name] for name in paths.tolist()], np.int64)
    return Embedded(torch.from_numpy(vectors), torch.from_numpy(labels.astype(np.int64)), rows, catalog)


def _embed(folder: Path, catalog: Catalog | None) -> Embedded:
    from firstpage.models.embed import embed_to_file
    from firstpage.training.record import Record
    from firstpage.training.settings import TrainSettings
    from firstpage.training.splits import assign
    from firstpage.training.trained_on import trained_on

    if catalog is None:
        if not (folder / "run.json").is_file():
            raise ValueError(f"{folder}: is no run: name the dataset that it shall embed (--data)")
        catalog = trained_on(Record.read(folder))
    with TemporaryDirectory() as place:
        embed_to_file(folder, catalog, Path(place, "all.npz"))
        whole = read_embedded(Path(place, "all.npz"), catalog)
    if catalog.splits or whole.rows is None:
        return whole
    readable = np.isin(np.arange(len(catalog)), whole.rows)
    roles = assign(catalog, readable, TrainSettings())
    splits = {"train": roles.train} | ({} if roles.test is None else {"test": roles.test.queries})
    return replace(whole, catalog=replace(catalog, splits=splits))
