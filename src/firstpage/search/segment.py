"""A segment of an index: what was added at one time, read again and made."""

import hashlib
import io
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from firstpage.data.catalog import Catalog
from firstpage.data.decode import decode_image, printable
from firstpage.data.framing import file_state
from firstpage.data.jpeg_store import JpegStore, open_store
from firstpage.data.store import PixelStore
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.pairs import unit
from firstpage.search.index_folder import (
    LINE,
    LINES,
    PRECISIONS,
    ROWS,
    SEGMENTS,
    THUMBNAILS,
    VECTORS,
    Manifest,
    Segment,
    read_removed,
    write_segment,
)

THUMBNAIL = 160  # pixels of the longer side
BATCH = 256  # images
CHUNK = 2**13  # rows read or written at a time


class Part:
    """A segment. Vectors, and the lines about images, are read when they are asked for.

    Args:
        folder: The folder of the index.
        manifest: Its manifest.
        segment: One of its segments.

    Attributes:
        place: The folder of the segment.
        ids: [N] Of its images, the removed ones included.
        kept: [N] False for those that were removed.
        vectors: [N, dim] Of its images, as they are stored.

    Raises:
        UserError: It is damaged.

    >>> Part(Path("nowhere"), Manifest(1, "4f2a", 8, "float32"), Segment("000001", 3, {}))
    Traceback (most recent call last):
    firstpage.errors.UserError: nowhere/segments/000001: damaged or incomplete: firstpage index verify ...
    """

    def __init__(self, folder: Path, manifest: Manifest, segment: Segment) -> None:
        self.place = folder / SEGMENTS / segment.name
        try:
            self.kept = np.ones(segment.rows, bool)
            self.kept[read_removed(folder, segment)] = False
            lines = np.fromfile(self.place / LINES, LINE)
            self.ids, self._ends, self.paths = (
                np.ascontiguousarray(lines[name]) for name in LINE.names or ()
            )
            shape = (segment.rows, manifest.dim)
            self.vectors = np.memmap(self.place / VECTORS, PRECISIONS[manifest.precision], "c", shape=shape)
            self._text = np.memmap(self.place / ROWS, np.uint8, "r")
        except (OSError, ValueError, IndexError) as error:
            raise self.damaged() from error
        if len(lines) != segment.rows or self._ends[-1] != len(self._text):
            raise self.damaged()

    def decode(self, numbers: np.ndarray | slice) -> np.ndarray:
        """Return some vectors, of length one: [n, dim] float32."""
        vectors = np.asarray(self.vectors[numbers], np.float32)
        return vectors * self.scale[numbers].numpy()[:, None] if self.vectors.dtype == np.int8 else vectors

    @cached_property
    def scale(self) -> Tensor:
        """[N] What makes the stored vectors those of length one."""
        if self.vectors.dtype != np.int8:
            return torch.ones(len(self.ids))
        starts = range(0, len(self.ids), CHUNK)
        lengths = [
            torch.from_numpy(self.vectors[start : start + CHUNK]).float().norm(dim=1) for start in starts
        ]
        return 1 / torch.cat(lengths).clamp_min(1)

    def row(self, number: int) -> dict[str, Any]:
        """Return what is known about an image."""
        return self._parse(number, number + 1)[0]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return what is known about each image that was not removed."""
        for start in range(0, len(self.ids), CHUNK):
            rows = self._parse(start, min(start + CHUNK, len(self.ids)))
            yield from (row for row, kept in zip(rows, self.kept[start : start + CHUNK], strict=True) if kept)

    def _parse(self, start: int, stop: int) -> list[dict[str, Any]]:
        begin = int(self._ends[start - 1]) if start else 0
        text = self._text[begin : self._ends[stop - 1] - 1].tobytes()
        try:  # within a line, JSON writes no line break
            rows: list[dict[str, Any]] = json.loads(b"[%s]" % text.replace(b"\n", b","))
        except ValueError as error:
            raise self.damaged() from error
        if len(rows) != stop - start:
            raise self.damaged()
        return rows

    def thumbnail(self, number: int) -> bytes:
        """Return a small JPEG of an image; of one that was added as a vector, made from its file now."""
        row = self.row(number)
        begin, length = row["thumbnail"]
        if not length:
            image, picture = decode_image(row["path"]), io.BytesIO()
            image.thumbnail((THUMBNAIL, THUMBNAIL))
            image.save(picture, "JPEG", quality=80)
            return picture.getvalue()
        try:
            with open(self.place / THUMBNAILS, "rb") as file:
                file.seek(begin)
                picture_bytes = file.read(length)
        except OSError as error:
            raise self.damaged() from error
        if len(picture_bytes) != length:
            raise self.damaged()
        return picture_bytes

    def damaged(self) -> UserError:
        """Return the error to raise."""
        return UserError(
            f"{self.place}: damaged or incomplete: firstpage index verify finds out; restore it from a copy"
        )


class Rows(Sequence[dict[str, Any]]):
    """What is known about the images of an index; read from its files when asked for.

    Args:
        parts: The segments of the index.

    >>> len(Rows([]))
    0
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._kept = [np.flatnonzero(part.kept) for part in parts]
        self._firsts = np.cumsum([0, *map(len, self._kept)])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for part in self._parts:
            yield from part.rows()

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, place: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        number = int(np.searchsorted(self._firsts, place, "right")) - 1
        return self._parts[number].row(int(self._kept[number][place - self._firsts[number]]))


