"""Training on marks: pairs of images that a person called right or wrong, beside the recipe's loss.

A few marked pairs are added to the end of every batch. The recipe's loss, memories and health do not see
them; they have a loss of their own, so that images without a label can be learned from. The rows of their
images follow those of the catalog, and their labels say what they are: `RIGHT` or `WRONG`.
"""

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firstpage.data.catalog import Catalog
from firstpage.data.framing import Framing
from firstpage.data.jpeg_store import JpegStore, open_pixels, open_store
from firstpage.data.marks import Marks
from firstpage.data.pixel_batch import PixelBatch
from firstpage.data.store import PixelStore
from firstpage.data.stream import Stream
from firstpage.pairs import unit

RIGHT, WRONG = -1, -2  # the labels of marked images
PAIRS = 16  # marked pairs in a batch, at most
FAR = 0.5  # cosine from which on a wrong result is left alone: a distance of 1, as in the contrastive loss


def marked_loss(vectors: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cost of marked pairs: 1 − s of right ones, [s − 0.5]₊ of wrong ones.

    Args:
        vectors: [2P, D] query, result, query, result, …
        labels: [2P] `RIGHT` or `WRONG` of both images of a pair.

    >>> vectors = torch.tensor([[1.0, 0.0], [0.8, 0.6], [1.0, 0.0], [0.6, 0.8]])
    >>> marked_loss(vectors, torch.tensor([RIGHT, RIGHT, WRONG, WRONG]))
    tensor(0.1500)
    """
    queries, results = unit(vectors.float())[0::2], unit(vectors.float())[1::2]
    cosine = (queries * results).sum(dim=1)
    return torch.where(labels[0::2] == RIGHT, 1 - cosine, (cosine - FAR).relu()).mean()


class MarkedSampler:
    """Adds marked pairs to the batches of a sampler: all of them in turn, shuffled anew in each turn.

    Args:
        sampler: Plans the batches.
        images: Number of training images. Those of the i-th pair have the rows images + 2i and the next.
        pairs: Number of marked pairs.
        seed: Of the order.

    >>> from firstpage.data import GroupSampler
    >>> sampler = MarkedSampler(GroupSampler([0, 0, 1, 1], batch_size=4, images_per_class=2), 4, 1)
    >>> [batch[4:] for batch in sampler], sampler.epoch
    ([[4, 5]], 1)
    """

    def __init__(self, sampler: Any, images: int, pairs: int, seed: int = 0) -> None:  # noqa: ANN401
        self.sampler, self._images, self._pairs, self._seed = sampler, images, pairs, seed
        self.marked = 2 * min(PAIRS, pairs)  # rows at the end of a batch
        self._drawn = 0  # batches so far

    @property
    def epoch(self) -> int:
        """Epochs finished so far."""
        epoch: int = self.sampler.epoch
        return epoch

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[int]]:
        for rows in self.sampler:
            places = np.arange(self.marked // 2) + self._drawn * (self.marked // 2)
            self._drawn += 1
            yield rows + [row for place in places.tolist() for row in self._rows(place)]

    def _rows(self, place: int) -> tuple[int, int]:
        turn, number = divmod(place, self._pairs)
        order = np.random.default_rng([self._seed, turn]).permutation(self._pairs)
        first = self._images + 2 * int(order[number])
        return first, first + 1

    def state_dict(self) -> Mapping[str, Any]:
        """Return what it takes to continue."""
        return {"sampler": self.sampler.state_dict(), "drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.sampler.load_state_dict(state["sampler"])
        self._drawn = int(state["drawn"])


def marked_rows(marks: Marks, images: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of the images of all pairs, which follow those of the catalog, and their labels.

    Args:
        marks: The marks.
        images: Number of images in the catalog.

    >>> from pathlib import Path
    >>> rows, labels = marked_rows(Marks(Path(), ["/a", "/a"], ["/b", "/c"], [True, False]), 10)
    >>> rows.tolist(), labels.tolist()
    ([10, 11, 10, 12], [-1, -1, -2, -2])
    """
    labels = np.where(np.array(marks.right, bool), RIGHT, WRONG).repeat(2)
    return images + marks.pairs.reshape(-1), labels.astype(np.int64)


class JoinedPixels:
    """The pixels of a catalog, followed by those of marked images.

    Args:
        pixels: Of the catalog.
        marked: Of the marked images, all of them readable.

    Attributes:
        ok: [N] Which images of the catalog could be decoded.

    >>> class Black:
    ...     ok = np.ones(3, bool)
    ...     def __len__(self): return 3
    ...     def batch(self, rows, device=None):
    ...         return PixelBatch(torch.zeros(len(rows), 4, 4, 3), torch.full((len(rows), 2), 4), (4, 4))
    >>> len(JoinedPixels(Black(), Black()).batch([0, 2, 4]))
    3
    """

    def __init__(self, pixels: Any, marked: Any) -> None:  # noqa: ANN401
        self._pixels, self._marked, self.ok = pixels, marked, pixels.ok
        if hasattr(pixels, "prepare"):
            self.prepare = self._prepare

    def __len__(self) -> int:
        return len(self._pixels)

    @property
    def stores(self) -> list[Any]:
        """Both."""
        return [self._pixels, self._marked]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        if name in ("_pixels", "_marked"):  # of a copy that has none yet
            raise AttributeError(name)
        return getattr(self._pixels, name)  # all else is as of the catalog alone

    def batch(self, rows: Any, device: Any = None) -> PixelBatch:  # noqa: ANN401
        """Return the pixels of rows: those of the catalog first, then those of marked images."""
        chosen = np.asarray(rows, np.int64)
        count = len(self._pixels)
        parts = [(self._pixels, chosen[chosen < count]), (self._marked, chosen[chosen >= count] - count)]
        batches = [source.batch(some, device) for source, some in parts if len(some)]
        if len(batches) == 1:
            return batches[0]  # type: ignore[no-any-return]
        pixels, sizes = (torch.cat([getattr(part, name) for part in batches]) for name in ("pixels", "sizes"))
        return PixelBatch(pixels, sizes, batches[0].least)

    def batches(self, parts: Sequence[NDArray[np.int64]], device: Any = None) -> Iterator[PixelBatch]:  # noqa: ANN401
        """Yield the pixels of several lists of rows; those of the catalog alone are decoded ahead."""
        if all((part < len(self._pixels)).all() for part in parts):
            yield from self._pixels.batches(parts, device)
        else:
            yield from (self.batch(part, device) for part in parts)

    def _prepare(self, rows: NDArray[np.int64]) -> None:
        own = rows[rows < len(self._pixels)]
        if len(own):
            self._pixels.prepare(own)

    def to(self, device: Any) -> Self:  # noqa: ANN401
        """Return the pixels on a device, where they fit."""
        moved = copy.copy(self)
        moved._pixels, moved._marked = self._pixels.to(device), self._marked.to(device)
        return moved

    def close(self) -> None:
        """Release what the stores hold."""
        self._pixels.close()
        self._marked.close()


def open_training_pixels(
    catalog: Catalog,
    folder: str | os.PathLike[str] | None,
    framing: Framing,
    kind: str = "auto",
    *,
    progress: bool = True,
) -> "PixelStore | JpegStore | Stream | JoinedPixels":
    """Open the pixels of a catalog as `open_pixels` does, and those of its marks, if it has any.

    >>> from pathlib import Path
    >>> catalog = Catalog("birds", Path(), ["a.jpg"], np.zeros(1, int), ["auk"], {})
    >>> type(open_training_pixels(catalog, None, Framing(), "none")).__name__
    'Stream'
    """
    pixels = open_pixels(catalog, folder, framing, kind=kind, progress=progress)
    marks = catalog.marks
    if marks is None:
        return pixels
    images = [str(marks.path(image)) for image in marks.images]
    pictures = Catalog("marks", marks.folder, images, np.zeros(len(images), np.int64), ["marked"], {})
    return JoinedPixels(pixels, open_store(pictures, folder, framing.suiting(pictures), progress=False))
