"""An index of images: build it, change it at any time, and search it."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from filelock import Timeout
from PIL import Image
from torch import Tensor

from firstpage._text import format_size
from firstpage.data.catalog import Catalog
from firstpage.data.file_download import file_sha256
from firstpage.data.framing import file_state
from firstpage.data.locking import exclusive
from firstpage.errors import UserError
from firstpage.models.embedder import Embedder
from firstpage.models.embedding_cache import model_fingerprint
from firstpage.pairs import unit
from firstpage.search.filters import matching_rows
from firstpage.search.index_folder import (
    IDS,
    MANIFEST,
    MODEL,
    PRECISIONS,
    SEGMENTS,
    THUMBNAILS,
    VERSION,
    Manifest,
    Segment,
    find_damage,
    read_manifest,
    read_removed,
    sweep,
    write_manifest,
    write_segment,
)
from firstpage.search.segment import Part, image_path, write_images

BLOCK = 2**16  # vectors compared at a time


@dataclass(frozen=True)
class Match:
    """A result of a search.

    Attributes:
        id: Of the image in the index.
        score: Its cosine with the query, 1 for the same image.
        path: Its file.
        label: Its class.
        columns: Further columns of the table that it came from.

    >>> Match(7, 0.93, "mugs/1.jpg", "mug").label
    'mug'
    """

    id: int
    score: float
    path: str
    label: str
    columns: dict[str, str] = field(default_factory=dict)


class Index:
    """An index of embedded images.

    Searching never waits: it sees the index as it was when it was opened. `add`, `remove` and `update` change
    the index on the disk, one process at a time, each in one step: a process that is killed leaves the index
    as it was before or as it is afterwards. Open it again to see the changes of others.

    Args:
        folder: The folder of an index. `Index.build` makes one.

    Attributes:
        manifest: What the index consists of.
        ids: [N] Ids of its images.

    >>> import tempfile
    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (60, 50), "red").save(Path(folder, "red.png"))
    ...     Image.new("RGB", (50, 60), "blue").save(Path(folder, "blue.png"))
    ...     paths, labels = ["red.png", "blue.png"], np.array([0, 1])
    ...     catalog = Catalog("toy", Path(folder), paths, labels, ["warm", "cold"], {})
    ...     index = Index.build(Path(folder, "index"), model, catalog, cache=folder, progress=False)
    ...     [[best]] = index.search([Path(folder, "blue.png")], k=1)
    >>> len(index), best.label, round(best.score, 3)
    (2, 'cold', 1.0)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self._parts = [Part(self.folder, self.manifest, segment) for segment in self.manifest.segments]
        self._firsts = np.cumsum([0, *(len(part.ids) for part in self._parts)])  # place of each part's first
        self.ids = np.concatenate([np.zeros(0, np.int64), *(part.ids for part in self._parts)])

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """Open an index.

        Raises:
            FileNotFoundError: There is none.
            UserError: It is damaged.
        """
        return cls(folder)

    @classmethod
    def build(
        cls,
        folder: str | os.PathLike[str],
        model: Embedder,
        catalog: Catalog,
        *,
        precision: str = "float32",
        cache: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> Self:
        """Make an index of all readable images of a catalog.

        Args:
            folder: A folder that does not exist, or is empty.
            model: Embeds the images; it is saved with the index.
            catalog: The images.
            precision: Of the stored vectors: `float32`, or `float16` for half the size.
            cache: Folder for decoded pixels. Defaults to the user's cache.
            progress: Show progress bars.

        Raises:
            UserError: The folder is in use, or there is no such precision.
        """
        place = Path(folder)
        if precision not in PRECISIONS:
            raise UserError(f"precision={precision!r}: choose one of {', '.join(PRECISIONS)}")
        if (place / MANIFEST).exists():
            raise UserError(f"{place}: is an index already; add to it, or choose another folder")
        if place.exists() and any(path.name not in (MODEL, SEGMENTS) for path in place.iterdir()):
            raise UserError(f"{place}: is not empty; choose another folder")
        place.mkdir(parents=True, exist_ok=True)
        with _changing(place):
            model.save(place / MODEL)
            files = {name: file_sha256(place / MODEL / name) for name in ("config.json", "model.safetensors")}
            empty = Manifest(VERSION, model_fingerprint(model), model.dim, precision, model_files=files)
            segment = write_images(place, empty, model, catalog, cache=cache, progress=progress)
            segments = (segment,) if segment.rows else ()
            write_manifest(place, replace(empty, generation=1, next_id=segment.rows, segments=segments))
        return cls(place)

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self) -> list[dict[str, Any]]:
        """Return what is known about each image: id, path, label, columns, size and time of the file."""
        return [row for part in self._parts for row in part.rows()]

    @cached_property
    def model(self) -> Embedder:
        """The embedder of the index."""
        model = Embedder.load(self.folder / MODEL)
        if model_fingerprint(model) != self.manifest.model:
            raise UserError(f"{self.folder / MODEL}: is not the model of this index: restore it from a copy")
        return model

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The values that a filter can use, as strings: `label`, `path`, and the columns of the tables."""
        rows = self.rows()
        names = dict.fromkeys(name for row in rows for name in row["columns"])
        values = {"label": [row["label"] for row in rows], "path": [row["path"] for row in rows]}
        values |= {name: [row["columns"].get(name, "") for row in rows] for name in names}
        return {name: np.array(column, dtype=np.str_) for name, column in values.items()}

    def search(
        self,
        queries: Sequence[str | os.PathLike[str] | Image.Image | np.ndarray] | Tensor | None = None,
        k: int = 10,
        *,
        ids: Sequence[int] = (),
        where: str | None = None,
        average: bool = False,
    ) -> list[list[Match]]:
        """Return the most similar images of each query, the best first.

        Args:
            queries: Files, Pillow images or arrays, or vectors [Q, dim].
            k: Number of results.
            ids: Images of the index as queries, after the others. They are not among their own results.
            where: A filter on labels and columns, such as `label == 'mug' and price < 20`.
            average: Search once, by the mean of all queries.

        Raises:
            UserError: An image cannot be decoded, an id is not in the index, or the filter is not valid.
        """
        if k < 1:
            raise UserError(f"k={k}: must be at least 1")
        places = self._places(ids)
        parts = [torch.from_numpy(np.stack([self._vector(place) for place in places]))] if places else []
        if isinstance(queries, Tensor):
            parts.insert(0, unit(queries.float()))
        elif queries:
            parts.insert(0, self.model.embed(list(queries), progress=False))
        if not parts:
            return []
        vectors = torch.cat(parts)
        own = torch.tensor([-1] * (len(vectors) - len(places)) + places)
        if vectors.shape[1] != self.manifest.dim:
            raise UserError(f"queries: {vectors.shape[1]} dimensions; the index has {self.manifest.dim}")
        if average:
            vectors, own = unit(vectors.mean(dim=0, keepdim=True)), torch.tensor([-1])
        allowed = None if where is None else torch.from_numpy(matching_rows(where, self.columns))
        scores, found = self._nearest(vectors, k, own, allowed)
        return [
            [self._match(int(row), float(score)) for score, row in zip(*line, strict=True) if score > -2]
            for line in zip(scores, found, strict=True)
        ]

    def add(
        self, catalog: Catalog, *, cache: str | os.PathLike[str] | None = None, progress: bool = True
    ) -> Self:
        """Add the images of a catalog whose files are not in the index, and return the index with them."""
        known = {row["path"] for row in self.rows()}
        new = [row for row in range(len(catalog)) if image_path(catalog, row) not in known]
        return self._change([], catalog.take(new), cache, progress)

    def update(
        self, catalog: Catalog, *, cache: str | os.PathLike[str] | None = None, progress: bool = True
    ) -> Self:
        """Make the index that of a catalog: changed files are embedded again, new ones added, others removed.

        A file has changed if its size or modification time has.
        """
        rows = self.rows()
        known = {row["path"]: (row["bytes"], row["mtime"]) for row in rows}
        current = {image_path(catalog, row): row for row in range(len(catalog))}
        changed = {path: None for path in current if known.get(path) != file_state(path)}  # in this order
        gone = [row["id"] for row in rows if row["path"] not in current or row["path"] in changed]
        return self._change(gone, catalog.take([current[path] for path in changed]), cache, progress)

    def remove(self, ids: Iterable[int] = (), paths: Iterable[str | os.PathLike[str]] = ()) -> Self:
        """Remove images by id or by file, and return the index without them.

        Raises:
            UserError: One of them is not in the index; nothing is removed then.
        """
        wanted, paths = list(ids), list(paths)
        self._places(wanted)
        id_of = {row["path"]: row["id"] for row in self.rows()} if paths else {}
        for path in paths:
            name = os.path.abspath(path)
            if name not in id_of:
                raise UserError(f"{os.fspath(path)}: is not in the index")
            wanted.append(id_of[name])
        return self._change(wanted)

    def verify(self) -> list[str]:
        """Return a line for each file of the index that is missing or damaged; none if all is well."""
        return find_damage(self.folder, self.manifest)

    def info(self) -> str:
        """Return a few lines about the index."""
        size = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        labels = len(np.unique(self.columns["label"]))
        about = self.manifest
        return (
            f"{self.folder}: {len(self):,} images of {labels:,} classes, {format_size(size)}\n"
            f"vectors: {about.dim} dimensions, {about.precision}, in {len(about.segments)} segments; "
            f"changed {about.generation:,} times\nfilters: {', '.join(self.columns)}"
        )

    def thumbnail(self, id: int) -> bytes:
        """Return a small JPEG of an image.

        Raises:
            UserError: There is no such id.
        """
        part, number = self._find(self._places([id])[0])
        begin, length = part.row(number)["thumbnail"]
        with open(part.place / THUMBNAILS, "rb") as file:
            file.seek(begin)
            return file.read(length)

    def vectors(self, ids: Sequence[int]) -> Tensor:
        """Return the vectors of some images [N, dim].

        Raises:
            UserError: There is no such id.
        """
        places = self._places(ids)
        return torch.stack([torch.from_numpy(self._vector(place)) for place in places])

    def _places(self, ids: Iterable[int]) -> list[int]:
        """Return where images are in the index, whose ids ascend."""
        wanted = np.array(list(ids), np.int64)
        places = np.searchsorted(self.ids, wanted)
        found = [
            bool((self.ids[place : place + 1] == id).any()) for place, id in zip(places, wanted, strict=True)
        ]
        if not all(found):
            raise UserError(f"id {wanted[found.index(False)]}: is not in the index")
        return [int(place) for place in places]

    def _find(self, place: int) -> tuple[Part, int]:
        number = int(np.searchsorted(self._firsts, place, "right")) - 1
        return self._parts[number], place - int(self._firsts[number])

    def _nearest(self, queries: Tensor, k: int, own: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the k largest cosines of each query and their rows, by comparing with every vector."""
        scores, rows = queries.new_empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
        first = 0
        for vectors in (part.vectors for part in self._parts):
            for start in range(0, len(vectors), BLOCK):
                block = torch.from_numpy(np.asarray(vectors[start : start + BLOCK], np.float32))
                cosine, begin = queries @ block.T, first + start
                if allowed is not None:
                    cosine.masked_fill_(~allowed[begin : begin + len(block)], -torch.inf)
                within = (own >= begin) & (own < begin + len(block))
                cosine[within, own[within] - begin] = -torch.inf
                best, place = cosine.topk(min(k, len(block)), dim=1)
                scores, order = torch.cat([scores, best], 1).sort(dim=1, descending=True, stable=True)
                rows = torch.cat([rows, place + begin], 1).gather(1, order)[:, :k]
                scores = scores[:, :k]
            first += len(vectors)
        return scores, rows

    def _vector(self, place: int) -> np.ndarray:
        part, number = self._find(place)
        return np.asarray(part.vectors[number], np.float32)

    def _match(self, place: int, score: float) -> Match:
        part, number = self._find(place)
        row = part.row(number)
        return Match(row["id"], score, row["path"], row["label"], row["columns"])

    def _change(
        self,
        gone: list[int],
        catalog: Catalog | None = None,
        cache: str | os.PathLike[str] | None = None,
        progress: bool = False,
    ) -> Self:
        """Remove some images and add those of a catalog, in one step."""
        with _changing(self.folder):
            manifest = read_manifest(self.folder)
            if manifest.generation != self.manifest.generation:
                raise UserError(f"{self.folder}: another process has changed it: open it again")
            sweep(self.folder, manifest)
            segments = self._without(manifest, gone) if gone else list(manifest.segments)
            next_id = manifest.next_id
            if catalog is not None and len(catalog):
                added = write_images(
                    self.folder, manifest, self.model, catalog, cache=cache, progress=progress
                )
                next_id += added.rows
                segments += [added] if added.rows else []
            changed = replace(
                manifest, generation=manifest.generation + 1, next_id=next_id, segments=tuple(segments)
            )
            if changed.segments != manifest.segments:
                write_manifest(self.folder, changed)
                sweep(self.folder, changed)
        return type(self)(self.folder)

    def _without(self, manifest: Manifest, gone: list[int]) -> list[Segment]:
        """Return the segments with some ids removed, whose files have been written."""
        kept = []
        for segment in manifest.segments:
            ids = np.fromfile(self.folder / SEGMENTS / segment.name / IDS, "<i8")
            before = read_removed(self.folder, segment)
            removed = np.union1d(before, np.flatnonzero(np.isin(ids, gone)))
            if len(removed) == len(before):
                kept.append(segment)
            elif len(removed) < segment.rows:
                name = f"removed-{manifest.generation + 1:06d}.bin"
                files = {file: digest for file, digest in segment.files.items() if file != segment.removed}
                files |= write_segment(self.folder, segment.name, {name: removed.astype("<i8").tobytes()})
                kept.append(replace(segment, files=files, removed=name))
        return kept


@contextmanager
def _changing(folder: Path) -> Iterator[None]:
    """Hold the lock of an index while it is changed."""
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(folder / "change", wait=False))
        except Timeout:
            raise UserError(f"{folder}: another process is changing it: wait for its end") from None
        yield
