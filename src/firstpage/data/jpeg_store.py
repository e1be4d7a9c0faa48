"""The store for datasets whose pixels are too many to keep, and the choice between the stores."""

import os
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import numpy as np

from firstpage.data.catalog import Catalog
from firstpage.data.framing import Framing, read_jpegs
from firstpage.data.locking import open_in_use
from firstpage.data.store import PixelStore, Store
from firstpage.data.store_index import PIXELS
from firstpage.data.stream import Decoding, Stream
from firstpage.errors import UserError

RAW_BYTES = 40 * 10**9  # of pixels, above which JPEGs are stored: 135,000 images of 256 pixels


class JpegStore(Store, Decoding):
    """The images of a catalog, scaled once and stored as JPEGs: about 20 kB each at 256 pixels.

    For datasets whose pixels exceed the disk or memory: a million images take some 20 GB, and memory only for
    a few batches. Workers decode them, many times faster than the original files.

    Args:
        path: The folder of a finished store.
        verify: Compare all JPEGs with their checksums.
        workers: Number of decoding processes. 0 decodes in this process. Defaults to one per usable core.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (90, 60), "red").save(Path(folder, "a.png"))
    ...     catalog = Catalog("toy", Path(folder), ["a.png"], np.zeros(1, int), ["red"], {})
    ...     with JpegStore.build(catalog, Path(folder, "stores"), size=32, progress=False) as store:
    ...         store.batch([0, 0]).image(1).shape
    torch.Size([32, 48, 3])
    """

    kind = "jpeg"

    def __init__(self, path: str | Path, *, verify: bool = True, workers: int | None = None) -> None:
        Store.__init__(self, path, verify=verify)
        Decoding.__init__(self, self.framing, workers)
        self._file = open_in_use(self.path / PIXELS)
        self._places = np.stack([self._index.files["offset"], self._index.files["length"]], axis=1)

    @classmethod
    def _open(cls, path: Path, workers: int | None) -> Self:
        return cls(path, verify=False, workers=workers)

    def close(self) -> None:
        """Stop the workers."""
        super().close()
        self._file.close()

    def _submit(self, rows: np.ndarray, target: str, offset: int) -> Future[Any]:
        places = self._places[rows].tolist()
        return self._workers.submit(read_jpegs, self.framing, str(self.path / PIXELS), places, target, offset)

    def _sizes(self, rows: np.ndarray, results: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
        return [size for part in results for size in part]


def open_store(
    catalog: Catalog,
    folder: str | os.PathLike[str] | None,
    framing: Framing,
    *,
    kind: str = "auto",
    progress: bool = True,
) -> PixelStore | JpegStore:
    """Open the store of a catalog, decoding the images if no store of them exists yet.

    Args:
        catalog: The images.
        folder: Folder for all stores. Defaults to the user's cache.
        framing: How images are scaled.
        kind: `raw` for a `PixelStore`, `jpeg` for a `JpegStore`. `auto` takes pixels up to 40 GB.
        progress: Show a progress bar on standard error.

    Raises:
        UserError: There is no such kind, or the catalog is empty.

    >>> open_store(Catalog("birds", Path(), [], np.zeros(0, int), [], {}), None, Framing(), kind="png")
    Traceback (most recent call last):
    firstpage.errors.UserError: kind='png': choose one of auto, raw, jpeg
    """
    if kind not in ("auto", "raw", "jpeg"):
        raise UserError(f"kind={kind!r}: choose one of auto, raw, jpeg")
    if kind == "auto":
        kind = "raw" if len(catalog) * framing.row_bytes <= RAW_BYTES else "jpeg"
    chosen: type[PixelStore | JpegStore] = PixelStore if kind == "raw" else JpegStore
    return chosen.build(catalog, folder, **asdict(framing), progress=progress)


def open_pixels(
    catalog: Catalog,
    folder: str | os.PathLike[str] | None,
    framing: Framing,
    *,
    kind: str = "auto",
    progress: bool = True,
) -> PixelStore | JpegStore | Stream:
    """Open the store of a catalog as `open_store` does, or with `kind="none"` a `Stream` of its files.

    >>> catalog = Catalog("birds", Path(), ["a.jpg"], np.zeros(1, int), ["auk"], {})
    >>> type(open_pixels(catalog, None, Framing(), kind="none")).__name__
    'Stream'
    """
    if kind == "none":
        return Stream(catalog, **asdict(framing))
    return open_store(catalog, folder, framing, kind=kind, progress=progress)
