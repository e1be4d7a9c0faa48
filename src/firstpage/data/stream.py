"""Batches that are decoded on the fly, ahead of the step that needs them, by worker processes."""

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import cached_property
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from firstpage.data.catalog import Catalog
from firstpage.data.decode import Unreadable
from firstpage.data.framing import FileRecord, Framing, Size, decode_rows
from firstpage.data.pixel_batch import PixelBatch, pinned_buffer, send, to_device
from firstpage.data.store import Device, Rows, as_row_indices
from firstpage.data.workers import Workers, usable_cores


class _Pending(NamedTuple):
    """A batch that is being decoded."""

    rows: np.ndarray
    file: Path  # which the workers write
    parts: list[Future[Any]]  # what each worker returns


class Decoding(AbstractContextManager["Decoding"], ABC):
    """A source of batches that are decoded by worker processes, ahead if `prepare` is called.

    Close it, or use it in a `with` block, to stop its workers; they also stop when this process ends.

    Args:
        framing: How images are scaled.
        workers: Number of decoding processes. 0 decodes in this process. Defaults to one per usable core.
    """

    def __init__(self, framing: Framing, workers: int | None) -> None:
        self.framing = framing
        self._folder = TemporaryDirectory(prefix="firstpage-")
        self._names = count()
        self._count = workers
        self._device = torch.device("cpu")
        self._pending: deque[_Pending] = deque()

    @cached_property
    def _workers(self) -> Workers:
        if self._count is None:  # torchrun starts several processes on a machine, which share its cores
            ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            return Workers(max(1, usable_cores() // ranks))
        return Workers(self._count)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _submit(self, rows: np.ndarray, target: str, offset: int) -> Future[Any]:
        """Have a worker decode rows into a file, from `offset` on."""

    @abstractmethod
    def _sizes(self, rows: np.ndarray, results: list[Any]) -> list[tuple[int, int]]:
        """Return height and width of each image of a batch, from what the workers returned."""

    def _wanted(self, rows: Rows) -> np.ndarray:
        return as_row_indices(rows, len(self))

    def to(self, device: Device) -> Self:
        """Send batches to `device` from now on."""
        self._device = torch.device(device)
        return self

    def prepare(self, rows: Rows) -> None:
        """Begin to decode a batch that `batch` will be asked for."""
        self._pending.append(self._request(self._wanted(rows)))

    def batch(self, rows: Rows, device: Device | None = None) -> PixelBatch:
        """Return the pixels of some rows; see `PixelStore.batch`.

        Raises:
            IndexError: A row is outside the catalog.
            Unreadable: An image cannot be decoded. `firstpage data check` finds such images beforehand.
        """
        wanted = self._wanted(rows)
        found = next((item for item in self._pending if np.array_equal(item.rows, wanted)), None)
        if found is not None:
            while self._pending[0] is not found:  # prepared, but not asked for
                self._drop(self._pending.popleft())
            self._pending.popleft()
        target = self._device if device is None else torch.device(device)
        return self._collect(found or self._request(wanted), target)

    def batches(
        self, plan: Iterable[Rows], device: Device | None = None, *, ahead: int = 2
    ) -> Iterator[PixelBatch]:
        """Yield one batch for each list of rows, decoding up to `ahead` batches in advance."""
        target = self._device if device is None else torch.device(device)
        pending: deque[_Pending] = deque()
        try:
            for rows in plan:
                pending.append(self._request(self._wanted(rows)))
                if len(pending) > ahead:
                    yield self._collect(pending.popleft(), target)
            while pending:
                yield self._collect(pending.popleft(), target)
        finally:
            for item in pending:  # the caller left the loop early
                self._drop(item)

    def close(self) -> None:
        """Stop the workers."""
        if "_workers" in vars(self):
            self._workers.close()
        self._pending.clear()
        self._folder.cleanup()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, rows: np.ndarray) -> _Pending:
        file = Path(self._folder.name, str(next(self._names)))
        file.touch()
        share = max(1, -(-len(rows) // max(1, self._workers.count)))  # rows per worker
        starts = range(0, len(rows), share)
        row_bytes = self.framing.row_bytes
        parts = [self._submit(rows[start : start + share], str(file), start * row_bytes) for start in starts]
        return _Pending(rows, file, parts)

    def _collect(self, item: _Pending, device: torch.device) -> PixelBatch:
        try:
            sizes = self._sizes(item.rows, [part.result() for part in item.parts])
            pixels = pinned_buffer((len(item.rows), *self.framing.canvas, 3), torch.uint8, device)
            with open(item.file, "rb") as file:
                file.readinto(pixels.numpy().data)
        finally:
            item.file.unlink()
        lengths = torch.tensor(sizes, dtype=torch.int32).view(-1, 2)
        return PixelBatch(send(pixels, device), to_device(lengths, device), self.framing.least)

    @staticmethod
    def _drop(item: _Pending) -> None:
        for part in item.parts:
            part.cancel()
        item.file.unlink(missing_ok=True)  # even if a worker is still writing to it


class Stream(Decoding):
    """Batches of a catalog, decoded from its files.

    Nothing is stored: each epoch decodes all images again. Use `PixelStore` if it fits the disk, or
    `JpegStore`.

    Args:
        catalog: The images.
        size: Side of the images, in pixels; see `Framing`.
        resize: "shorter", "squash" or "pad"; see `Framing`.
        boxes: Crop each image to its box.
        margin: Enlarge each box on every side by this share of its width and height.
        workers: Number of decoding processes. 0 decodes in this process. Defaults to one per usable core.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (90, 60), "red").save(Path(folder, "a.png"))
    ...     catalog = Catalog("toy", Path(folder), ["a.png"], np.zeros(1, int), ["red"], {})
    ...     with Stream(catalog, size=4, workers=0).to("cpu") as stream:
    ...         stream.batch([0, 0]).pixels.shape, [len(pixels) for pixels in stream.batches([[0], [0, 0]])]
    (torch.Size([2, 4, 6, 3]), [1, 2])
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        size: Size = 256,
        resize: str = "shorter",
        boxes: bool = False,
        margin: float = 0.0,
        workers: int | None = None,
    ) -> None:
        super().__init__(Framing(size, resize, boxes, margin), workers)
        self.catalog = catalog
        self.ok = np.ones(len(catalog), dtype=bool)  # not known before an image is decoded
        self._crops = self.framing.crops(catalog)

    def __len__(self) -> int:
        return len(self.catalog)

    def _submit(self, rows: np.ndarray, target: str, offset: int) -> Future[Any]:
        root, paths = os.fspath(self.catalog.root), [self.catalog.paths[row] for row in rows]
        crops = None if self._crops is None else self._crops[rows].tolist()
        return self._workers.submit(decode_rows, self.framing, root, paths, crops, target, offset, False)

    def _sizes(
        self, rows: np.ndarray, results: list[tuple[list[FileRecord], bytes]]
    ) -> list[tuple[int, int]]:
        records = [record for part, _ in results for record in part]
        for row, record in zip(rows, records, strict=True):
            if record.reason:
                raise Unreadable(self.catalog.paths[row], record.reason)
        return [(record.height, record.width) for record in records]
