"""A segment of an index: what was added at one time, read again and made."""

import io
import json
import os
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from firstpage.data.catalog import Catalog
from firstpage.data.decode import printable
from firstpage.data.framing import file_state
from firstpage.data.jpeg_store import open_store
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.search.index_folder import (
    IDS,
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


class Part:
    """A segment without its removed rows. Lines about images are read when they are asked for.

    Args:
        folder: The folder of the index.
        manifest: Its manifest.
        segment: One of its segments.

    Attributes:
        place: The folder of the segment.
        ids: [N] Of its images.
        vectors: [N, dim] Of its images.

    Raises:
        UserError: It is damaged.

    >>> Part(Path("nowhere"), Manifest(1, "4f2a", 8, "float32"), Segment("000001", 3, {}))
    Traceback (most recent call last):
    firstpage.errors.UserError: nowhere/segments/000001: damaged or incomplete: firstpage index verify ...
    """

    def __init__(self, folder: Path, manifest: Manifest, segment: Segment) -> None:
        self.place = folder / SEGMENTS / segment.name
        shape, dtype = (segment.rows, manifest.dim), PRECISIONS[manifest.precision]
        kept = np.ones(segment.rows, bool)
        kept[read_removed(folder, segment)] = False
        self._numbers = np.flatnonzero(kept)
        try:
            self.ids = np.fromfile(self.place / IDS, "<i8")[kept]
            vectors = np.memmap(self.place / VECTORS, dtype, "c", shape=shape)
            self._text = np.memmap(self.place / ROWS, np.uint8, "r")
        except (OSError, ValueError, IndexError) as error:
            raise self._damaged() from error
        self.vectors: np.ndarray = vectors if kept.all() else vectors[kept]
        self._ends = np.flatnonzero(self._text == ord("\n"))
        if len(self._ends) != segment.rows:
            raise self._damaged()

    def row(self, number: int) -> dict[str, Any]:
        """Return what is known about an image."""
        line = int(self._numbers[number])
        begin = int(self._ends[line - 1]) + 1 if line else 0
        try:
            row: dict[str, Any] = json.loads(self._text[begin : self._ends[line]].tobytes())
        except ValueError as error:
            raise self._damaged() from error
        return row

    def rows(self) -> list[dict[str, Any]]:
        """Return what is known about each image."""
        return [self.row(number) for number in range(len(self._numbers))]

    def _damaged(self) -> UserError:
        return UserError(
            f"{self.place}: damaged or incomplete: firstpage index verify finds out; restore it from a copy"
        )


def write_images(
    folder: Path,
    manifest: Manifest,
    model: Embedder,
    catalog: Catalog,
    *,
    cache: str | os.PathLike[str] | None,
    progress: bool,
    vectors: np.ndarray | None = None,
) -> Segment:
    """Embed the readable images of a catalog into a new segment, which no manifest names yet.

    Args:
        folder: The folder of the index.
        manifest: Its manifest, which the segment is to follow.
        model: Embeds the images.
        catalog: The images.
        cache: Folder for decoded pixels. Defaults to the user's cache.
        progress: Show progress bars.
        vectors: Of the images. Defaults to embedding them.
    """
    lines: list[dict[str, Any]] = []
    pictures = io.BytesIO()
    with closing(open_store(catalog, cache, model.framing, progress=progress)) as store:
        if store.unreadable:
            row, reason = next(iter(store.unreadable.items()))
            such = f"such as {printable(catalog.paths[row])} ({reason})"
            warnings.warn(f"left out {len(store.unreadable):,} unreadable images, {such}", stacklevel=2)
        readable = np.flatnonzero(store.ok)
        if vectors is None:
            vectors = model.embed(store, rows=readable, progress=progress).numpy()
        else:
            vectors = vectors[readable]
        parts = [readable[start : start + BATCH] for start in range(0, len(readable), BATCH)]
        for rows, batch in zip(parts, store.batches(parts, "cpu"), strict=True):
            for number, row in enumerate(rows.tolist()):
                begin = pictures.tell()
                image = Image.fromarray(batch.image(number).contiguous().numpy())
                image.thumbnail((THUMBNAIL, THUMBNAIL))
                image.save(pictures, "JPEG", quality=80)
                path = image_path(catalog, row)
                size, mtime = file_state(path)
                lines.append(
                    {
                        "id": manifest.next_id + len(lines),
                        "path": path,
                        "label": catalog.classes[catalog.labels[row]],
                        "columns": {name: values[row] for name, values in catalog.columns.items()},
                        "bytes": size,
                        "mtime": mtime,
                        "thumbnail": [begin, pictures.tell() - begin],
                    }
                )
    contents = {
        VECTORS: vectors.astype(PRECISIONS[manifest.precision]).tobytes(),
        IDS: np.array([line["id"] for line in lines], "<i8").tobytes(),
        ROWS: b"".join(json.dumps(line).encode() + b"\n" for line in lines),
        THUMBNAILS: pictures.getvalue(),
    }
    name = f"{manifest.generation + 1:06d}"
    return Segment(name, len(lines), write_segment(folder, name, contents))


def image_path(catalog: Catalog, row: int) -> str:
    """Return what an image is called in an index: the absolute path of its file.

    >>> catalog = Catalog("birds", Path("/birds"), ["auk.jpg"], np.zeros(1, int), ["auk"], {})
    >>> image_path(catalog, 0)
    '/birds/auk.jpg'
    """
    return os.path.abspath(catalog.path(row))
