"""The vectors of an index, and comparing queries with every one of them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firstpage.errors import UserError
from firstpage.search.index_folder import Manifest
from firstpage.search.segment import CHUNK, Part

BLOCK = 2**16  # vectors compared at a time


class Vectors:
    """The vectors of an index. A row is the place of one in all segments, those of removed images included.

    Args:
        folder: The folder of the index.
        manifest: Its manifest.

    Attributes:
        parts: Its segments.
        ids: [R] The id of each row; they ascend.
        kept: [R] False for removed images.

    Raises:
        UserError: A segment is damaged.

    >>> Vectors(Path("nowhere"), Manifest(1, "4f2a", 8, "float32")).ids
    array([], dtype=int64)
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.dim = manifest.dim
        self.parts = [Part(folder, manifest, segment) for segment in manifest.segments]
        self.ids = np.concatenate([np.zeros(0, np.int64), *(part.ids for part in self.parts)])
        self.kept = np.concatenate([np.zeros(0, bool), *(part.kept for part in self.parts)])
        self._firsts = np.cumsum([0, *(len(part.ids) for part in self.parts)])

    def rows_of(self, ids: Iterable[int]) -> np.ndarray:
        """Return the rows of some images.

        Raises:
            UserError: One of them is not in the index.
        """
        wanted = np.array(list(ids), np.int64)
        rows = self.find(wanted)
        if (rows < 0).any():
            raise UserError(f"id {wanted[np.argmin(rows)]}: is not in the index")
        return rows

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return the row of each id, -1 where it is not in the index."""
        if not len(self.ids):
            return np.full(ids.shape, -1)
        rows = np.searchsorted(self.ids, ids).clip(max=len(self.ids) - 1)
        return np.where((self.ids[rows] == ids) & self.kept[rows], rows, -1)

    def part(self, row: int) -> tuple[Part, int]:
        """Return the segment of a row, and its number there."""
        number = int(np.searchsorted(self._firsts, row, "right")) - 1
        return self.parts[number], row - int(self._firsts[number])

    def decode(self, rows: np.ndarray) -> Tensor:
        """Return the vectors of some rows, of length one: [n, dim] float32."""
        vectors = np.empty((len(rows), self.dim), np.float32)
        for part, first in zip(self.parts, self._firsts, strict=False):
            here = (rows >= first) & (rows < first + len(part.ids))
            if here.any():
                vectors[here] = part.decode(rows[here] - first)
        return torch.from_numpy(vectors)

    def nearest(
        self, queries: Tensor, k: int, allowed: np.ndarray | None = None, first: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the k largest cosines of each query and their rows, by comparing with every vector.

        Args:
            queries: [Q, dim] Of length one.
            k: Number of results.
            allowed: [R] The rows to compare with. Defaults to all that are kept.
            first: The first row to compare with.

        Returns:
            Cosines and rows, [Q, k] or fewer columns; -inf fills up.
        """
        return largest(queries, k, self._cosines(queries, self.kept if allowed is None else allowed, first))

    def _cosines(
        self, queries: Tensor, allowed: np.ndarray, first: int
    ) -> Iterator[tuple[Tensor, Tensor | int]]:
        """Return the cosines with each block of vectors, and the rows of these or the first of them."""
        room = torch.empty(0)  # for a block in float32: memory that is new each time would take longest
        for part, begin in zip(self.parts, self._firsts.tolist(), strict=False):
            for start in range(max(0, first - begin), len(part.ids), BLOCK):
                block, row = part.vectors[start : start + BLOCK], begin + start
                mask = allowed[row : row + len(block)]
                count = np.count_nonzero(mask)
                if count == 0:
                    continue
                numbers = np.flatnonzero(mask) if count < len(mask) / 2 else None  # then only these are read
                stored = torch.from_numpy(np.asarray(block if numbers is None else block[numbers]))
                if stored.dtype != torch.float32:
                    room = room if len(room) >= len(stored) else torch.empty(len(stored), self.dim)
                    stored = room[: len(stored)].copy_(stored)
                # In NumPy: for one query torch's product took four times as long on an AMD processor.
                cosine = torch.from_numpy(queries.numpy() @ stored.numpy().T)
                if part.vectors.dtype == np.int8:
                    scale = part.scale[start : start + BLOCK]
                    cosine *= scale if numbers is None else scale[torch.from_numpy(numbers)]
                if numbers is None and count < len(mask):
                    cosine.index_fill_(1, torch.from_numpy(np.flatnonzero(~mask)), -torch.inf)
                yield cosine, row if numbers is None else torch.from_numpy(row + numbers)

    def cosines(self, queries: Tensor, rows: np.ndarray) -> Tensor:
        """Return the cosine of each query with some rows of its own, [Q, C]; -inf for row -1."""
        vectors = self.decode(rows.reshape(-1).clip(min=0)).view(*rows.shape, self.dim)
        # In NumPy: for so few, starting the threads of torch would take longest.
        cosine = np.einsum("qcd,qd->qc", vectors.numpy(), queries.numpy())
        return torch.from_numpy(np.where(rows < 0, -np.inf, cosine).astype(np.float32))

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Return the ids and vectors of all kept images, many at a time."""
        for part in self.parts:
            for start in range(0, len(part.ids), BLOCK):
                kept = part.kept[start : start + BLOCK]
                yield part.ids[start : start + BLOCK][kept], part.decode(start + np.flatnonzero(kept))

    def images(self, first: int = 0) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        """Return what is known about each kept image, and its vector; of the segments that reach an id."""
        for part in self.parts:
            if part.ids[-1] >= first:
                numbers = np.flatnonzero(part.kept)
                starts = range(0, len(numbers), CHUNK)
                vectors = (row for start in starts for row in part.decode(numbers[start : start + CHUNK]))
                yield from zip(part.rows(), vectors, strict=True)


def largest(queries: Tensor, k: int, blocks: Iterable[tuple[Tensor, Tensor | int]]) -> tuple[Tensor, Tensor]:
    """Return the k largest cosines of each query and their rows, best first.

    Args:
        queries: [Q, dim].
        k: Number of results.
        blocks: Cosines [Q, B] with one block of vectors after another, and their rows [B] or the first row.

    >>> cosines = torch.tensor([[0.1, 0.9, 0.5]]), 4
    >>> largest(torch.zeros(1, 2), 2, [cosines])
    (tensor([[0.9000, 0.5000]]), tensor([[5, 6]]))
    """
    scores, rows = queries.new_empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
    for cosine, row in blocks:
        best, place = cosine.topk(min(k, cosine.shape[1]), dim=1)
        scores, order = torch.cat([scores, best], 1).sort(dim=1, descending=True, stable=True)
        place = row[place] if isinstance(row, Tensor) else row + place
        rows = torch.cat([rows, place], 1).gather(1, order)[:, :k]
        scores = scores[:, :k]
    return scores, rows


def leave_out(scores: Tensor, rows: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Return results with the query itself at the end, at -inf.

    Args:
        scores: [Q, k] Cosines, best first.
        rows: [Q, k] Their rows.
        own: [Q] The row of each query, -1 if it has none.

    >>> leave_out(torch.tensor([[1.0, 0.9, 0.5]]), torch.tensor([[3, 8, 4]]), torch.tensor([8]))
    (tensor([[1.0000, 0.5000,   -inf]]), tensor([[3, 4, 8]]))
    """
    others = scores.masked_fill(rows == own[:, None], -torch.inf)
    scores, order = others.sort(dim=1, descending=True, stable=True)
    return scores, rows.gather(1, order)
