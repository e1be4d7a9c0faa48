"""Images of a dataset and their embeddings, from a file or by the model of a run."""

from __future__ import annotations

import math
import os
import zipfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firstpage.data.catalog import Catalog
from firstpage.data.decode import decode_image
from firstpage.data.splits import QueryGallery, query_gallery
from firstpage.errors import UserError, one_line
from firstpage.evaluation.inputs import as_labeled_vectors
from firstpage.runs.opening import OpenRun, open_run

Rows = NDArray[np.int64]

MAX_RATIO = 100  # of what an .npz file holds to its size: a compressed one may hold more than memory does
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True, eq=False)
class EmbeddedImages:
    """Images with their labels and embeddings, and the dataset they are from, if known.

    Attributes:
        source: [N, D] embeddings; or the run whose model embeds the images when `embeddings` is first used.
        labels: [N] their classes.
        rows: [N] their rows in the catalog; None without a catalog.
        catalog: The dataset, for splits and pictures. Its splits are those of the training for a run.

    >>> EmbeddedImages(torch.eye(5), torch.arange(5)).subsample(3).labels
    tensor([0, 2, 4])
    """

    source: Tensor | OpenRun
    labels: Tensor
    rows: Rows | None = None
    catalog: Catalog | None = None

    @cached_property
    def embeddings(self) -> Tensor:
        """[N, D] embeddings."""
        if isinstance(self.source, Tensor):
            return self.source
        assert self.rows is not None
        return self.source.embed(self.rows)

    def split(self, name: str | None) -> EmbeddedImages:
        """Return the images of a split, in its order; all images if `name` is None.

        In a dataset of queries and gallery, `test` is both of them without the training images.

        Raises:
            UserError: The dataset is unknown, or it has no such split, or none of its images is embedded.
        """
        if name is None:
            return self
        if self.catalog is None:
            raise UserError(f"split={name!r}: pass the dataset too (--data): the file has no splits")
        splits = self.catalog.splits
        if name == "test" and "test" not in splits and "query" in splits:
            searched = np.union1d(splits["query"], splits.get("gallery", splits["query"]))
            rows = np.setdiff1d(searched, splits.get("train", np.zeros(0, np.int64)))
        elif name in splits:
            rows = splits[name]
        elif not splits:
            raise UserError(
                f"split={name!r}: the dataset has no splits: give the folder of a run trained on it, "
                "which held classes out"
            )
        else:
            raise UserError(f"split={name!r}: the dataset has {', '.join(splits)}")
        found = self._at_rows(rows)
        if not len(found.labels):
            raise UserError(f"split={name!r}: none of its images is among the embeddings")
        return found

    def test(self) -> tuple[EmbeddedImages, EmbeddedImages | None]:
        """Return the queries of the test and the gallery they search, None if they search one another.

        It is the test of an evaluation. Without a dataset or splits, all images search one another.
        """
        if self.catalog is None or not self.catalog.splits:
            return self, None
        test: QueryGallery | None
        test = query_gallery(self.catalog.splits) if isinstance(self.source, Tensor) else self.source.test
        if test is None:
            return self.split("test"), None
        return self._at_rows(test.queries), None if test.gallery is None else self._at_rows(test.gallery)

    def join(self, other: EmbeddedImages) -> EmbeddedImages:
        """Return these images, followed by others of the same dataset."""
        rows = None if self.rows is None or other.rows is None else np.concatenate([self.rows, other.rows])
        embeddings = torch.cat((self.embeddings, other.embeddings))
        return EmbeddedImages(embeddings, torch.cat((self.labels, other.labels)), rows, self.catalog)

    def subsample(self, count: int) -> EmbeddedImages:
        """Return at most `count` images, evenly spaced."""
        last = len(self.labels) - 1
        return self._at(torch.linspace(0, last, min(count, last + 1)).long().numpy())

    def image(self, position: int, side: int = 64) -> NDArray[np.uint8]:
        """Decode the image at a position: uint8 [h, w, 3], not much larger than `side`."""
        if self.catalog is None or self.rows is None:
            raise UserError("images: pass the dataset (--data): the file holds embeddings only")
        return np.asarray(decode_image(self.catalog.path(int(self.rows[position])), min_side=side))

    def _at_rows(self, rows: Rows) -> EmbeddedImages:
        """Return the images at some rows of the catalog, without those that are not embedded."""
        assert self.catalog is not None
        assert self.rows is not None
        positions = np.full(len(self.catalog), -1)
        positions[self.rows] = np.arange(len(self.rows))
        return self._at(positions[rows][positions[rows] >= 0])

    def _at(self, positions: Rows) -> EmbeddedImages:
        index = torch.from_numpy(positions)
        source = self.source[index] if isinstance(self.source, Tensor) else self.source
        rows = None if self.rows is None else self.rows[positions]
        return EmbeddedImages(source, self.labels[index], rows, self.catalog)


