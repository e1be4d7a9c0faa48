"""How the nearest vectors are found: every one compared, or candidates of FAISS or Milvus compared again.

An engine only names candidates. Their cosines are computed from the vectors in the folder, so that scores are
the same whatever found them; images that the engine does not know yet are compared one by one; and where an
engine names too few, as a filter may cause, every vector is compared.
"""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.pairs import unit
from firstpage.search.vectors import BLOCK, Vectors, largest, leave_out

ENGINES = ("auto", "exact", "hnsw", "ivfpq")
EXACT, HNSW = 1_000_000, 10_000_000  # up to so many vectors `auto` takes these
FEW = 50_000  # a filter that leaves fewer rows than this is answered by comparing each of them
OUTSIDE = 0.2  # share of images added or removed since, above which the file of FAISS is made again
SAMPLE = 500  # queries that recall is measured by


class EngineError(UserError):
    """An engine cannot answer: its file is damaged, its server away, or it does not have the index's images.

    >>> raise EngineError("index/neighbors-000001.faiss: damaged")
    Traceback (most recent call last):
    firstpage.search.engines.EngineError: index/neighbors-000001.faiss: damaged
    """


class Engine(Protocol):
    """Names images that are probably the nearest.

    Attributes:
        until: It knows the images with lower ids than this.

    >>> class All:
    ...     until = 3
    ...     def candidates(self, queries, k, allowed, where):
    ...         return np.tile(np.arange(3), (len(queries), 1))
    >>> engine: Engine = All()
    """

    until: int

    def candidates(
        self, queries: Tensor, k: int, allowed: np.ndarray | None, where: str | None
    ) -> np.ndarray:
        """Return ids for each query, at least k if there are as many: [Q, C], -1 fills up.

        Args:
            queries: [Q, dim] Of length one.
            k: Number of results wanted.
            allowed: [until] Which ids may be named. Defaults to all.
            where: The filter of the search, if there is one; `allowed` follows it already.

        Raises:
            EngineError: It cannot answer.
        """


def choose(engine: str, count: int) -> str:
    """Return what to use for so many vectors: `exact`, `hnsw` or `ivfpq`.

    >>> choose("auto", 1_000_000), choose("auto", 1_000_001), choose("ivfpq", 5_000)
    ('exact', 'hnsw', 'ivfpq')
    """
    if engine == "auto":
        return "exact" if count <= EXACT else "hnsw" if count <= HNSW else "ivfpq"
    return engine


def nearest(
    vectors: Vectors,
    engine: Engine | None,
    queries: Tensor,
    k: int,
    *,
    allowed: np.ndarray | None = None,
    where: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the k largest cosines of each query and their rows.

    Args:
        vectors: The vectors of the index.
        engine: Names candidates. None compares with every vector.
        queries: [Q, dim] Of length one.
        k: Number of results.
        allowed: [R] The rows that a filter accepts. Defaults to all that are kept.
        where: The filter.

    >>> from pathlib import Path
    >>> from firstpage.search.index_folder import Manifest
    >>> empty = Vectors(Path("birds"), Manifest(1, "4f2a", 8, "float32"))
    >>> nearest(empty, None, torch.zeros(1, 8), 3)[0].shape
    torch.Size([1, 0])
    """
    mask = vectors.kept if allowed is None else allowed & vectors.kept
    count = int(np.count_nonzero(mask))
    if engine is None or count <= max(k, FEW if allowed is not None else 0):
        return vectors.nearest(queries, k, mask)
    first = int(np.searchsorted(vectors.ids, engine.until))
    known = None
    if not mask[:first].all() or first < engine.until:
        known = np.zeros(engine.until, bool)
        known[vectors.ids[:first][mask[:first]]] = True
    rows = vectors.find(engine.candidates(queries, k, known, where))
    rows = np.where((rows >= 0) & mask[rows], rows, -1)
    outside = vectors.nearest(queries, k, mask, first)
    both = torch.cat([vectors.cosines(queries, rows), outside[0]], 1)
    scores, place = both.topk(min(k, both.shape[1]), dim=1)
    places = torch.cat([torch.from_numpy(rows), outside[1]], 1).gather(1, place)
    missing = (~scores.isfinite()).any(dim=1) | (scores.shape[1] < min(k, count))
    if missing.any():
        again = vectors.nearest(queries[missing], k, mask)
        if scores.shape[1] < again[0].shape[1]:
            scores, places = (
                torch.nn.functional.pad(part, (0, again[0].shape[1] - part.shape[1]))
                for part in (scores, places)
            )
        scores[missing], places[missing] = again
    return scores, places


def measure(vectors: Vectors, engine: Engine | None, truth: np.ndarray | None = None) -> float:
    """Return the recall@10 of searching by images of the index, on a sample.

    What is as near as the last of the ten counts as found: an image may be there several times.

    Args:
        vectors: The vectors of the index.
        engine: Names candidates. None compares with every vector.
        truth: [R, D] The vectors of each row that are right. Defaults to those of the index.

    >>> from pathlib import Path
    >>> from firstpage.search.index_folder import Manifest
    >>> measure(Vectors(Path("birds"), Manifest(1, "4f2a", 8, "float32")), None)
    1.0
    """
    kept = np.flatnonzero(vectors.kept)
    if len(kept) < 2:
        return 1.0
    rows = np.sort(np.random.default_rng(0).permutation(kept)[:SAMPLE])
    queries, own = vectors.decode(rows), torch.from_numpy(rows)
    k = min(10, len(kept) - 1)
    scores, found = (part[:, :k] for part in leave_out(*nearest(vectors, engine, queries, k + 1), own))
    if truth is None:
        best, _ = leave_out(*vectors.nearest(queries, k + 1), own)
    else:
        asked = _read(truth, rows)
        blocks = (np.arange(start, min(start + BLOCK, len(truth))) for start in range(0, len(truth), BLOCK))
        cosines = ((asked @ _read(truth, block).T, int(block[0])) for block in blocks)
        best, _ = leave_out(*largest(asked, k + 1, cosines), own)
        right = _read(truth, found.flatten().numpy()).view(*found.shape, -1)
        scores = torch.bmm(right, asked.unsqueeze(2)).squeeze(2)
    return float((scores >= best[:, k - 1 : k] - 1e-5).float().mean())


def _read(truth: np.ndarray, rows: np.ndarray) -> Tensor:
    return unit(torch.from_numpy(np.array(truth[rows], np.float32)))
