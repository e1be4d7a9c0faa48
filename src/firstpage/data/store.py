"""The pixel store: every image decoded and resized once, then read as bytes at the speed of memory."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch

from firstpage.data.cache import cache_folder
from firstpage.data.catalog import Catalog
from firstpage.data.decode import printable
from firstpage.data.framing import Framing
from firstpage.data.store_builder import VERSION, Builder
from firstpage.errors import UserError

Rows = Sequence[int] | np.ndarray | torch.Tensor
Device = str | torch.device

COPY_BYTES = 2**26  # bytes copied to a device at a time


class PixelStore:
    """The pixels of a catalog, decoded: a memory-mapped uint8 file, or a tensor on the device when it fits.

    Row i holds image i of the catalog it was built from. Use it when N × size² × 3 bytes fit the disk;
    `Stream` has the same interface for sets that do not.

    Attributes:
        path: the folder of the store.
        framing: the settings it was built with.
        pixels: uint8 [N, size, size, 3], memory-mapped; the rows of unreadable images are zero.
        unreadable: row → reason, of the images that could not be decoded.
        ok: bool [N], False for those rows.

    Args:
        path: the folder of a finished store.

    >>> PixelStore("nowhere")
    Traceback (most recent call last):
    ...
    FileNotFoundError: nowhere is no pixel store; make one with PixelStore.build
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            about = json.loads((self.path / "store.json").read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"{path} is no pixel store; make one with PixelStore.build") from None
        if about["version"] != VERSION:
            raise UserError(f"{path} is of version {about['version']}, not {VERSION}; build it again")
        self.framing = Framing(**about["framing"])
        self.pixels: np.ndarray = np.load(self.path / "pixels.npy", mmap_mode="r")
        self.unreadable: dict[int, str] = {int(row): reason for row, reason in about["unreadable"].items()}
        self.ok = np.ones(len(self.pixels), dtype=bool)
        self.ok[list(self.unreadable)] = False
        self._device = torch.device("cpu")
        self._resident: torch.Tensor | None = None

    @classmethod
    def build(
        cls,
        catalog: Catalog,
        folder: str | os.PathLike[str] | None = None,
        *,
        size: int = 256,
        resize: str = "squash",
        boxes: bool = False,
        margin: float = 0.0,
        workers: int | None = None,
        strict: bool = False,
        progress: bool = True,
    ) -> Self:
        """Open the store of a catalog, after decoding its images if that was not done before.

        The store is found by content and settings: files that changed are noticed by folder, size and
        modification time, and read again. What is unreadable is tried again by another version of Pillow, and
        every time where memory was lacking. A build that was killed goes on where it stopped; of two
        processes that want the same store, the second waits for the first.

        Args:
            catalog: the images.
            folder: where stores are kept, each in a folder of its own; the user's cache if left out.
            size: side of the square, in pixels.
            resize: "squash", "shorter" or "pad"; see `Framing`.
            boxes: keep only what is inside each image's box.
            margin: enlarge the box on each side by this share of its width and height.
            workers: decoding processes; None for one per usable core, 0 for this process alone.
            strict: raise if any image is unreadable, rather than list it in `unreadable`.
            progress: show a progress bar on standard error.

        Raises:
            UserError: a setting is wrong, the catalog is empty, or `strict` and an image is unreadable.
            OSError: the folder cannot be written or the disk is full; nothing half-written stays.
            RuntimeError: a worker died; call again to go on.

        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (90, 60), "red").save(Path(folder, "a.png"))
        ...     catalog = Catalog("toy", Path(folder), ["a.png", "b.png"], np.zeros(2, int), ["red"], {})
        ...     store = PixelStore.build(catalog, Path(folder, "stores"), size=4, progress=False)
        >>> len(store), store.pixels[0, 0, 0].tolist(), store.unreadable
        (2, [255, 0, 0], {1: 'no such file'})
        """
        if not len(catalog):
            raise UserError(f"the catalog {catalog.name!r} has no images")
        stores = cache_folder() / "pixels" if folder is None else Path(folder)
        store = cls(
            Builder(catalog, stores, Framing(size, resize, boxes, margin), workers, progress).find_or_build()
        )
        if strict and store.unreadable:
            named = [
                f"{printable(catalog.paths[row])} ({reason})" for row, reason in store.unreadable.items()
            ]
            raise UserError(
                f"strict=True: {len(named)} of {len(catalog)} images are unreadable: {', '.join(named)}; "
                "mend them, leave them out, or build with strict=False"
            )
        return store

    def __len__(self) -> int:
        return len(self.pixels)

    def to(self, device: Device, *, share: float = 0.5) -> Self:
        """Make `device` the one batches go to, and keep all pixels there if they fit.

        On the CPU nothing is copied: the operating system keeps a file that is read in memory by itself.

        Args:
            device: where batches are wanted.
            share: the pixels fit if they take at most this share of the device's free memory.

        Returns:
            The store itself.

        >>> import tempfile
        >>> catalog = Catalog("toy", Path(), ["a.png"], np.zeros(1, int), ["a"], {})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = PixelStore.build(catalog, folder, size=4, progress=False).to("cpu")
        """
        self._device, self._resident = torch.device(device), None
        if self.pixels.nbytes <= share * _free_bytes(self._device):
            self._resident = torch.empty(self.pixels.shape, dtype=torch.uint8, device=self._device)
            step = max(1, COPY_BYTES // self.pixels[0].nbytes)
            for rows in np.split(np.arange(len(self)), range(step, len(self), step)):
                self._resident[rows[0] : rows[-1] + 1] = self._from_file(rows, self._device)
        return self

    def batch(self, rows: Rows, device: Device | None = None) -> torch.Tensor:
        """The pixels of some rows: uint8 [B, size, size, 3].

        Args:
            rows: which, in the order wanted; repeats are allowed.
            device: where to; None for the device given to `to`, else the CPU. A copy from the file to a CUDA
                device goes through pinned memory and does not wait for the device.

        Raises:
            IndexError: a row outside the store, or a mask in place of rows.
            UserError: a row whose image is unreadable; it is for the caller to leave it out, by `ok`.

        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (8, 8), 7).save(Path(folder, "a.png"))
        ...     catalog = Catalog("toy", Path(folder), ["a.png", "b.png"], np.zeros(2, int), ["a"], {})
        ...     store = PixelStore.build(catalog, folder, size=1, progress=False)
        >>> store.batch([0, 0])
        tensor([[[[7, 7, 7]]], [[[7, 7, 7]]]], dtype=torch.uint8)
        >>> store.batch([1])
        Traceback (most recent call last):
        ...
        firstpage.errors.UserError: rows [1] are unreadable (1: no such file); leave them out, as ...
        """
        wanted = as_row_indices(rows, len(self))
        if not self.ok[wanted].all():
            bad = sorted({int(row) for row in wanted[~self.ok[wanted]]})
            why = f"{bad[0]}: {self.unreadable[bad[0]]}"
            raise UserError(f"rows {bad} are unreadable ({why}); leave them out, as store.ok says")
        target = self._device if device is None else torch.device(device)
        if self._resident is None:
            return self._from_file(wanted, target)
        index = to_device(torch.from_numpy(wanted), self._resident.device)
        return self._resident.index_select(0, index).to(target)

    def batches(self, plan: Iterable[Rows], device: Device | None = None) -> Iterator[torch.Tensor]:
        """One batch for each list of rows, as a batch sampler gives them.

        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (8, 8), 7).save(Path(folder, "a.png"))
        ...     catalog = Catalog("toy", Path(folder), ["a.png"], np.zeros(1, int), ["a"], {})
        ...     store = PixelStore.build(catalog, folder, size=2, progress=False)
        >>> [len(pixels) for pixels in store.batches([[0], [0, 0]])]
        [1, 2]
        """
        for rows in plan:
            yield self.batch(rows, device)

    def _from_file(self, rows: np.ndarray, device: torch.device) -> torch.Tensor:
        pixels = pinned_buffer((len(rows), *self.pixels.shape[1:]), torch.uint8, device)
        # The rows were checked; the default mode="raise" would copy everything once more.
        np.take(self.pixels, rows, axis=0, out=pixels.numpy(), mode="clip")
        return send(pixels, device)


def as_row_indices(rows: Rows, count: int) -> np.ndarray:
    """Rows as int64, checked against the number of rows there are.

    >>> as_row_indices([2], count=2)
    Traceback (most recent call last):
    ...
    IndexError: row 2 is outside 0…1
    """
    given = torch.as_tensor(rows, device="cpu")
    if given.dtype == torch.bool:
        raise IndexError("rows is a mask of True and False; give np.flatnonzero(mask)")
    wanted = given.to(torch.int64).numpy()
    outside = wanted[(wanted < 0) | (wanted >= count)]
    if outside.size:
        raise IndexError(f"row {outside[0]} is outside 0…{count - 1}")
    return wanted


def pinned_buffer(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Host memory to fill and then send to `device`: pinned if that is a CUDA device.

    >>> pinned_buffer((2, 3), torch.uint8, torch.device("cpu")).is_pinned()
    False
    """
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def send(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor on `device`, without waiting for the copy where the device is a CUDA one.

    The caller must not write to `host` again: it asks `staging` for the next. Torch's allocator of pinned
    memory records the copy on the stream and hands the block out again only when that copy is done, so
    nothing in flight is overwritten, and steady batches use the same few blocks.

    >>> send(torch.ones(2), torch.device("cpu"))
    tensor([1., 1.])
    """
    return host.to(device, non_blocking=device.type == "cuda")


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Values of the host on `device`, by way of `staging`, so that nobody waits.

    >>> to_device(torch.tensor([3, 1]), torch.device("cpu"))
    tensor([3, 1])
    """
    return send(pinned_buffer(tuple(values.shape), values.dtype, device).copy_(values), device)


def _free_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
