"""A model and its test, embedded."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firstpage.data.catalog import Catalog
from firstpage.data.splits import QueryGallery
from firstpage.recipes.settings import ModelSettings
from firstpage.report.facts import dataset_name
from firstpage.runs.opening import OpenRun
from firstpage.runs.record import Record
from firstpage.runs.run_data import is_same_data


@dataclass(frozen=True, eq=False)
class EmbeddedTest:
    """The embedded test images of a run or saved model.

    Attributes:
        name: Name of the run or model.
        catalog: The dataset.
        rows: Rows of the queries in the catalog, and those of the gallery if they search one.
        queries: [Q, D] embeddings of the queries.
        gallery: [G, D] embeddings of the gallery, or None.
        protocol: `paper` or `fair`.
        model: Settings of the model, if known.
        record: Contents of the run folder; None for a saved model.
        notes: What a reader must know about the data, such as images that cannot be read.

    >>> from pathlib import Path
    >>> catalog = Catalog("toy", Path(), list("abcd"), np.array([0, 0, 1, 1]), ["auk", "wren"], {})
    >>> test = EmbeddedTest("toy", catalog, QueryGallery(np.arange(4)), torch.eye(4))
    >>> test.labels.tolist(), test.gallery_labels, test.is_own_data
    ([0, 0, 1, 1], None, False)
    """

    name: str
    catalog: Catalog
    rows: QueryGallery
    queries: Tensor
    gallery: Tensor | None = None
    protocol: str = "paper"
    model: ModelSettings | None = None
    record: Record | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def data(self) -> str:
        """The name of the dataset."""
        return dataset_name(self.catalog.name, self.catalog.root.resolve())

    @property
    def labels(self) -> Tensor:
        """[Q] classes of the queries."""
        return torch.from_numpy(self.catalog.labels[self.rows.queries]).to(self.queries.device)

    @property
    def gallery_labels(self) -> Tensor | None:
        """[G] classes of the gallery, or None."""
        if self.rows.gallery is None:
            return None
        return torch.from_numpy(self.catalog.labels[self.rows.gallery]).to(self.queries.device)

    @property
    def searched_rows(self) -> NDArray[np.int64]:
        """[G] rows of the searched images: the gallery, or the queries if they search one another."""
        return self.rows.queries if self.rows.gallery is None else self.rows.gallery

    @cached_property
    def is_own_data(self) -> bool:
        """Whether the run was trained on exactly this dataset."""
        return is_same_data(self.record, self.catalog)


def embed_test(run: OpenRun) -> EmbeddedTest:
    """Embed the test images of a run.

    Args:
        run: A run or saved model, as `open_run` returns it.

    Raises:
        UserError: The data has no test under the protocol of the run.

    >>> from firstpage.runs import open_run
    >>> embed_test(open_run("nowhere"))
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no such folder
    """
    queries = run.embed(run.test.queries)
    gallery = None if run.test.gallery is None else run.embed(run.test.gallery)
    protocol = run.settings.protocol
    return EmbeddedTest(
        run.name, run.catalog, run.test, queries, gallery, protocol, run.model.settings, run.record, run.notes
    )
