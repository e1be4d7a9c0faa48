"""The pixel store: every image is decoded and scaled once, then read at the speed of memory."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch

from firstpage.data.cache import cache_folder
from firstpage.data.catalog import Catalog
from firstpage.data.decode import printable
from firstpage.data.framing import Framing, Size
from firstpage.data.locking import open_in_use
from firstpage.data.pixel_batch import PixelBatch, pinned_buffer, send, to_device
from firstpage.data.store_builder import Builder
from firstpage.data.store_index import PIXELS, damaged_rows, describe_damage, read_index
from firstpage.errors import UserError

Rows = Sequence[int] | np.ndarray | torch.Tensor
Device = str | torch.device

COPY_BYTES = 2**26  # bytes copied to a device at a time


class Store:
    """What the stores of a catalog have in common: `PixelStore` and `JpegStore`.

    Args:
        path: The folder of a finished store.
        verify: Compare all pixels with their checksums.

    Attributes:
        kind: What is stored: `raw` pixels or `jpeg`.
        path: The folder of the store.
        framing: The settings it was built with.
        sizes: [N, 2] int32, height and width of each stored image; 0 for unreadable ones.
        unreadable: The reason for each row whose image cannot be decoded.
        ok: [N] bool, False for those rows.
    """

    kind: Literal["raw", "jpeg"]

    def __init__(self, path: str | Path, *, verify: bool = True) -> None:
        self.path = Path(path)
        try:
            self._index = read_index(self.path)
            if self._index.about.kind != self.kind:
                raise UserError(f"{path}: a store of the kind {self._index.about.kind!r}, not {self.kind!r}")
            if verify and (damaged := damaged_rows(self.path, self._index)):
                raise UserError(describe_damage(self.path, damaged, self._index))
        except UserError as error:
            raise UserError(f"{error}; build it again with {type(self).__name__}.build") from None
        about, files = self._index
        self.framing = about.framing
        self.sizes = np.stack([files["height"], files["width"]], axis=1).astype(np.int32)
        self.unreadable = {int(row): reason for row, reason in about.unreadable.items()}
        self.ok = np.ones(len(files), dtype=bool)
        self.ok[list(self.unreadable)] = False

    @classmethod
    def build(
        cls,
        catalog: Catalog,
        folder: str | os.PathLike[str] | None = None,
        *,
        size: Size = 256,
        resize: str = "shorter",
        boxes: bool = False,
        margin: float = 0.0,
        workers: int | None = None,
        strict: bool = False,
        progress: bool = True,
    ) -> Self:
        """Open the store of a catalog, decoding the images if no store of them exists yet.

        Stores are identified by the content of the files and the settings. Files whose folder, size or
        modification time changed are read again. Unreadable images are tried again by another version of
        Pillow, and always if they failed for lack of memory. A killed build resumes where it stopped. If
        another process is building the same store, this one waits for it. All pixels are compared with their
        checksums, and damaged ones are decoded again, with a warning.

        Args:
            catalog: The images.
            folder: Folder for all stores. Defaults to the user's cache.
            size: Side of the stored images, in pixels; see `Framing`.
            resize: "shorter", "squash" or "pad"; see `Framing`.
            boxes: Crop each image to its box.
            margin: Enlarge each box on every side by this share of its width and height.
            workers: Number of decoding processes. 0 decodes in this process. Defaults to one per usable core.
            strict: Raise an error if an image is unreadable, instead of listing it in `unreadable`.
            progress: Show a progress bar on standard error.

        Raises:
            UserError: A setting is wrong, the catalog is empty, or `strict` and an image is unreadable.
            OSError: The folder cannot be written or the disk is full. No incomplete store is left.
            RuntimeError: A worker could not start.
        """
        if not len(catalog):
            raise UserError(f"the catalog {catalog.name!r} has no images")
        stores = cache_folder() / "pixels" if folder is None else Path(folder)
        framing = Framing(size, resize, boxes, margin)
        builder = Builder(catalog, stores, framing, workers, progress, cls.kind)
        store = cls._open(builder.find_or_build(), workers)
        if strict and store.unreadable:
            named = [
                f"{printable(catalog.paths[row])} ({reason})" for row, reason in store.unreadable.items()
            ]
            raise UserError(
                f"strict=True: {len(named)} of {len(catalog)} images are unreadable: {', '.join(named)}; "
                "repair them, leave them out, or use strict=False"
            )
        return store

    def __len__(self) -> int:
        return len(self.ok)

    @classmethod
    def _open(cls, path: Path, workers: int | None) -> Self:
        """Open a store that has just been verified."""
        return cls(path, verify=False)

    def _wanted(self, rows: Rows) -> np.ndarray:
        """Return rows as indices, after checking that they are readable."""
        wanted = as_row_indices(rows, len(self))
        if not self.ok[wanted].all():
            bad = sorted({int(row) for row in wanted[~self.ok[wanted]]})
            reason = f"{bad[0]}: {self.unreadable[bad[0]]}"
            raise UserError(f"rows {bad} are unreadable ({reason}); select rows with store.ok")
        return wanted


class PixelStore(Store):
    """The decoded pixels of a catalog: a memory-mapped uint8 file, or a tensor on the device if it fits.

    Row i is image i of the catalog. The store takes N × 1.5 × size² × 3 bytes on disk, as images keep their
    aspect. `JpegStore` and `Stream` have the same interface for datasets that are too large for that.

    Attributes:
        path: The folder of the store.
        framing: The settings it was built with.
        pixels: [N, height, width, 3] uint8, memory-mapped: the canvases of a `PixelBatch`. The rows of
            unreadable images are zero.
        sizes: [N, 2] int32, height and width of each image; 0 for unreadable ones.
        unreadable: The reason for each row whose image cannot be decoded.
        ok: [N] bool, False for those rows.

    Args:
        path: The folder of a finished store.
        verify: Compare all pixels with their checksums: about 1.5 GB per second and core.

    Raises:
        FileNotFoundError: There is no store.
        UserError: It is damaged, or of another version. `PixelStore.build` builds again what is damaged.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("L", (90, 60), 7).save(Path(folder, "a.png"))
    ...     catalog = Catalog("toy", Path(folder), ["a.png", "b.png"], np.zeros(2, int), ["gray"], {})
    ...     store = PixelStore.build(catalog, Path(folder, "stores"), size=1, progress=False).to("cpu")
    >>> len(store), store.ok.tolist(), store.unreadable
    (2, [True, False], {1: 'no such file'})
    >>> store.batch([0, 0]).pixels
    tensor([[[[7, 7, 7], [7, 7, 7]]], [[[7, 7, 7], [7, 7, 7]]]], dtype=torch.uint8)
    >>> [len(pixels) for pixels in store.batches([[0], [0, 0]])]
    [1, 2]
    >>> store.batch([1])
    Traceback (most recent call last):
    ...
    firstpage.errors.UserError: rows [1] are unreadable (1: no such file); select rows ...
    >>> PixelStore("nowhere")
    Traceback (most recent call last):
    ...
    FileNotFoundError: nowhere: not a pixel store; make one with PixelStore.build
    """

    kind = "raw"

    def __init__(self, path: str | Path, *, verify: bool = True) -> None:
        super().__init__(path, verify=verify)
        shape = (len(self), *self.framing.canvas, 3)
        with open_in_use(self.path / PIXELS) as file:  # and so it is while it is mapped
            self.pixels: np.ndarray = np.memmap(file, np.uint8, "r", shape=shape)
        self._device = torch.device("cpu")
        self._resident: torch.Tensor | None = None

    def to(self, device: Device, *, share: float = 0.5) -> Self:
        """Send batches to `device` from now on, and copy all pixels there if they fit.

        On the CPU nothing is copied: the operating system caches the file.

        Args:
            device: The device of future batches.
            share: Largest share of the device's free memory that the pixels may take.

        Returns:
            The store itself.
        """
        self._device, self._resident = torch.device(device), None
        if self.pixels.nbytes <= share * _free_bytes(self._device):
            self._resident = torch.empty(self.pixels.shape, dtype=torch.uint8, device=self._device)
            step = max(1, COPY_BYTES // self.pixels[0].nbytes)
            for rows in np.split(np.arange(len(self)), range(step, len(self), step)):
                self._resident[rows[0] : rows[-1] + 1] = self._from_file(rows, self._device)
        return self

    def close(self) -> None:
        """Give back the memory on the device."""
        self._resident = None

    def batch(self, rows: Rows, device: Device | None = None) -> PixelBatch:
        """Return the pixels of some rows.

        Args:
            rows: Row indices, in any order and with any repeats.
            device: Device of the result. Defaults to the device given to `to`, or the CPU. Copies to a CUDA
                device go through pinned memory and are asynchronous.

        Raises:
            IndexError: A row is outside the store, or `rows` is a mask.
            UserError: A row is unreadable. Callers select readable rows with `ok`.
        """
        wanted = self._wanted(rows)
        target = self._device if device is None else torch.device(device)
        if self._resident is None:
            pixels = self._from_file(wanted, target)
        else:
            index = to_device(torch.from_numpy(wanted), self._resident.device)
            pixels = self._resident.index_select(0, index).to(target)
        sizes = to_device(torch.from_numpy(self.sizes[wanted]), target)
        return PixelBatch(pixels, sizes, self.framing.least)

    def batches(self, plan: Iterable[Rows], device: Device | None = None) -> Iterator[PixelBatch]:
        """Yield one batch for each list of rows, such as those of a batch sampler."""
        for rows in plan:
            yield self.batch(rows, device)

    def _from_file(self, rows: np.ndarray, device: torch.device) -> torch.Tensor:
        pixels = pinned_buffer((len(rows), *self.pixels.shape[1:]), torch.uint8, device)
        # The rows are valid; the default mode="raise" would copy everything once more.
        np.take(self.pixels, rows, axis=0, out=pixels.numpy(), mode="clip")
        return send(pixels, device)


def as_row_indices(rows: Rows, count: int) -> np.ndarray:
    """Return rows as an int64 array, after checking that they are in 0..count-1.

    >>> as_row_indices([2], count=2)
    Traceback (most recent call last):
    ...
    IndexError: row 2 is outside 0…1
    """
    given = torch.as_tensor(rows, device="cpu")
    if given.dtype == torch.bool:
        raise IndexError("rows is a boolean mask; use np.flatnonzero(mask)")
    wanted = given.to(torch.int64).numpy()
    outside = wanted[(wanted < 0) | (wanted >= count)]
    if outside.size:
        raise IndexError(f"row {outside[0]} is outside 0…{count - 1}")
    return wanted


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
