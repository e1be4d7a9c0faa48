"""The stream: the interface of the pixel store for sets too large to cache, decoded when asked for."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
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

_Asked = tuple[np.ndarray, Path, list[Future[list[FileRecord]]]]


class Stream:
    """Batches of a catalog decoded on the fly in worker processes.

    Nothing is kept: each epoch decodes again. Use `PixelStore` where the disk has room. Close a stream, or
    use it in a `with` block, to stop its workers; they also stop with this process.

    Args:
        catalog: the images.
        size: side of the square, in pixels.
        resize: "squash", "shorter" or "pad"; see `Framing`.
        boxes: keep only what is inside each image's box.
        margin: enlarge the box on each side by this share of its width and height.
        workers: decoding processes; None for one per usable core, 0 for this process alone.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (90, 60), "red").save(Path(folder, "a.png"))
    ...     catalog = Catalog("toy", Path(folder), ["a.png"], np.zeros(1, int), ["red"], {})
    ...     with Stream(catalog, size=4, workers=0) as stream:
    ...         stream.batch([0, 0]).shape
    torch.Size([2, 4, 4, 3])
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
        self.ok = np.ones(len(catalog), dtype=bool)  # nobody has tried
        self.framing = Framing(size, resize, boxes, margin)
        self._crops = self.framing.crops(catalog)
        self._folder = TemporaryDirectory(prefix="firstpage-")
        self._names = count()
        self._workers = Workers(workers)
        self._device = torch.device("cpu")

    def __len__(self) -> int:
        return len(self.catalog)

    def to(self, device: Device) -> Self:
        """Make `device` the one batches go to.

        >>> catalog = Catalog("toy", Path(), ["a.png"], np.zeros(1, int), ["red"], {})
        >>> with Stream(catalog, workers=0).to("cpu") as stream:
        ...     len(stream)
        1
        """
        self._device = torch.device(device)
        return self

    def batch(self, rows: Rows, device: Device | None = None) -> torch.Tensor:
        """The pixels of some rows: uint8 [B, size, size, 3]; see `PixelStore.batch`.

        Raises:
            IndexError: a row outside the catalog.
            Unreadable: an image cannot be decoded; `firstpage data check` finds all of them beforehand.

        >>> catalog = Catalog("toy", Path(), ["a.png"], np.zeros(1, int), ["red"], {})
        >>> with Stream(catalog, workers=0) as stream:
        ...     stream.batch([0])
        Traceback (most recent call last):
        ...
        firstpage.data.decode.Unreadable: a.png: no such file
        """
        return next(self.batches([rows], device))

    def batches(
        self, plan: Iterable[Rows], device: Device | None = None, *, ahead: int = 2
    ) -> Iterator[torch.Tensor]:
        """One batch for each list of rows, decoded `ahead` of the one being used.

        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (8, 8), 7).save(Path(folder, "a.png"))
        ...     catalog = Catalog("toy", Path(folder), ["a.png"], np.zeros(1, int), ["a"], {})
        ...     with Stream(catalog, size=2, workers=0) as stream:
        ...         [len(pixels) for pixels in stream.batches([[0], [0, 0]])]
        [1, 2]
        """
        target = self._device if device is None else torch.device(device)
        asked: deque[_Asked] = deque()
        try:
            for rows in plan:
                asked.append(self._ask(as_row_indices(rows, len(self))))
                if len(asked) > ahead:
                    yield self._take(*asked.popleft(), target)
            while asked:
                yield self._take(*asked.popleft(), target)
        finally:
            for _, path, futures in asked:  # the caller left the loop early
                for future in futures:
                    future.cancel()
                path.unlink(missing_ok=True)  # what a worker still writes goes with it

    def close(self) -> None:
        """Stop the workers.

        >>> Stream(Catalog("toy", Path(), [], np.zeros(0, int), [], {}), workers=0).close()
        """
        self._workers.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, rows: np.ndarray) -> _Asked:
        path = Path(self._folder.name, str(next(self._names)))
        path.touch()
        share = max(1, -(-len(rows) // max(1, self._workers.count)))
        return rows, path, [self._part(rows[at : at + share], path, at) for at in range(0, len(rows), share)]

    def _part(self, rows: np.ndarray, path: Path, at: int) -> "Future[list[FileRecord]]":
        root, paths = os.fspath(self.catalog.root), [self.catalog.paths[row] for row in rows]
        crops = None if self._crops is None else self._crops[rows].tolist()
        offset = at * self.framing.size**2 * 3
        return self._workers.submit(decode_rows, self.framing, root, paths, crops, str(path), offset, False)

    def _take(
        self, rows: np.ndarray, path: Path, futures: list[Future[list[FileRecord]]], device: torch.device
    ) -> torch.Tensor:
        try:
            results = [result for future in futures for result in future.result()]
            for row, (*_, reason) in zip(rows, results, strict=True):
                if reason:
                    raise Unreadable(self.catalog.paths[row], reason)
            pixels = pinned_buffer((len(rows), self.framing.size, self.framing.size, 3), torch.uint8, device)
            with open(path, "rb") as file:
                file.readinto(pixels.numpy().data)
        finally:
            path.unlink()
        return send(pixels, device)
