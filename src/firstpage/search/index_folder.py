"""The folder of an index: segments that never change, and a manifest that says which of them count.

- `index.json`, the manifest;
- `model/`, the saved embedder that made the vectors;
- `segments/NAME/`, what was added at one time: `vectors.bin`, one row of numbers for each image,
  `rows.jsonl`, a line about each image, `lines.bin`, its id, where its line ends and a hash of its path, and
  `thumbnails.bin`, small JPEGs one after another;
- `segments/NAME/removed-GENERATION.bin`, the numbers of the rows that were removed from it;
- `neighbors-GENERATION.faiss`, a structure of FAISS that finds candidates without comparing every vector.

A change writes new files and then replaces the manifest, in one step: whoever reads meanwhile, and whatever
is killed, there is the old index or the new one. Files that no manifest names are left by killed changes; the
next change removes them. The manifest has the sha256 of every file, and a checksum of its own.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from firstpage import durable
from firstpage._reading import json_checksum, read_json
from firstpage.data.file_download import file_sha256
from firstpage.errors import UserError
from firstpage.recipes.recipe import build_settings

VERSION = 1
MANIFEST, MODEL, SEGMENTS = "index.json", "model", "segments"
VECTORS, LINES, ROWS, THUMBNAILS = "vectors.bin", "lines.bin", "rows.jsonl", "thumbnails.bin"
PRECISIONS = {"float32": "<f4", "float16": "<f2", "int8": "|i1"}
LINE = np.dtype([("id", "<i8"), ("end", "<i8"), ("path", "<u8")])  # of `lines.bin`


@dataclass(frozen=True)
class Segment:
    """What was added to an index at one time.

    Args:
        name: Of its folder.
        rows: Number of images, the removed ones included.
        files: The sha256 of each of its files.
        removed: The file with the numbers of its removed rows; empty if none was removed.
        columns: What the further columns of its table are called.

    >>> Segment("000001", 3, {}).removed
    ''
    """

    name: str
    rows: int
    files: dict[str, str]
    removed: str = ""
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class NeighborFile:
    """A file of FAISS that finds candidates among the images that the index had when it was made.

    Args:
        name: Of the file; empty if there is none.
        sha256: Its checksum.
        kind: `hnsw` or `ivfpq`.
        until: The images with a lower id are in it; the others are compared one by one.
        rows: Number of images in it.
        recall: Share of the 10 nearest that it finds, against comparing every vector.

    >>> NeighborFile().kind
    ''
    """

    name: str = ""
    sha256: str = ""
    kind: str = ""
    until: int = 0
    rows: int = 0
    recall: float = 1.0


@dataclass(frozen=True)
class Mirror:
    """A Milvus collection that holds a copy of the vectors.

    Args:
        address: `http://HOST:PORT` of a server, or the path of a `.db` of Milvus Lite; empty if none.
        collection: Its name.

    >>> Mirror().address
    ''
    """

    address: str = ""
    collection: str = ""


@dataclass(frozen=True)
class Manifest:
    """The contents of `index.json`.

    Args:
        version: Of the format.
        model: Fingerprint of the embedder.
        dim: Dimensions of the vectors: the first ones of the model's.
        precision: `float32`, `float16` or `int8`.
        generation: Number of changes so far.
        next_id: Id of the next image.
        model_files: The sha256 of the embedder's files.
        segments: In the order in which they were added.
        engine: How candidates are found: `auto`, `exact`, `hnsw` or `ivfpq`.
        neighbors: The file of FAISS, if there is one.
        milvus: The Milvus collection, if there is one.
        recall: Share of the 10 nearest by the model's float32 vectors that are the nearest by the stored
            ones, when the index was built; none if these are the same.

    >>> Manifest(VERSION, "4f2a", 128, "float32").segments
    ()
    """

    version: int
    model: str
    dim: int
    precision: str
    generation: int = 0
    next_id: int = 0
    model_files: dict[str, str] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    engine: str = "auto"
    neighbors: NeighborFile = field(default_factory=NeighborFile)
    milvus: Mirror = field(default_factory=Mirror)
    recall: float | None = None


def contents(manifest: Manifest) -> str:
    """Return a digest of the images that an index holds: equal if the same are there, removed and added.

    >>> contents(Manifest(VERSION, "4f2a", 128, "float32"))[:8]
    '4f53cda1'
    """
    table = json.dumps([asdict(segment) for segment in manifest.segments], sort_keys=True)
    return hashlib.sha256(table.encode()).hexdigest()


def column_names(manifest: Manifest) -> list[str]:
    """Return what the further columns of an index are called.

    >>> column_names(Manifest(VERSION, "4f2a", 8, "float32", segments=(Segment("1", 3, {}, "", ("price",)),)))
    ['price']
    """
    return list(dict.fromkeys(name for segment in manifest.segments for name in segment.columns))


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an index.

    Raises:
        FileNotFoundError: There is no index.
        UserError: It is damaged, or of another version.

    >>> read_manifest(Path("nowhere"))
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no index there; firstpage index build makes one
    """
    path = folder / MANIFEST
    if not path.exists():
        raise FileNotFoundError(f"{folder}: no index there; firstpage index build makes one")
    table = read_json(path)
    if not isinstance(table, dict) or type(table.get("version")) is not int:
        raise UserError(f"{path}: states no version: restore it from a copy")
    if table["version"] != VERSION:
        raise UserError(f"{path}: index of version {table['version']}, expected {VERSION}: build it again")
    checksum = table.pop("checksum", None)
    if checksum != json_checksum(table):
        raise UserError(f"{path}: damaged (it does not have its checksum): restore it from a copy")
    segments = table.pop("segments", None)
    if not isinstance(segments, list) or not all(isinstance(part, dict) for part in segments):
        raise UserError(f"{path}: segments must be a list of tables: restore it from a copy")
    manifest: Manifest = build_settings(Manifest, table, "")
    parts = (build_settings(Segment, part, f"segments[{number}].") for number, part in enumerate(segments))
    return replace(manifest, segments=tuple(parts))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest: from now on, this is the index.

    >>> import tempfile
    >>> manifest = Manifest(VERSION, "4f2a", 128, "float32", segments=(Segment("000001", 3, {}),))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_manifest(Path(folder), manifest)
    ...     read_manifest(Path(folder)) == manifest
    True
    """
    table = asdict(manifest)
    durable.write(
        folder / MANIFEST, json.dumps(table | {"checksum": json_checksum(table)}, indent=1).encode()
    )


def write_segment(folder: Path, name: str, contents: Mapping[str, Iterable[bytes]]) -> dict[str, str]:
    """Write the files of a new segment, out to the disk, and return their sha256.

    Args:
        folder: The folder of the index.
        name: Of the segment.
        contents: The content of each file, piece by piece; they are written in this order.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     list(write_segment(Path(folder), "000001", {"rows.jsonl": [b""]}))
    ['rows.jsonl']
    """
    place = folder / SEGMENTS / name
    place.mkdir(parents=True, exist_ok=True)
    return {file: write_hashed(place / file, partial(_append, content)) for file, content in contents.items()}


def _append(pieces: Iterable[bytes], write: Callable[[bytes], object]) -> None:
    for piece in pieces:
        write(piece)


def write_hashed(path: Path, fill: Callable[[Callable[[bytes], object]], object]) -> str:
    """Write a file out to the disk while it is made, and return its sha256.

    Args:
        path: The file.
        fill: Is given a function that appends bytes to it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_hashed(Path(folder, "note"), lambda write: write(b"whole"))[:8]
    '5d5766cf'
    """
    digest = hashlib.sha256()

    def fill_file(file: BinaryIO) -> None:
        def write(data: bytes) -> None:
            digest.update(data)
            file.write(data)

        fill(write)

    durable.write(path, fill_file)
    return digest.hexdigest()


def read_removed(folder: Path, segment: Segment) -> np.ndarray:
    """Return the numbers of the rows that were removed from a segment.

    >>> read_removed(Path("birds"), Segment("000001", 3, {}))
    array([], dtype=int64)
    """
    if not segment.removed:
        return np.zeros(0, np.int64)
    path = folder / SEGMENTS / segment.name / segment.removed
    rows = np.fromfile(path, "<i8")
    if rows.size and not 0 <= rows.min() <= rows.max() < segment.rows:
        raise UserError(f"{path}: damaged: firstpage index verify finds what is; restore it from a copy")
    return rows


def sweep(folder: Path, manifest: Manifest) -> None:
    """Remove what killed changes have left, and what the last change replaced.

    >>> sweep(Path("nowhere"), Manifest(VERSION, "4f2a", 128, "float32"))
    """
    for file in folder.glob("neighbors-*.faiss"):
        if file.name != manifest.neighbors.name:
            file.unlink(missing_ok=True)
    named = {segment.name: segment for segment in manifest.segments}
    for place in (folder / SEGMENTS).glob("*"):
        if place.name not in named:
            shutil.rmtree(place, ignore_errors=True)
            continue
        for file in place.glob("removed-*.bin"):
            if file.name != named[place.name].removed:
                file.unlink(missing_ok=True)


def find_damage(folder: Path, manifest: Manifest) -> list[str]:
    """Return a line for each file of an index that is missing or not as it was written.

    >>> find_damage(Path("nowhere"), Manifest(VERSION, "4f2a", 128, "float32"))
    []
    """
    files = {folder / MODEL / name: digest for name, digest in manifest.model_files.items()}
    if manifest.neighbors.name:
        files[folder / manifest.neighbors.name] = manifest.neighbors.sha256
    for segment in manifest.segments:
        place = folder / SEGMENTS / segment.name
        files |= {place / name: digest for name, digest in segment.files.items()}
    wrong = []
    for path, digest in files.items():
        if not path.is_file():
            wrong.append(f"{path.relative_to(folder)}: missing")
        elif file_sha256(path) != digest:
            wrong.append(f"{path.relative_to(folder)}: damaged")
    return wrong
