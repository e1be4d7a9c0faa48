"""Opens a run folder or a saved model together with its dataset, for evaluations, reports and figures."""

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from firstpage.data.catalog import Catalog
from firstpage.data.jpeg_store import JpegStore, open_store
from firstpage.data.splits import QueryGallery, query_gallery, split_catalog, unreadable_note
from firstpage.data.store import PixelStore
from firstpage.errors import UserError
from firstpage.models.device import resolve_device
from firstpage.models.embedder import Embedder
from firstpage.models.embedding_cache import embed_cached
from firstpage.recipes.settings import TrainSettings
from firstpage.runs.record import Record
from firstpage.runs.run_data import (
    find_data,
    is_moved,
    is_run_folder,
    is_trained_on,
    read_data,
    restore_splits,
)


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A model and the dataset it is to be used on, split as in training.

    Images are decoded when `pixels`, or anything that depends on them, is first used.

    Attributes:
        name: Name of the folder.
        model: The best model of the run, or the saved model.
        catalog: The dataset.
        settings: Training settings, with the protocol of the test.
        record: Contents of the run folder; None for a saved model.
        like: Contents of the run folder whose test is taken, instead of its own.
        cache: Folder for cached pixels. Defaults to the user's cache.
        progress: Whether to show progress.
        flip: Whether to average the embeddings of each image and of its mirror image.

    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> catalog = Catalog("toy", Path(), ["a"], np.zeros(1, int), ["auk"], {})
    >>> OpenRun("toy", model, catalog).settings.protocol
    'fair'
    """

    name: str
    model: Embedder
    catalog: Catalog
    settings: TrainSettings = field(default_factory=TrainSettings)
    record: Record | None = None
    like: Record | None = None
    cache: str | os.PathLike[str] | None = None
    progress: bool = True
    flip: bool = False

    @cached_property
    def pixels(self) -> PixelStore | JpegStore:
        """Decoded images of the dataset, as the model takes them."""
        kind = "jpeg" if self.settings.store == "none" else self.settings.store  # as in training, and stored
        framing = self.model.framing.suiting(self.catalog)
        return open_store(self.catalog, self.cache, framing, kind=kind, progress=self.progress)

    @cached_property
    def test(self) -> QueryGallery:
        """Rows of the dataset that the model is tested on.

        A dataset with a training split is split as in training. One without any split is split as in training
        if the run was trained on it; otherwise all of its images are the test.

        Raises:
            UserError: There is no test, or none of its images can be read.
        """
        catalog, readable = self.catalog, self.pixels.ok
        test: QueryGallery | None
        if not catalog.splits and not self._is_trained_on:
            test = QueryGallery(np.flatnonzero(readable))
        elif self._is_all_test:
            test = query_gallery({name: rows[readable[rows]] for name, rows in catalog.splits.items()})
        else:
            split = split_catalog(catalog, readable, self.settings)
            test = split.test or split.validation  # without a test split: the classes held out of training
        if test is None or not len(test.queries) or (test.gallery is not None and not len(test.gallery)):
            raise UserError(f"data: {catalog.name!r} has no test image that can be read")
        return test

    @cached_property
    def splits(self) -> dict[str, NDArray[np.int64]]:
        """Splits of the dataset as in training: `val` are the images that selected the best model.

        They are the dataset's own if the run was not trained on it, or if the dataset is all test.
        """
        if self._is_all_test or not self._is_trained_on:
            return self.catalog.splits
        split = split_catalog(self.catalog, self.pixels.ok, self.settings)
        splits = self.catalog.splits | {"train": split.train}
        if split.validation is not split.test:
            splits["val"] = split.validation.queries
        if self.test.gallery is None:
            splits["test"] = self.test.queries
        return splits

    @property
    def _is_trained_on(self) -> bool:
        return is_trained_on(self.like or self.record, self.catalog)

    @property
    def _is_all_test(self) -> bool:  # such as LFW
        return bool(self.catalog.splits) and "train" not in self.catalog.splits

    @property
    def notes(self) -> list[str]:
        """What a reader of the results must know about the data, such as images that cannot be read."""
        notes = unreadable_note(self.catalog, self.pixels.ok)
        if is_moved(self.like or self.record, self.catalog):
            notes.append("most classes have the names of classes that it was trained on, which are left out")
        if self.record is not None and not self.record.result:
            notes.append("the training is not finished: this is its best model so far")
        return (
            [*notes, "embeddings are averaged over each image and its mirror image"] if self.flip else notes
        )

    def embed(self, rows: NDArray[np.int64]) -> Tensor:
        """Embed images in the precision of the training, except those that were embedded before.

        Args:
            rows: Rows of the dataset.

        Returns:
            Unit vectors [len(rows), D] on the device of the model.
        """
        vectors = embed_cached(
            self.model,
            self.pixels,
            rows,
            cache=self.cache,
            half=self.settings.half,
            flip=self.flip,
            progress=self.progress,
        )
        return vectors.to(self.model.device)


def open_run(
    folder: str | os.PathLike[str],
    data: str | os.PathLike[str] | Catalog | None = None,
    *,
    classes: str | None = None,
    protocol: str | None = None,
    like: str | os.PathLike[str] | None = None,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
    flip: bool = False,
) -> OpenRun:
    """Load the model of a run, and find its data.

    Args:
        folder: A run folder, whose best model is loaded, or the folder of a saved model.
        data: A dataset. Defaults to the run's own. If it has no splits, the test set is the classes held
            out of training for a run that was trained on it, and all images otherwise. A run folder stands
            for the data and the test of that run, so that a saved model can be compared with it.
        classes: What makes a class in folders of images; see `firstpage.data.read`. Defaults to what it was
            in training, if the run was trained on this data.
        protocol: `paper` or `fair`, as in training. Defaults to the run's own; `fair` for a saved model.
        like: Folder of a run with which it shall be compared: it is tested on the same images of the data.
        device: `cuda` or `cpu`. Defaults to a GPU if available.
        cache: Folder for cached pixels. Defaults to the user's cache.
        progress: Whether to show progress.
        flip: Whether to average the embeddings of each image and of its mirror image.

    Raises:
        FileNotFoundError: There is no model in the folder, or the data of the run was moved or changed.
        UserError: A saved model without `data`, or `protocol` does not fit the training.

    >>> open_run("nowhere")
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no such folder
    """
    source = Path(folder)
    record = Record.read(source) if is_run_folder(source) else None
    model = Embedder.load(source, resolve_device(device))
    if isinstance(data, str | os.PathLike) and is_run_folder(data):
        data, like = None, data
    other = None if like is None else Record.read(like)
    settings = TrainSettings() if record is None else record.recipe.train
    if protocol == "fair" and record is not None and settings.protocol == "paper":
        raise UserError(
            f"protocol='fair': {folder} selected its best epoch on the test classes: "
            "omit it, or train with train.protocol=fair"
        )
    if other is not None:  # its split, in the precision of this run
        settings = replace(other.recipe.train, precision=(record or other).recipe.train.precision)
    settings = replace(settings, protocol=protocol or settings.protocol)
    if isinstance(data, Catalog):
        catalog = data
    elif data is not None:
        catalog = read_data(other or record, os.fspath(data), classes)
    elif classes is not None:
        raise UserError(f"classes={classes!r}: name the data that is to be read this way with --data")
    elif (trained := other or record) is not None:
        catalog = find_data(trained)
    else:
        raise UserError(
            f"{folder}: a saved model does not record its data: pass the dataset with --data, or the folder "
            "of a run to compare with"
        )
    catalog = restore_splits(other or record, catalog)
    return OpenRun(source.resolve().name, model, catalog, settings, record, other, cache, progress, flip)
