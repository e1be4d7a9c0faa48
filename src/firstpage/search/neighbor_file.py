"""Approximate search by FAISS: a file beside the vectors, from which candidates are named in a moment."""

import hashlib
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor

from firstpage.search.engines import OUTSIDE, EngineError, choose, measure
from firstpage.search.index_folder import Manifest, NeighborFile, write_hashed
from firstpage.search.vectors import Vectors

LINKS = 32  # of a vector in the graph of HNSW
TRAINING = 2**18  # vectors that k-means and ranges are learned from


def import_faiss() -> ModuleType:
    """Return the module of FAISS.

    Raises:
        EngineError: It is not installed.

    >>> import_faiss().METRIC_INNER_PRODUCT
    0
    """
    try:
        import faiss
    except ImportError:
        raise EngineError("FAISS is not installed: pip install 'firstpage[search]'") from None
    module: ModuleType = faiss
    return module


class NeighborSearch:
    """Candidates from a file that `write_neighbors` has made. It is read when they are first asked for.

    Args:
        folder: The folder of the index.
        about: The file.

    Raises:
        EngineError: FAISS is not installed, or the file is missing.

    >>> NeighborSearch(Path("nowhere"), NeighborFile("neighbors-000001.faiss"))
    Traceback (most recent call last):
    firstpage.search.engines.EngineError: nowhere/neighbors-000001.faiss: missing: firstpage index sync ...
    """

    def __init__(self, folder: Path, about: NeighborFile) -> None:
        self._faiss, self._about, self.until = import_faiss(), about, about.until
        path = folder / about.name
        remedy = f"firstpage index sync {folder} makes it again"
        try:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != about.sha256:
                    raise EngineError(f"{path}: damaged: {remedy}")
                file.seek(0)
                self._index = self._faiss.read_index(self._faiss.PyCallbackIOReader(file.read))
        except OSError:
            raise EngineError(f"{path}: missing: {remedy}") from None

    def candidates(
        self, queries: Tensor, k: int, allowed: np.ndarray | None, where: str | None
    ) -> np.ndarray:
        """Return the ids of more than k images that are probably the nearest of each query: [Q, C]."""
        faiss, options, effort = self._faiss, {}, 1
        if allowed is not None:  # the nearest that may be named are farther away
            options["sel"] = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
            effort = math.ceil(min(16, len(allowed) / max(1, int(np.count_nonzero(allowed)))))
        if self._about.kind == "hnsw":
            count = 4 * k
            parameters = faiss.SearchParametersHNSW(efSearch=max(256, 2 * count) * effort, **options)
        else:
            lists = faiss.extract_index_ivf(self._index).nlist
            count = max(256, 16 * k)
            parameters = faiss.SearchParametersIVF(nprobe=max(8, lists // 32) * effort, **options)
        count = min(count, self._about.rows)
        vectors = np.ascontiguousarray(queries.numpy(), np.float32)
        scores, ids = np.empty((len(vectors), count), np.float32), np.empty((len(vectors), count), np.int64)
        pointer = faiss.swig_ptr
        # Not `search`: faiss.contrib.torch_utils, which others import, replaces it by one without parameters.
        self._index.search_c(len(vectors), pointer(vectors), count, pointer(scores), pointer(ids), parameters)
        return ids


def renew(folder: Path, manifest: Manifest, vectors: Vectors) -> NeighborFile:
    """Return the file of FAISS that an index should have: none, the one there is, or a new one.

    Args:
        folder: The folder of the index.
        manifest: What its next manifest will be; the name of a new file follows its generation.
        vectors: The vectors of that manifest.

    Raises:
        EngineError: FAISS is not installed.

    >>> manifest = Manifest(1, "4f2a", 8, "float32")
    >>> renew(Path("birds"), manifest, Vectors(Path("birds"), manifest)).name
    ''
    """
    count = int(np.count_nonzero(vectors.kept))
    kind, old = choose(manifest.engine, count), manifest.neighbors
    if kind == "exact" or count == 0:
        return NeighborFile()
    inside = int(np.count_nonzero(vectors.kept & (vectors.ids < old.until)))
    if old.kind == kind and count - inside <= OUTSIDE * count and old.rows - inside <= OUTSIDE * old.rows:
        return old
    index = _train(kind, vectors, count)
    for ids, block in vectors.blocks():
        if len(ids):
            index.add_with_ids(block, ids)
    name = f"neighbors-{manifest.generation:06d}.faiss"
    faiss = import_faiss()
    digest = write_hashed(
        folder / name, lambda write: faiss.write_index(index, faiss.PyCallbackIOWriter(write))
    )
    about = NeighborFile(name, digest, kind, manifest.next_id, count)
    recall = measure(vectors, NeighborSearch(folder, about))
    return NeighborFile(name, digest, kind, manifest.next_id, count, round(recall, 4))


def _train(kind: str, vectors: Vectors, count: int) -> Any:  # noqa: ANN401
    """Return an empty index of FAISS that has learned from a sample of the vectors."""
    faiss = import_faiss()
    metric = faiss.METRIC_INNER_PRODUCT
    rows = np.random.default_rng(0).permutation(np.flatnonzero(vectors.kept))
    if kind == "hnsw":
        index = faiss.IndexHNSWSQ(vectors.dim, faiss.ScalarQuantizer.QT_8bit, LINKS, metric)
        index.hnsw.efConstruction = 64
        index.train(vectors.decode(np.sort(rows[: 2**16])).numpy())
        return faiss.IndexIDMap2(index)
    lists = max(1, min(int(4 * math.sqrt(count)), count // 40))
    pieces = max(size for size in range(1, max(1, vectors.dim // 4) + 1) if vectors.dim % size == 0)
    bits = min(8, int(math.log2(max(2, count))))
    index = faiss.IndexIVFPQ(faiss.IndexFlatIP(vectors.dim), vectors.dim, lists, pieces, bits, metric)
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1  # it would warn of few
    index.train(vectors.decode(np.sort(rows[: max(TRAINING, 64 * lists)])).numpy())
    return index
