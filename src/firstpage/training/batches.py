"""The training images, as the network sees them."""

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firstpage.data.augment import Augment
from firstpage.data.catalog import Catalog
from firstpage.data.pixel_batch import to_device
from firstpage.models.embedder import Pixels
from firstpage.training.features import FeatureStore


class TrainBatches:
    """Augmented training images with their labels, by the rows of a sampler.

    Args:
        catalog: The dataset.
        rows: Which rows of the catalog are trained on.
        labels: [rows] Their classes, numbered from 0 without gaps.
        pixels: The stored pixels of the catalog, or their features.
        augment: Turns stored pixels into network input.
        seed: Seed of the augmentation.
        device: Where batches go.
    """

    def __init__(
        self,
        catalog: Catalog,
        rows: NDArray[np.int64],
        labels: NDArray[np.int64],
        pixels: Pixels,
        augment: Augment,
        seed: int,
        device: torch.device,
    ) -> None:
        self.catalog, self.rows = catalog, rows
        self.labels = torch.from_numpy(labels).to(device)
        self.image_ids = torch.from_numpy(rows).to(device)
        self._pixels, self._augment, self._seed, self._device = pixels, augment, seed, device

    def path(self, image_id: int) -> str:
        """Return the path of an image by its id: of the catalog, or a marked one after them."""
        count, marks = len(self.catalog), self.catalog.marks
        return (
            self.catalog.paths[image_id] if image_id < count or not marks else marks.images[image_id - count]
        )

    def ahead(
        self, sampler: Iterable[list[int]], split: Callable[[int], list[slice]], count: int = 2
    ) -> Iterator[list[int]]:
        """Yield the batches of a sampler, while the images of the next ones are prepared.

        Args:
            sampler: Yields the rows of each global batch.
            split: Returns the parts of a batch of so many rows that `images` will be asked for.
            count: Number of batches to prepare in advance.
        """
        if not hasattr(self._pixels, "prepare"):
            yield from sampler
            return
        coming = iter(copy.deepcopy(sampler))  # so that the state of the sampler itself is that of the step
        prepared: deque[list[int]] = deque()
        for rows in sampler:
            for following in islice(coming, count + 1 - len(prepared)):
                for part in split(len(following)):
                    self._pixels.prepare(self.rows[following[part]])
                prepared.append(following)
            prepared.popleft()
            yield rows

    def images(self, rows: list[int], step: int, part: slice) -> Tensor:
        """Return the network input [B, 3, H, W] of a part of a batch's rows in a step, or features [B, F]."""
        if isinstance(self._pixels, FeatureStore):
            return self._pixels.draw(self.rows[rows[part]], step=step, first=part.start)
        pixels = self._pixels.batch(self.rows[rows[part]], self._device)
        return self._augment(pixels, seed=self._seed, step=step, first=part.start)

    def targets(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """Return the labels and the image ids (rows of the catalog) of some rows."""
        batch = to_device(torch.tensor(rows), self._device)
        return self.labels[batch], self.image_ids[batch]
