"""What is to be judged: a run or a saved model, on the test images of a data set, embedded."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firstpage.data import read
from firstpage.data.catalog import Catalog
from firstpage.data.splits import QueryGallery, unreadable_note
from firstpage.data.store import PixelStore
from firstpage.errors import UserError
from firstpage.models.device import resolve_device
from firstpage.models.embedder import Embedder
from firstpage.recipes.settings import ModelSettings, TrainSettings
from firstpage.report.facts import called
from firstpage.runs.record import Record
from firstpage.runs.tested import as_learned, learned_from, tested, unchanged
from firstpage.runs.trained_on import trained_on

__all__ = ["Subject"]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model and the test it takes, embedded and ready to be measured.

    Attributes:
        name: of the folder.
        catalog: the images.
        search: the rows of the catalog that are queries, and those of the gallery if that is another.
        queries: [Q, D] their embeddings.
        gallery: [G, D] likewise, or None.
        protocol: `paper` or `fair`.
        model: what the embedder is made of, where it is known.
        record: what the run folder says, where the model came from one.
        notes: what is to be known of the data, such as images that cannot be read.

    >>> catalog = Catalog("toy", Path(), list("abcd"), np.array([0, 0, 1, 1]), ["auk", "wren"], {})
    >>> subject = Subject("toy", catalog, QueryGallery(np.arange(4)), torch.eye(4))
    >>> subject.labels.tolist(), subject.gallery_labels, subject.own_data
    ([0, 0, 1, 1], None, False)
    """

    name: str
    catalog: Catalog
    search: QueryGallery
    queries: Tensor
    gallery: Tensor | None = None
    protocol: str = "paper"
    model: ModelSettings | None = None
    record: Record | None = None
    notes: list[str] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        data: str | os.PathLike[str] | Catalog | None = None,
        *,
        protocol: str | None = None,
        device: str | None = None,
        cache: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> Subject:
        """Load a model, find its test images and embed them.

        Args:
            folder: a run folder (its best model is judged), or the folder of a saved embedder.
            data: a data set; that of the run, where it was, if left out. Of one without splits the classes
                held out of training are searched where the run learned from it, all images where it did not.
            protocol: `paper` or `fair`, as in training; the run's own if left out, `paper` for a model.
            device: where; a GPU where there is one if left out.
            cache: where stores of pixels are kept; the user's cache if left out.
            progress: show progress.

        Raises:
            FileNotFoundError: no model there, or no data.
            UserError: the data has no test, or not under that protocol.

        >>> Subject.open("nowhere")
        Traceback (most recent call last):
        FileNotFoundError: nowhere: no such folder
        """
        source = Path(folder)
        record = Record.read(source) if (source / "run.json").is_file() else None
        model = Embedder.load(source, resolve_device(device))
        settings = TrainSettings() if record is None else record.recipe.train
        if protocol == "fair" and record is not None and settings.protocol == "paper":
            raise UserError(
                f"protocol='fair': {folder} chose its best epoch on the test classes: "
                "leave it out, or train with train.protocol=fair"
            )
        settings = replace(settings, protocol=protocol or settings.protocol)
        if isinstance(data, Catalog):
            catalog = data
        elif data is not None:
            catalog = read(os.fspath(data))
        elif record is not None:
            catalog = trained_on(record)
        else:
            raise UserError(f"{folder}: a saved model does not know its data: name it by --data")
        catalog = as_learned(record, catalog)
        framing = model.framing
        pixels = PixelStore.build(catalog, cache, size=framing.size, resize=framing.resize, progress=progress)
        search = tested(catalog, pixels.ok, settings, learned_from(record, catalog))
        vectors = model.embed(pixels, rows=search.queries, progress=progress, half=settings.half).to(
            model.device
        )
        gallery = None
        if search.gallery is not None:
            gallery = model.embed(pixels, rows=search.gallery, progress=progress, half=settings.half).to(
                model.device
            )
        name = source.resolve().name
        notes = unreadable_note(catalog, pixels.ok)
        return cls(name, catalog, search, vectors, gallery, settings.protocol, model.settings, record, notes)

    @property
    def data(self) -> str:
        """What the data set is called."""
        return called(self.catalog.name, self.catalog.root.resolve())

    @property
    def labels(self) -> Tensor:
        """[Q] classes of the queries."""
        return torch.from_numpy(self.catalog.labels[self.search.queries]).to(self.queries.device)

    @property
    def gallery_labels(self) -> Tensor | None:
        """[G] classes of the gallery, or None."""
        if self.search.gallery is None:
            return None
        return torch.from_numpy(self.catalog.labels[self.search.gallery]).to(self.queries.device)

    @property
    def results(self) -> NDArray[np.int64]:
        """[G] rows of the catalog that a search returns: of the gallery, or of the queries themselves."""
        return self.search.queries if self.search.gallery is None else self.search.gallery

    @cached_property
    def own_data(self) -> bool:
        """Whether the run was trained on just this data set."""
        return unchanged(self.record, self.catalog)