def read_embeddings(path: str | os.PathLike[str], catalog: Catalog | None = None) -> EmbeddedImages:
    """Read an .npz file of `firstpage embed`, or open a run, whose best model embeds its data on demand.

    Args:
        path: The file, or the folder of a run or saved model.
        catalog: The dataset of the file, for splits and pictures; or the dataset to embed, which defaults to
            the run's own. What a run was trained on is split as in training.

    Raises:
        FileNotFoundError: There is no model in the folder, or the data of the run was moved or changed.
        UserError: The file does not exist, has other contents, or is of another dataset; or a saved model
            without a dataset.

    >>> read_embeddings("nowhere.npz")
    Traceback (most recent call last):
    firstpage.errors.UserError: nowhere.npz: no such file: write one with firstpage embed MODEL ...
    """
    if Path(path).is_dir():
        run = open_run(path, catalog)
        readable = np.flatnonzero(run.pixels.ok)
        labels = torch.from_numpy(run.catalog.labels[readable]).to(run.model.device)
        return EmbeddedImages(run, labels, readable, replace(run.catalog, splits=run.splits))
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file: write one with firstpage embed MODEL DATA {path}")
    try:
        vectors, labels, paths = _read_npz(path)
    except Exception as error:  # damaged files make zipfile, zlib and numpy raise anything
        reason = one_line(error)
        raise UserError(f"{path}: {reason}: write the file again with firstpage embed") from None
    rows = None
    if catalog is not None:
        row_of = {name: row for row, name in enumerate(catalog.paths)}
        unknown = next((name for name in paths if name not in row_of), None)
        if unknown is not None:
            raise UserError(
                f"{path}: {unknown!r} is not in {catalog.root}: pass the dataset it was made from"
            )
        rows = np.array([row_of[name] for name in paths], np.int64)
    return EmbeddedImages(vectors, labels, rows, catalog)


def _read_npz(path: str | os.PathLike[str]) -> tuple[Tensor, Tensor, list[str]]:
    """Read embeddings [N, D], labels [N] and paths. Sizes are checked before memory is taken."""
    with zipfile.ZipFile(path) as file:
        members = {info.filename.removesuffix(".npy"): info for info in file.infolist()}
        missing = [name for name in ("embeddings", "labels", "paths") if name not in members]
        if missing:
            raise UserError(f"holds no {missing[0]}")
        if sum(info.file_size for info in members.values()) > MAX_RATIO * os.path.getsize(path):
            raise UserError(f"holds more than {MAX_RATIO} bytes for each of its own")
        arrays = [_read_array(file, members[name]) for name in ("embeddings", "labels", "paths")]
    vectors, labels = as_labeled_vectors("embeddings", arrays[0], "labels", arrays[1])
    paths = arrays[2]
    if paths.shape != labels.shape or paths.dtype.kind != "U":
        raise UserError(f"paths: got {paths.dtype} of shape {paths.shape}, need one name per embedding")
    if not all(part.isfinite().all() for part in torch.split(vectors, 2**16)):
        raise UserError("embeddings hold NaN or infinity")
    return vectors, labels.to(torch.int64), paths.tolist()


def _read_array(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    with file.open(info) as member:
        shape, _, dtype = _HEADERS[np.lib.format.read_magic(member)](member)
    if math.prod(shape) * dtype.itemsize > info.file_size:
        raise UserError(f"{info.filename} declares shape {shape} of {dtype}, which it does not hold")
    with file.open(info) as member:
        array: NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
    return array
