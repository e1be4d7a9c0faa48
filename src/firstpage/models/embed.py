"""The embeddings of a catalog, written to a file."""

import os
from pathlib import Path

import numpy as np

from firstpage import durable
from firstpage.data.catalog import Catalog
from firstpage.data.store import PixelStore
from firstpage.errors import UserError
from firstpage.models.device import resolve_device
from firstpage.models.embedder import Embedder


def embed_to_file(
    model: str | os.PathLike[str],
    catalog: Catalog,
    path: str | os.PathLike[str],
    *,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> str:
    """Embed the images of a catalog with a saved model, and write the vectors to an .npz file.

    The file holds `embeddings` [N, dim], `labels` [N], `classes` and `paths` [N], and is written completely
    or not at all. Images that cannot be decoded are left out, and counted in the summary. If an embedding is
    NaN or infinite, nothing is written.

    Args:
        model: Folder of a saved embedder, or of a run.
        catalog: The images.
        path: The file to write.
        device: `cuda` or `cpu`. Defaults to a GPU if available.
        cache: Folder for cached pixels. Defaults to the user's cache.
        progress: Show a progress bar.

    Returns:
        A summary in one line.

    Raises:
        FileNotFoundError: There is no such model.
        UserError: The file cannot be written, the model is not valid, or an embedding is not finite.

    >>> embed_to_file("nowhere", Catalog("x", Path(), [], np.zeros(0, int), [], {}), "x.npz")
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no such folder
    """
    target: Path = durable.check(path)
    embedder = Embedder.load(model, resolve_device(device))
    framing = embedder.framing
    store = PixelStore.build(catalog, cache, size=framing.size, resize=framing.resize, progress=progress)
    readable = np.flatnonzero(store.ok)
    vectors = embedder.embed(store, rows=readable, progress=progress)
    bad = np.flatnonzero(~vectors.sum(dim=1).isfinite().numpy())
    if len(bad):
        first = ", ".join(repr(catalog.paths[row]) for row in readable[bad[:3]])
        raise UserError(
            f"{model}: embeds {len(bad):,} of {len(readable):,} images as NaN or infinity, such as {first}: "
            "use a model that has not diverged; nothing was written"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        "embeddings": vectors.numpy(),
        "labels": catalog.labels[readable],
        "classes": np.array(catalog.classes),
        "paths": np.array([catalog.paths[row] for row in readable]),
    }
    durable.write(target, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
    unreadable = len(catalog) - len(readable)
    note = f"; {unreadable:,} could not be read" if unreadable else ""
    return f"wrote {len(readable):,} embeddings of {embedder.dim} dimensions to {target}{note}"
