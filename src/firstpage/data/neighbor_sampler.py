"""NeighborSampler: batches of classes together with the classes nearest to them (METHODS §11, HTL)."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from firstpage.data.sampler import GroupSampler, hash_numbers
from firstpage.errors import UserError
from firstpage.losses.class_tree import nearest_classes

_Ints = NDArray[np.int64]


class NeighborSampler(GroupSampler):
    """Batches of a few images from each of some classes and of the classes nearest to them.

    From: Ge et al., Deep Metric Learning with Hierarchical Triplet Loss, ECCV 2018, §3.2. A batch is filled
    with classes drawn at random, each followed by its `neighbors` nearest ones, so that every image meets
    others that are hard to tell from it. The classes that are drawn go through a random permutation, then
    through another, and so on; one that is in the batch already is passed over. No class appears twice in a
    batch.

    Which classes are near is what `survey` was told last; `fit` calls it at the start and then every
    `train.survey_every` epochs. Before that, all classes are drawn at random. In everything else it is a
    `GroupSampler`: size of epochs, images of a class, ranks, and resuming.

    Args:
        labels: Class of each row, any integers, `[N]`.
        batch_size: Images in a global batch.
        images_per_class: Maximum number of images of one class in a batch.
        neighbors: Classes that follow each class drawn.
        options: Those of `GroupSampler`.

    Raises:
        UserError: A batch could not be filled; see `GroupSampler`.

    >>> labels = torch.arange(12) // 2
    >>> sampler = NeighborSampler(labels, batch_size=4, images_per_class=2, neighbors=1)
    >>> angles = torch.tensor([0.0, 1.0, 2.0, 0.1, 1.1, 2.1])[labels]  # classes 0 and 3 are near, 1 and 4, …
    >>> sampler.survey(torch.stack([angles.cos(), angles.sin()], dim=1), labels)
    >>> [labels[batch].unique().tolist() for batch in sampler]
    [[0, 3], [1, 4], [1, 4]]
    """

    def __init__(
        self,
        labels: ArrayLike,
        batch_size: int,
        images_per_class: int,
        neighbors: int,
        **options: Any,  # noqa: ANN401
    ) -> None:
        super().__init__(labels, batch_size, images_per_class, **options)
        if neighbors < 1:
            raise UserError(f"NeighborSampler(neighbors={neighbors}): neighbors must be at least 1")
        self.neighbors = neighbors
        self._codes = np.unique(np.asarray(labels), return_inverse=True)[1]
        self._nearest = torch.empty(len(self._counts), 0, dtype=torch.long)
        # Each batch may visit any class, so an epoch has so many visits of its own: no other repeats them.
        self._passes = len(self)

    def survey(self, vectors: Tensor, labels: Tensor) -> None:
        """Find the nearest classes of each.

        Args:
            vectors: [N, D] Embeddings of all rows, in their order.
            labels: [N] Their classes; those that the sampler was created with are used.
        """
        if len(vectors) != len(self._codes):
            raise UserError(
                f"vectors: {len(vectors)} rows; the sampler has {len(self._codes)}: embed every row of it"
            )
        codes = torch.from_numpy(self._codes).to(vectors.device)
        self._nearest = nearest_classes(vectors, codes, len(self._counts), self.neighbors).cpu()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the sampler, with its settings and the nearest classes."""
        return super().state_dict() | {"nearest": self._nearest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, which must be of a sampler with the same settings and labels."""
        super().load_state_dict(state)
        self._nearest = state["nearest"]

    def _settings(self) -> dict[str, int | bool]:
        return super()._settings() | {"neighbors": self.neighbors}

    def _visits(self, epoch: int) -> tuple[_Ints, _Ints, _Ints]:
        """The class visits of an epoch in order: class, which visit of it in the epoch, images taken."""
        classes, taken = [], []
        nearest, groups = self._nearest.tolist(), self._group.tolist()
        drawn = self._draw(epoch)
        for _ in range(len(self)):
            left, present = self.batch_size, set[int]()
            while left:
                anchor = next(drawn)
                for one in () if anchor in present else (anchor, *nearest[anchor]):
                    if left and one not in present:
                        present.add(one)
                        classes.append(one)
                        taken.append(min(groups[one], left))
                        left -= taken[-1]
        visited = np.array(classes, np.int64)
        return visited, _occurrences(visited), np.array(taken, np.int64)

    def _draw(self, epoch: int) -> Iterator[int]:
        """Yield all classes in random order, again and again."""
        every, number = np.arange(len(self._counts)), 0
        while True:
            yield from np.argsort(hash_numbers(self.seed, epoch, number, every)).tolist()
            number += 1


def _occurrences(values: _Ints) -> _Ints:
    """How often each value occurred before."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=-1))
    inside = np.arange(len(values)) - np.repeat(starts, np.diff(starts, append=len(values)))
    found = np.empty_like(values)
    found[order] = inside
    return found
