"""The stream: the interface of the pixel store for datasets too large to store, decoded on the fly."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import numpy as np
import torch

from firstpage.data.catalog import Catalog
from firstpage.data.decode import Unreadable
from firstpage.data.framing import FileRecord, Framing, decode_rows
from firstpage.data.store import Device, Rows, as_row_indices, pinned_buffer, send
from firstpage.data.workers import Workers

_Pending = tuple[np.ndarray, Path, list[Future[list[FileRecord]]]]


class Stream(AbstractContextManager["Stream"]):
    """Batches of a catalog, decoded on the fly in worker processes.

    Nothing is stored: each epoch decodes all images again. Use `PixelStore` if it fits the disk. Close a
    stream, or use it in a `with` block, to stop its workers; they also stop when this process ends.

    Args:
        catalog: The images.
        size: Side of the square, in pixels.
        resize: "squash", "shorter" or "pad"; see `Framing`.
        boxes: Crop each image to its box.
        margin: Enlarge each box on every side by this share of its width and height.
        workers: Number of decoding processes. 0 decodes in this process. Defaults to one per usable core.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (90, 60), "red").save(Path(folder, "a.png"))
    ...     catalog = Catalog("toy", Path(folder), ["a.png"], np.zeros(1, int), ["red"], {})
    ...     with Stream(catalog, size=4, workers=0).to("cpu") as stream:
    ...         stream.batch([0, 0]).shape, [len(pixels) for pixels in stream.batches([[0], [0, 0]])]
    (torch.Size([2, 4, 4, 3]), [1, 2])
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        size: int = 256,
        resize: str = "squash",
        boxes: bool = False,
        margin: float = 0.0,
        workers: int | None = None,
    ) -> None:
        self.catalog = catalog
        self.ok = np.ones(len(catalog), dtype=bool)  # not known before an image is decoded
        self.framing = Framing(size, resize, boxes, margin)
        self._crops = self.framing.crops(catalog)
        self._folder = TemporaryDirectory(prefix="firstpage-")
        self._names = count()
        self._workers = Workers(workers)
        self._device = torch.device("cpu")

    def __len__(self) -> int:
        return len(self.catalog)

    def to(self, device: Device) -> Self:
        """Send batches to `device` from now on."""
        self._device = torch.device(device)
        return self

    def batch(self, rows: Rows, device: Device | None = None) -> torch.Tensor:
        """Return the pixels of some rows: [B, size, size, 3] uint8; see `PixelStore.batch`.

        Raises:
            IndexError: A row is outside the catalog.
            Unreadable: An image cannot be decoded. `firstpage data check` finds such images beforehand.
        """
        return next(self.batches([rows], device))

    def batches(
        self, plan: Iterable[Rows], device: Device | None = None, *, ahead: int = 2
    ) -> Iterator[torch.Tensor]:
        """Yield one batch for each list of rows, decoding up to `ahead` batches in advance."""
        target = self._device if device is None else torch.device(device)
        pending: deque[_Pending] = deque()
        try:
            for rows in plan:
                pending.append(self._request(as_row_indices(rows, len(self))))
                if len(pending) > ahead:
                    yield self._collect(*pending.popleft(), target)
            while pending:
                yield self._collect(*pending.popleft(), target)
        finally:
            for _, path, futures in pending:  # the caller left the loop early
                for future in futures:
                    future.cancel()
                path.unlink(missing_ok=True)  # even if a worker is still writing to it

    def close(self) -> None:
        """Stop the workers."""
        self._workers.close()
        self._folder.cleanup()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _request(self, rows: np.ndarray) -> _Pending:
        path = Path(self._folder.name, str(next(self._names)))
        path.touch()
        count = max(1, -(-len(rows) // max(1, self._workers.count)))  # rows per worker
        futures = []
        for start in range(0, len(rows), count):
            part = rows[start : start + count]
            root, paths = os.fspath(self.catalog.root), [self.catalog.paths[row] for row in part]
            crops = None if self._crops is None else self._crops[part].tolist()
            task = self.framing, root, paths, crops, str(path), start * self.framing.size**2 * 3, False
            futures.append(self._workers.submit(decode_rows, *task))
        return rows, path, futures

    def _collect(
        self, rows: np.ndarray, path: Path, futures: list[Future[list[FileRecord]]], device: torch.device
    ) -> torch.Tensor:
        try:
            records = [record for future in futures for record in future.result()]
            for row, (*_, reason) in zip(rows, records, strict=True):
                if reason:
                    raise Unreadable(self.catalog.paths[row], reason)
            pixels = pinned_buffer((len(rows), self.framing.size, self.framing.size, 3), torch.uint8, device)
            with open(path, "rb") as file:
                file.readinto(pixels.numpy().data)
        finally:
            path.unlink()
        return send(pixels, device)
