"""An index as the server shows it: opened again when it changes, with its pictures, labels and marks."""

import io
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from firstpage.data.decode import Unreadable, decode_image
from firstpage.data.marks import QUERIES
from firstpage.errors import UserError
from firstpage.search.index import Index
from firstpage.search.index_folder import MANIFEST
from firstpage.search.match import Match
from firstpage.search.segment import THUMBNAIL
from firstpage.serve.guard import Refusal
from firstpage.serve.marks import Mark, MarkFile, now
from firstpage.serve.uploads import MAX_DECODED, MAX_SIDE, Query, crop_share, decode_query, to_jpeg

MAX_LABELS = 1000  # that the page offers to choose from
MORE = 3  # times as many results are looked at when near-duplicates are folded


@dataclass(frozen=True, eq=False)
class Source:
    """What is searched by: an image of an index, or a part of it, or an uploaded one.

    Attributes:
        id: Of an image of the index, if it is whole.
        image: Otherwise the image.
        key: What marks call it: its path, or where its picture is kept.

    >>> Source(7, None, "mugs/1.jpg").id
    7
    """

    id: int | None
    image: Image.Image | None
    key: str


class ServedIndex:
    """An index as the server shows it.

    Args:
        folder: The folder of the index.

    Attributes:
        name: Of the index: that of its folder.
        marks: Which results are right or wrong.

    >>> ServedIndex("nowhere")
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no index there; firstpage index build makes one
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.name = self.folder.resolve().name
        self.marks = MarkFile(self.folder)
        self._lock = threading.Lock()
        self._manifest = os.path.join(self.folder, MANIFEST)
        self._state = self._manifest_state()
        self._index = Index.open(self.folder)
        self._roots: dict[int, str] = {}

    def current(self) -> Index:
        """Return the index as it is now; opened again if it has changed, the model kept."""
        state = self._manifest_state()
        if state != self._state:
            with self._lock:
                if state != self._state:
                    try:
                        opened = Index.open(self.folder)
                    except (OSError, UserError):  # being replaced, or damaged: what is open is still whole
                        return self._index
                    if opened.manifest.model == self._index.manifest.model:
                        opened.model = self._index.model
                    self._index, self._state, self._roots = opened, state, {}
        return self._index

    def _manifest_state(self) -> tuple[int, int]:
        try:
            status = os.stat(self._manifest)
        except OSError:
            return (-1, -1)
        return status.st_mtime_ns, status.st_size

    def labels(self) -> dict[str, int]:
        """Return how many images each label has; the most frequent labels, in their order."""
        names, counts = np.unique(self.current().columns["label"], return_counts=True)
        chosen = np.sort(np.argsort(-counts, kind="stable")[:MAX_LABELS])
        return {str(names[place]): int(counts[place]) for place in chosen}

    def value(self, id: int, column: str) -> str:
        """Return a value of an image.

        Raises:
            Refusal: There is no such image.
        """
        index = self.current()
        place = int(np.searchsorted(index.ids, id))
        if place >= len(index.ids) or index.ids[place] != id:
            raise Refusal(404, f"id {id}: is not in the index")
        return str(index.columns[column][place])

    def shown_paths(self, paths: Sequence[str]) -> list[str]:
        """Return paths as the page shows them, within the folder that all images are in."""
        prefix = os.path.join(self.root(), "")
        return [path.removeprefix(prefix) for path in paths]

    def root(self) -> str:
        """Return the folder that all images of the index are in."""
        index = self.current()
        if id(index) not in self._roots:
            paths = index.columns["path"].tolist()
            ends = [os.path.dirname(path) for path in (min(paths), max(paths))] if paths else ["/"]
            self._roots = {id(index): os.path.commonpath(ends)}
        return self._roots[id(index)]

    def has_thumbnail(self, id: int) -> bool:
        """Return whether the index has a small JPEG of an image; of one added as a vector, it has not.

        Raises:
            Refusal: There is no such image.
        """
        try:
            return bool(self.current().row(id)["thumbnail"][1])
        except UserError:
            raise Refusal(404, f"id {id}: is not in the index") from None

    def thumbnail(self, id: int) -> bytes:
        """Return a small JPEG of an image: that of the index, or one of `picture`.

        Raises:
            Refusal: There is no such image.
        """
        if not self.has_thumbnail(id):
            return to_jpeg(self.picture(id, THUMBNAIL), THUMBNAIL, 80)
        try:
            return self.current().thumbnail(id)
        except (UserError, OSError):
            raise Refusal(404, f"id {id}: is not in the index") from None

    def picture(self, id: int, side: int = MAX_SIDE) -> Image.Image:
        """Return an image: from its file if that can be read and is where it seems to be, or the thumbnail.

        A link that leads out of the folder of the images, or out of its own if they share none, is not
        followed.

        Raises:
            Refusal: There is no such image, or neither can be read.
        """
        path = self.value(id, "path")
        real, root = os.path.realpath(path), self.root()
        within = os.path.realpath(root if os.path.dirname(root) != root else os.path.dirname(path))
        if os.path.commonpath([real, within]) == within:
            try:
                return decode_image(real, max_bytes=MAX_DECODED, min_side=side)
            except Unreadable:
                pass
        if not self.has_thumbnail(id):
            raise Refusal(404, f"id {id}: its file cannot be read")
        return Image.open(io.BytesIO(self.thumbnail(id)), formats=["JPEG"]).convert("RGB")

    def source(self, id: int | None, query: Query, origin: "ServedIndex") -> Source:
        """Return what to search by.

        Args:
            id: An image of an index; None for the uploaded one.
            query: The uploaded image, and the box of either.
            origin: The index that the id is of.
        """
        least = 2 * max(self.current().model.framing.least)  # as files are read that are added to the index
        if id is None:
            return Source(None, decode_query(query, least), f"{QUERIES}/{query.key}.jpg")
        path = origin.value(id, "path")
        if query.box is not None:
            part = crop_share(origin.picture(id), query.box)
            content = Query(path.encode(), query.box)
            return Source(None, part, f"{QUERIES}/{content.key}.jpg")
        if origin is not self:
            index = self.current()
            places = np.flatnonzero(index.columns["path"] == path)
            if not len(places):
                return Source(None, origin.picture(id, least), path)
            id = int(index.ids[places[0]])
        return Source(id, None, path)

    def search(
        self, source: Source, k: int, where: str | None, fold: float | None
    ) -> list[tuple[Match, int | None]]:
        """Return the most similar images, each with the id of the one that it is a near-duplicate of.

        Args:
            source: What to search by.
            k: Number of results, folded ones not counted.
            where: A filter on labels and columns.
            fold: Cosine from which results are near-duplicates; None folds none.

        Raises:
            Refusal: The filter is not valid.
        """
        index = self.current()
        count = k if fold is None else MORE * k
        try:
            if source.id is not None:
                [found] = index.search(k=count, ids=[source.id], where=where)
            else:
                [found] = index.search([source.image], count, where=where)  # type: ignore[list-item]
        except UserError as error:
            if not str(error).startswith("where:"):
                raise  # what is wrong with the files of the index is not for clients
            raise Refusal(400, str(error)) from None
        if fold is None or not found:
            return [(match, None) for match in found]
        firsts = fold_duplicates(index.vectors([match.id for match in found]), fold)
        chosen: list[tuple[Match, int | None]] = []
        groups = 0
        for match, first in zip(found, firsts, strict=True):
            groups += first is None
            if groups > k:
                break
            chosen.append((match, None if first is None else found[first].id))
        return chosen

    def mark(self, source: Source, result: int, right: bool) -> bool | None:
        """Mark a result as right or wrong; the same mark again removes it. Returns the mark that is left.

        Raises:
            Refusal: There is no such image, or it is the query itself.
        """
        if source.id == result:
            raise Refusal(422, f"result {result}: is the query itself")
        picture = None if source.image is None else to_jpeg(source.image, 1024, 92)
        path, label = self.value(result, "path"), self.value(result, "label")
        model = self.current().manifest.model
        mark = Mark(now(), source.key, source.id, result, path, label, right, model)
        return self.marks.set(mark, picture)


def fold_duplicates(vectors: Tensor, threshold: float) -> list[int | None]:
    """Return for each row the first row before it that it is a near-duplicate of, unless that is one itself.

    Args:
        vectors: [N, dim] Unit vectors, the best result first.
        threshold: Cosine from which two are near-duplicates.

    >>> import torch
    >>> fold_duplicates(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), 0.9)
    [None, None, 0]
    """
    similar = (vectors @ vectors.T >= threshold).tolist()
    firsts: list[int | None] = []
    for row, line in enumerate(similar):
        before = (other for other in range(row) if line[other] and firsts[other] is None)
        firsts.append(next(before, None))
    return firsts