def write_images(
    folder: Path,
    manifest: Manifest,
    model: Embedder,
    catalog: Catalog,
    *,
    cache: str | os.PathLike[str] | None,
    progress: bool,
) -> tuple[Segment, np.ndarray]:
    """Embed the readable images of a catalog into a new segment, which no manifest names yet.

    Args:
        folder: The folder of the index.
        manifest: Its manifest, which the segment is to follow.
        model: Embeds the images.
        catalog: The images.
        cache: Folder for decoded pixels. Defaults to the user's cache.
        progress: Show progress bars.

    Returns:
        The segment, and the vectors of the model.
    """
    with closing(open_store(catalog, cache, model.framing.suiting(catalog), progress=progress)) as store:
        if store.unreadable:
            row, reason = next(iter(store.unreadable.items()))
            such = f"such as {printable(catalog.paths[row])} ({reason})"
            warnings.warn(f"left out {len(store.unreadable):,} unreadable images, {such}", stacklevel=2)
        readable = np.flatnonzero(store.ok)
        vectors = model.embed(store, rows=readable, progress=progress).numpy()
        sizes: list[int] = []
        return _write(
            folder, manifest, catalog, readable, vectors, _thumbnails(store, readable, sizes), sizes
        )


def write_vectors(
    folder: Path, manifest: Manifest, catalog: Catalog, vectors: np.ndarray
) -> tuple[Segment, np.ndarray]:
    """Write given vectors of a catalog's images into a new segment; no image is opened.

    Args:
        folder: The folder of the index.
        manifest: Its manifest, which the segment is to follow.
        catalog: The images.
        vectors: [N, dimensions of the model] Their vectors; may be memory-mapped.

    Returns:
        The segment, and the vectors.
    """
    return _write(folder, manifest, catalog, np.arange(len(catalog)), vectors, (), [])


def _write(
    folder: Path,
    manifest: Manifest,
    catalog: Catalog,
    readable: np.ndarray,
    vectors: np.ndarray,
    thumbnails: Iterable[bytes],
    sizes: list[int],
) -> tuple[Segment, np.ndarray]:
    lines = np.zeros(len(readable), LINE)
    lines["id"] = np.arange(manifest.next_id, manifest.next_id + len(readable))
    contents: dict[str, Iterable[bytes]] = {
        VECTORS: (
            store_vectors(vectors[start : start + CHUNK], manifest)
            for start in range(0, len(readable), CHUNK)
        ),
        THUMBNAILS: thumbnails,
        ROWS: _rows(catalog, readable, lines, sizes),
        LINES: (part.tobytes() for part in [lines]),  # it is complete when the rows are written
    }
    name = f"{manifest.generation + 1:06d}"
    files = write_segment(folder, name, contents)
    return Segment(name, len(readable), files, columns=tuple(catalog.columns)), vectors


def _thumbnails(store: PixelStore | JpegStore, readable: np.ndarray, sizes: list[int]) -> Iterator[bytes]:
    """Return small JPEGs, and append the size of each."""
    parts = [readable[start : start + BATCH] for start in range(0, len(readable), BATCH)]
    for batch in store.batches(parts, "cpu"):
        for number in range(len(batch)):
            picture = io.BytesIO()
            image = Image.fromarray(batch.image(number).contiguous().numpy())
            image.thumbnail((THUMBNAIL, THUMBNAIL))
            image.save(picture, "JPEG", quality=80)
            sizes.append(picture.tell())
            yield picture.getvalue()


def _rows(catalog: Catalog, readable: np.ndarray, lines: np.ndarray, sizes: list[int]) -> Iterator[bytes]:
    """Return a line about each image, and note where it ends."""
    begin = end = 0
    ids, ends, hashes = lines["id"].tolist(), lines["end"], lines["path"]
    for number, (id, row) in enumerate(zip(ids, readable.tolist(), strict=True)):
        path = image_path(catalog, row)
        size, mtime = file_state(path)
        length = sizes[number] if sizes else 0
        about = {
            "id": id,
            "path": path,
            "label": catalog.classes[catalog.labels[row]],
            "columns": {name: values[row] for name, values in catalog.columns.items()},
            "bytes": size,
            "mtime": mtime,
            "thumbnail": [begin, length],
        }
        text = json.dumps(about).encode() + b"\n"
        begin, end = begin + length, end + len(text)
        ends[number], hashes[number] = end, path_hash(path)
        yield text


def store_vectors(vectors: np.ndarray, manifest: Manifest) -> bytes:
    """Return vectors as a segment stores them: the first dimensions, of length one, in the precision.

    Each int8 vector uses the whole range; what its length was is 1, and is not stored.

    >>> manifest = Manifest(1, "4f2a", 2, "int8")
    >>> list(store_vectors(np.array([[0.6, -0.8, 0.3]], np.float32), manifest))  # -127 is byte 129
    [95, 129]
    """
    cut = unit(torch.from_numpy(np.array(vectors[:, : manifest.dim], np.float32)))
    if manifest.precision == "int8":
        cut = (cut * (127 / cut.abs().amax(dim=1, keepdim=True).clamp_min(1e-12))).round()
    return cut.numpy().astype(PRECISIONS[manifest.precision]).tobytes()


def image_path(catalog: Catalog, row: int) -> str:
    """Return what an image is called in an index: the absolute path of its file.

    >>> catalog = Catalog("birds", Path("/birds"), ["auk.jpg"], np.zeros(1, int), ["auk"], {})
    >>> image_path(catalog, 0)
    '/birds/auk.jpg'
    """
    return os.path.abspath(os.path.join(catalog.root, catalog.paths[row]))


def path_hash(path: str) -> int:
    """Return 64 bits that tell a path from almost all others.

    >>> path_hash("/birds/auk.jpg")
    3315954861356515670
    """
    digest = hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
