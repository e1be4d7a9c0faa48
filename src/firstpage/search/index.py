"""An index of images: build it, change it at any time, and search it."""

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from firstpage._text import format_size
from firstpage.data.catalog import Catalog
from firstpage.data.framing import file_state
from firstpage.errors import UserError
from firstpage.evaluation import calibration as calibrations
from firstpage.evaluation.calibration import Calibration
from firstpage.models.embedder import Embedder
from firstpage.models.embedding_cache import model_fingerprint
from firstpage.pairs import unit
from firstpage.search import changes
from firstpage.search.changes import Addition
from firstpage.search.engines import Engine, EngineError, nearest
from firstpage.search.filters import matching_rows
from firstpage.search.index_folder import MODEL, Manifest, column_names, find_damage, read_manifest
from firstpage.search.match import Match
from firstpage.search.milvus_mirror import MilvusMirror
from firstpage.search.neighbor_file import NeighborSearch
from firstpage.search.reranking import rerank_results
from firstpage.search.segment import Rows, image_path, path_hash
from firstpage.search.vectors import Vectors, leave_out


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
        self.manifest, self._vectors = _read(self.folder)
        self.ids = self._vectors.ids[self._vectors.kept]
        self._engine: Engine | None = None
        self._exact = False  # since its engine has failed

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
        vectors: np.ndarray | None = None,
        precision: str = "float32",
        dims: int | None = None,
        engine: str = "auto",
        milvus: str | None = None,
        calibration: Calibration | None = None,
        cache: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> Self:
        """Make an index of all readable images of a catalog.

        Args:
            folder: A folder that does not exist, or is empty.
            model: Embeds the images; it is saved with the index.
            catalog: The images.
            vectors: [N, model.dim] Vectors of the images, which this model made. No image is opened then.
                They may be memory-mapped: they are read a few thousand at a time.
            precision: Of the stored vectors: `float32`, `float16` for half the size, `int8` for a quarter.
            dims: Store the first dimensions only, scaled to length one. Defaults to all.
            engine: `exact` compares every vector; `hnsw` and `ivfpq` are faster and approximate, and need
                FAISS. `auto` is exact up to a million vectors, `hnsw` up to ten, `ivfpq` above.
            milvus: Copy the vectors to Milvus, which then finds the nearest: `http://HOST:PORT` of a server,
                or a path that ends in `.db` for Milvus Lite.
            calibration: Of the model, for the probabilities of results: `Calibration.read` of its folder.
                Unless its prior was set, it becomes that of the labels of the catalog.
            cache: Folder for decoded pixels. Defaults to the user's cache.
            progress: Show progress bars.

        Raises:
            UserError: The folder is in use, there is no such precision or engine, Milvus does not answer, or
                the calibration is of another model.
        """
        images = Addition(catalog, vectors, cache, progress)
        place, options = Path(folder), {"engine": engine, "milvus": milvus, "calibration": calibration}
        changes.build(place, model, images, precision=precision, dims=dims, **options)  # type: ignore[arg-type]
        return cls(place)

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self) -> Sequence[dict[str, Any]]:
        """Return what is known about each image: id, path, label, columns, size and time of the file."""
        return Rows(self._vectors.parts)

    def row(self, id: int) -> dict[str, Any]:
        """Return what is known about an image, as `rows` does."""
        part, number = self._vectors.part(int(self._vectors.rows_of([id])[0]))
        return part.row(number)

    @cached_property
    def model(self) -> Embedder:
        """The embedder of the index."""
        model = Embedder.load(self.folder / MODEL)
        if model_fingerprint(model) != self.manifest.model:
            raise UserError(f"{self.folder / MODEL}: is not the model of this index: restore it from a copy")
        return model

    @cached_property
    def calibration(self) -> Calibration | None:
        """What its scores mean; None if the model was not calibrated, or for all its dimensions only."""
        if calibrations.FILE not in self.manifest.model_files:
            return None
        calibration = Calibration.read(self.folder / MODEL, self.manifest.model)
        return calibration if calibration and calibration.dim == self.manifest.dim else None

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The values that a filter can use, as strings: `label`, `path`, and the columns of the tables."""
        names = column_names(self.manifest)
        values: dict[str, list[str]] = {name: [] for name in ("label", "path", *names)}
        known: dict[str, str] = {}  # a label is the same object wherever it occurs
        for row in self.rows():
            values["label"].append(known.setdefault(row["label"], row["label"]))
            values["path"].append(row["path"])
            for name in names:
                text = row["columns"].get(name, "")
                values[name].append(known.setdefault(text, text))
        return {name: np.array(column, dtype=object) for name, column in values.items()}

    def search(
        self,
        queries: Sequence[str | os.PathLike[str] | Image.Image | np.ndarray] | Tensor | None = None,
        k: int = 10,
        *,
        ids: Sequence[int] = (),
        where: str | None = None,
        average: bool = False,
        min_precision: float | None = None,
        rerank: int = 0,
    ) -> list[list[Match]]:
        """Return the most similar images of each query, the best first.

        Args:
            queries: Files, Pillow images or arrays, or vectors [Q, dim].
            k: Number of results.
            ids: Images of the index as queries, after the others. They are not among their own results.
            where: A filter on labels and columns, such as `label == 'mug' and price < 20`.
            average: Search once, by the mean of all queries.
            min_precision: Leave out results below the score from which on this share of them is right.
            rerank: Order so many of the best results by the similarity that the model learned, with
                `model.rerank`, and return the first k of them. Their scores are cosines all the same.

        Raises:
            UserError: An image cannot be decoded, an id is not in the index, or the filter is not valid; or
                the model was not calibrated, or not to such a precision, or has learned no similarity.
        """
        if k < 1:
            raise UserError(f"k={k}: must be at least 1")
        if rerank < 0:
            raise UserError(f"rerank={rerank}: must not be negative; 0 leaves the order of the cosine")
        least = -2.0 if min_precision is None else self._threshold(min_precision)
        rows = self._vectors.rows_of(ids)
        parts = [self._vectors.decode(rows)] if len(rows) else []
        if isinstance(queries, Tensor):
            parts.insert(0, self._cut(queries.float()))
        elif queries:
            parts.insert(0, self._cut(self.model.embed(list(queries), progress=False)))
        if not parts:
            return []
        vectors = torch.cat(parts)
        own = torch.from_numpy(np.concatenate([np.full(len(vectors) - len(rows), -1), rows]))
        if average:
            vectors, own = unit(vectors.mean(dim=0, keepdim=True)), torch.tensor([-1])
        most = max(k, rerank)
        nearest = leave_out(*self._nearest(vectors, most + int((own >= 0).any()), where), own)
        if rerank:
            nearest = rerank_results(self.model, self._vectors, vectors, *nearest, rerank)
        scores, found = (part[:, :k].numpy() for part in nearest)
        same = (
            np.full(scores.shape, None) if self.calibration is None else self.calibration.probability(scores)
        )
        return [
            [self._match(*one) for one in zip(*line, strict=True) if one[1] >= least]
            for line in zip(same.tolist(), scores.tolist(), found.tolist(), strict=True)
        ]

    def add(
        self,
        catalog: Catalog,
        *,
        vectors: np.ndarray | None = None,
        cache: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> Self:
        """Add the images of a catalog whose files are not in the index, and return the index with them.

        Args:
            catalog: The images.
            vectors: [N, model.dim] Vectors of the images, which the model of the index made.
            cache: Folder for decoded pixels. Defaults to the user's cache.
            progress: Show progress bars.
        """
        paths = [image_path(catalog, row) for row in range(len(catalog))]
        known = self._ids_of(paths)
        new = np.array([row for row, path in enumerate(paths) if path not in known], np.int64)
        vectors = vectors if vectors is None or len(new) == len(vectors) else vectors[new]
        return self._change([], Addition(catalog.take(new), vectors, cache, progress))

    def update(
        self, catalog: Catalog, *, cache: str | os.PathLike[str] | None = None, progress: bool = True
    ) -> Self:
        """Make the index that of a catalog: changed files are embedded again, new ones added, others removed.

        A file has changed if its size or modification time has, or its label or a column of the catalog.
        """
        current = {image_path(catalog, row): row for row in range(len(catalog))}
        same, gone = set(), []
        for row in self.rows():
            path = row["path"]
            if (
                path in current
                and path not in same
                and (row["bytes"], row["mtime"]) == file_state(path)
                and _is_described_as(row, catalog, current[path])
            ):
                same.add(path)
            else:
                gone.append(row["id"])
        changed = [row for path, row in current.items() if path not in same]
        return self._change(gone, Addition(catalog.take(changed), None, cache, progress))

    def remove(self, ids: Iterable[int] = (), paths: Iterable[str | os.PathLike[str]] = ()) -> Self:
        """Remove images by id or by file, and return the index without them.

        Raises:
            UserError: One of them is not in the index; nothing is removed then.
        """
        wanted, paths = list(ids), list(paths)
        self._vectors.rows_of(wanted)
        known = self._ids_of([os.path.abspath(path) for path in paths])
        for path in paths:
            if os.path.abspath(path) not in known:
                raise UserError(f"{os.fspath(path)}: is not in the index")
            wanted += known[os.path.abspath(path)]
        return self._change(wanted)

    def sync(self, milvus: str | None = None) -> Self:
        """Make again what is missing or behind of the file of FAISS and the copy in Milvus.

        Args:
            milvus: Copy the vectors to this address from now on.

        Raises:
            UserError: Milvus does not answer, or FAISS is not installed.
        """
        changes.sync(self.folder, milvus)
        return type(self)(self.folder)

    def verify(self) -> list[str]:
        """Return a line for each file of the index that is missing or damaged; none if all is well."""
        return find_damage(self.folder, self.manifest)

    def info(self) -> str:
        """Return a few lines about the index."""
        size = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        about, labels = self.manifest, set(self.columns["label"].tolist())
        lines = [
            f"{self.folder}: {len(self):,} images of {len(labels):,} classes, {format_size(size)}",
            f"vectors: {about.dim} dimensions, {about.precision}; segments: {len(about.segments):,}; "
            f"changes since it was built: {about.generation - 1:,}",
            f"scores: {self._describe_calibration()}",
        ]
        if about.recall is not None:
            lines.append(
                f"recall@10 of these vectors: {about.recall:.3f} of the model's own, when it was built"
            )
        if about.neighbors.name:
            outside = int((self.ids >= about.neighbors.until).sum())
            lines.append(
                f"engine: {about.neighbors.kind} of {about.neighbors.rows:,} images, recall@10 "
                f"{about.neighbors.recall:.3f} against exact search; {outside:,} more are compared exactly"
            )
        if about.milvus.address:
            lines.append(f"engine: Milvus at {about.milvus.address}, collection {about.milvus.collection}")
        return "\n".join([*lines, f"filters: {', '.join(self.columns)}"])

    def thumbnail(self, id: int) -> bytes:
        """Return a small JPEG of an image.

        Raises:
            UserError: There is no such id.
        """
        part, number = self._vectors.part(int(self._vectors.rows_of([id])[0]))
        return part.thumbnail(number)

    def vectors(self, ids: Sequence[int]) -> Tensor:
        """Return the vectors of some images [N, dim].

        Raises:
            UserError: There is no such id.
        """
        return self._vectors.decode(self._vectors.rows_of(ids))

    def _cut(self, vectors: Tensor) -> Tensor:
        """Return vectors as those of the index: the first dimensions, of length one."""
        dim = self.manifest.dim
        if vectors.shape[1] != dim and vectors.shape[1] != self.model.dim:
            raise UserError(f"queries: {vectors.shape[1]} dimensions; the index has {dim}")
        return unit(vectors[:, :dim])

    def _nearest(self, queries: Tensor, k: int, where: str | None) -> tuple[Tensor, Tensor]:
        """Return the k largest cosines of each query and their rows, by the engine unless it fails."""
        allowed = None
        if where is not None:
            allowed = np.zeros(len(self._vectors.kept), bool)
            allowed[self._vectors.kept] = matching_rows(where, self.columns)
        if not self._exact:
            try:
                self._engine = self._engine or self._open_engine()
                return nearest(self._vectors, self._engine, queries, k, allowed=allowed, where=where)
            except EngineError as error:
                warnings.warn(f"{error}; every vector is compared instead", stacklevel=3)
                self._engine, self._exact = None, True
        return self._vectors.nearest(queries, k, allowed)

    def _open_engine(self) -> Engine | None:
        if self.manifest.milvus.address:
            return MilvusMirror(self.folder, self.manifest)
        if self.manifest.neighbors.name:
            return NeighborSearch(self.folder, self.manifest.neighbors)
        return None

    def _match(self, probability: float | None, score: float, place: int) -> Match:
        part, number = self._vectors.part(place)
        row = part.row(number)
        return Match(row["id"], score, row["path"], row["label"], row["columns"], probability)

    def _threshold(self, precision: float) -> float:
        if self.calibration is None:
            raise UserError(f"min_precision={precision:g}: {self._describe_calibration()}")
        return self.calibration.threshold(precision)

    def _describe_calibration(self) -> str:
        if self.calibration is not None:
            about = f", {self.calibration.about}" if self.calibration.about else ""
            return (
                f"calibrated for one image in {1 / self.calibration.prior:,.0f} of the query's class{about}"
            )
        if calibrations.FILE in self.manifest.model_files:
            return f"calibrated for all dimensions of the model, not for its first {self.manifest.dim}"
        return "not calibrated: run firstpage calibrate RUN, then build the index again"

    def _ids_of(self, paths: Sequence[str]) -> dict[str, list[int]]:
        """Return the ids of each path that is in the index; few lines are read for it."""
        hashes = np.array([path_hash(path) for path in paths], np.uint64)
        wanted, found = set(paths), dict[str, list[int]]()
        for part in self._vectors.parts:
            for number in np.flatnonzero(part.kept & np.isin(part.paths, hashes)).tolist():
                row = part.row(number)
                if row["path"] in wanted:
                    found.setdefault(row["path"], []).append(row["id"])
        return found

    def _change(self, gone: list[int], images: Addition | None = None) -> Self:
        """Remove some images and add others, in one step."""
        changes.change(self.folder, self.manifest, gone, lambda: self.model, images)
        return type(self)(self.folder)


def _read(folder: Path) -> tuple[Manifest, Vectors]:
    """Return the manifest of an index and its vectors."""
    manifest = read_manifest(folder)
    while True:
        try:
            return manifest, Vectors(folder, manifest)
        except UserError:
            # A process that changes the index meanwhile removes files that only the old manifest names.
            before, manifest = manifest, read_manifest(folder)
            if manifest == before:
                raise


def _is_described_as(row: Mapping[str, Any], catalog: Catalog, number: int) -> bool:
    """Return whether an image of an index has the label, and the columns, that a catalog has for it."""
    columns = {name: values[number] for name, values in catalog.columns.items()}
    label: str = catalog.classes[catalog.labels[number]]
    return bool(row["label"] == label and row["columns"] | columns == row["columns"])
