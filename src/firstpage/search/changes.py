"""Making and changing the folder of an index, one process at a time, in one step."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from filelock import Timeout

from firstpage.data.catalog import Catalog
from firstpage.data.file_download import file_sha256
from firstpage.data.locking import exclusive
from firstpage.errors import UserError
from firstpage.evaluation.calibration import Calibration
from firstpage.models.embedder import Embedder
from firstpage.models.embedding_cache import model_fingerprint
from firstpage.search.engines import ENGINES, EngineError, measure
from firstpage.search.index_folder import (
    LINE,
    LINES,
    MANIFEST,
    MODEL,
    PRECISIONS,
    SEGMENTS,
    VERSION,
    Manifest,
    NeighborFile,
    Segment,
    contents,
    find_damage,
    read_manifest,
    read_removed,
    sweep,
    write_manifest,
    write_segment,
)
from firstpage.search.milvus_mirror import MilvusMirror, new_mirror
from firstpage.search.neighbor_file import import_faiss, renew
from firstpage.search.segment import write_images, write_vectors
from firstpage.search.vectors import Vectors

LOW_RECALL = 0.95  # below it, a warning


@dataclass(frozen=True)
class Addition:
    """Images to add to an index.

    Args:
        catalog: The images.
        vectors: [N, dimensions of the model] Their vectors. Defaults to embedding the images.
        cache: Folder for decoded pixels. Defaults to the user's cache.
        progress: Show progress bars.

    >>> Addition(Catalog("birds", Path(), [], np.zeros(0, int), [], {})).progress
    True
    """

    catalog: Catalog
    vectors: np.ndarray | None = None
    cache: str | os.PathLike[str] | None = None
    progress: bool = True

    def write(
        self, folder: Path, manifest: Manifest, model: Callable[[], Embedder]
    ) -> tuple[Segment, np.ndarray]:
        """Write a segment of them, and return it with the model's vectors.

        Raises:
            UserError: The vectors do not fit.
        """
        if self.vectors is None:
            options = {"cache": self.cache, "progress": self.progress}
            return write_images(folder, manifest, model(), self.catalog, **options)  # type: ignore[arg-type]
        shape, rows = self.vectors.shape, len(self.catalog)
        if len(shape) != 2 or len(self.vectors) != rows or shape[1] < manifest.dim:
            raise UserError(
                f"vectors: shape {shape} does not fit {rows:,} images of {manifest.dim} dimensions"
            )
        return write_vectors(folder, manifest, self.catalog, self.vectors)


def build(
    folder: Path,
    model: Embedder,
    images: Addition,
    *,
    precision: str,
    dims: int | None,
    engine: str,
    milvus: str | None,
    calibration: Calibration | None,
) -> None:
    """Make an index. The arguments are those of `Index.build`.

    >>> options = {"dims": None, "engine": "auto", "milvus": None, "calibration": None}
    >>> build(Path("x"), None, None, precision="int4", **options)
    Traceback (most recent call last):
    firstpage.errors.UserError: precision='int4': choose one of float32, float16, int8
    """
    for name, value, choices in (("precision", precision, PRECISIONS), ("engine", engine, ENGINES)):
        if value not in choices:
            raise UserError(f"{name}={value!r}: choose one of {', '.join(choices)}")
    dim = model.dim if dims is None else dims
    if not 1 <= dim <= model.dim:
        raise UserError(f"dims={dims}: the model has 1 to {model.dim}")
    if (folder / MANIFEST).exists():
        raise UserError(f"{folder}: is an index already: firstpage index update {folder} adds what is new")
    left = (MODEL, SEGMENTS, "change.lock")  # by a build that was killed
    if folder.exists() and any(
        path.name not in left and path.suffix != ".faiss" for path in folder.iterdir()
    ):
        raise UserError(f"{folder}: is not empty; choose another folder")
    if engine in ("hnsw", "ivfpq"):
        import_faiss()
    manifest = Manifest(VERSION, model_fingerprint(model), dim, precision, engine=engine)
    if calibration is not None and calibration.model != manifest.model:
        raise UserError("calibration: is of another model: run firstpage calibrate again")
    if milvus is not None:
        manifest = replace(manifest, milvus=new_mirror(milvus, folder))
    folder.mkdir(parents=True, exist_ok=True)
    with changing(folder):
        if milvus is not None:
            MilvusMirror(folder, manifest)  # whether it answers, before the images are embedded
        model.save(folder / MODEL)
        names = ["config.json", "model.safetensors"]
        if calibration is not None:
            names.append(calibration.for_gallery(images.catalog.labels).save(folder / MODEL).name)
        files = {name: file_sha256(folder / MODEL / name) for name in names}
        segment, truth = images.write(folder, replace(manifest, model_files=files), lambda: model)
        made = replace(
            manifest,
            generation=1,
            next_id=segment.rows,
            model_files=files,
            segments=(segment,) if segment.rows else (),
        )
        if segment.rows and (precision != "float32" or dim < model.dim):
            made = replace(made, recall=round(measure(Vectors(folder, made), None, truth), 4))
        commit(folder, made)
    if made.recall is not None and made.recall < LOW_RECALL:
        warnings.warn(
            f"{dim} of {model.dim} dimensions, {precision}: recall@10 is {made.recall:.3f} against the "
            "model's vectors: keep more dimensions, or a higher precision",
            stacklevel=3,
        )


def change(
    folder: Path, seen: Manifest, gone: list[int], model: Callable[[], Embedder], images: Addition | None
) -> None:
    """Remove some images and add others, in one step.

    Args:
        folder: The folder of the index.
        seen: Its manifest, as it was when the images were chosen.
        gone: Ids to remove.
        model: Returns the embedder of the index.
        images: To add.

    Raises:
        UserError: Another process has changed it since, or is changing it.

    >>> change(Path("nowhere"), Manifest(VERSION, "4f2a", 8, "float32"), [], lambda: None, None)
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no index there; firstpage index build makes one
    """
    read_manifest(folder)
    with changing(folder):
        manifest = read_manifest(folder)
        if manifest.generation != seen.generation:
            raise UserError(f"{folder}: another process has changed it: open it again")
        sweep(folder, manifest)
        segments = _without(folder, manifest, gone) if gone else list(manifest.segments)
        next_id = manifest.next_id
        if images is not None and len(images.catalog):
            added, _ = images.write(folder, manifest, model)
            next_id += added.rows
            segments += [added] if added.rows else []
        if tuple(segments) != manifest.segments:
            made = replace(
                manifest,
                generation=manifest.generation + 1,
                next_id=next_id,
                segments=tuple(segments),
            )
            commit(folder, made, contents(manifest), gone, manifest.next_id)


def commit(
    folder: Path, made: Manifest, since: str = "", gone: list[int] | None = None, first: int = 0
) -> None:
    """Make a manifest the index, whose segments are written, and then bring Milvus up to it.

    Args:
        folder: The folder of the index.
        made: The manifest.
        since: What was there before, as `contents` says it.
        gone: The ids that were removed.
        first: The first id that was added.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     commit(Path(folder), Manifest(VERSION, "4f2a", 8, "float32", 1))
    ...     read_manifest(Path(folder)).generation
    1
    """
    vectors = Vectors(folder, made)
    if not made.milvus.address:
        try:
            made = replace(made, neighbors=renew(folder, made, vectors))
        except EngineError as error:
            warnings.warn(f"{error}; new images are compared one by one", stacklevel=3)
    write_manifest(folder, made)
    sweep(folder, made)
    if made.milvus.address:
        try:
            MilvusMirror(folder, made).sync(vectors, since, gone or (), first)
        except EngineError as error:
            remedy = f"firstpage index sync {folder} copies it later"
            warnings.warn(f"{error}; the folder has the change, and {remedy}", stacklevel=3)


def sync(folder: Path, milvus: str | None = None) -> None:
    """Make again what is missing or behind of the file of FAISS and the copy in Milvus.

    Args:
        folder: The folder of the index.
        milvus: Copy the vectors to this address from now on.

    Raises:
        EngineError: FAISS is not installed, or Milvus does not answer.

    >>> sync(Path("nowhere"))
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no index there; firstpage index build makes one
    """
    read_manifest(folder)
    with changing(folder):
        manifest = read_manifest(folder)
        made = replace(manifest, generation=manifest.generation + 1)
        if milvus is not None:
            made = replace(made, milvus=new_mirror(milvus, folder), neighbors=NeighborFile())
            MilvusMirror(folder, made)
        vectors = Vectors(folder, made)
        if not made.milvus.address:
            name = made.neighbors.name
            if name and any(line.startswith(name) for line in find_damage(folder, manifest)):
                made = replace(made, neighbors=NeighborFile())
            made = replace(made, neighbors=renew(folder, made, vectors))
        if (made.neighbors, made.milvus) != (manifest.neighbors, manifest.milvus):
            write_manifest(folder, made)
            sweep(folder, made)
        if made.milvus.address:
            MilvusMirror(folder, made).sync(vectors)


def _without(folder: Path, manifest: Manifest, gone: list[int]) -> list[Segment]:
    """Return the segments with some ids removed, whose files have been written."""
    kept = []
    for segment in manifest.segments:
        ids = np.fromfile(folder / SEGMENTS / segment.name / LINES, LINE)["id"]
        before = read_removed(folder, segment)
        removed = np.union1d(before, np.flatnonzero(np.isin(ids, gone)))
        if len(removed) == len(before):
            kept.append(segment)
        elif len(removed) < segment.rows:
            name = f"removed-{manifest.generation + 1:06d}.bin"
            files = {file: digest for file, digest in segment.files.items() if file != segment.removed}
            files |= write_segment(folder, segment.name, {name: [removed.astype("<i8").tobytes()]})
            kept.append(replace(segment, files=files, removed=name))
    return kept


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Hold the lock of an index while it is changed.

    Raises:
        UserError: Another process holds it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, changing(Path(folder)):
    ...     os.listdir(folder)
    ['change.lock']
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(folder / "change", wait=False))
        except Timeout:
            raise UserError(f"{folder}: another process is changing it: wait for its end") from None
        yield
