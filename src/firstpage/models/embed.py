"""Embeddings of a whole catalog, in a file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from firstpage import durable
from firstpage.data.catalog import Catalog
from firstpage.data.store import PixelStore
from firstpage.models.device import choose
from firstpage.models.embedder import Embedder

__all__ = ["embed_to_file"]


def embed_to_file(
    model: str | os.PathLike[str],
    catalog: Catalog,
    path: str | os.PathLike[str],
    *,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> str:
    """Embed the images of a catalog by a saved model; what cannot be decoded is left out, and said.

    Writes `embeddings` [N, dim], `labels` [N], `classes` and `paths` [N] as an .npz file, all or nothing.

    Args:
        model: folder of a saved embedder, or of a run.
        catalog: the images.
        path: the file.
        device: where; a GPU where there is one if left out.
        cache: where stores of pixels are kept; the user's cache if left out.
        progress: show a progress bar.

    Returns:
        One line for a person.

    >>> embed_to_file("nowhere", Catalog("x", Path(), [], np.zeros(0, int), [], {}), "x.npz")
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no such folder
    """
    target: Path = durable.check(path)
    embedder = Embedder.load(model, choose(device))
    framing = embedder.framing
    store = PixelStore.build(catalog, cache, size=framing.size, resize=framing.resize, progress=progress)
    kept = np.flatnonzero(store.ok)
    vectors = embedder.embed(store, rows=kept, progress=progress).numpy()
    target.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        "embeddings": vectors,
        "labels": catalog.labels[kept],
        "classes": np.array(catalog.classes),
        "paths": np.array([catalog.paths[row] for row in kept]),
    }
    durable.write(target, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
    left = len(catalog) - len(kept)
    note = f"; {left:,} could not be read" if left else ""
    return f"wrote {len(kept):,} embeddings of {embedder.dim} dimensions to {target}{note}"
