"""Embeddings that were computed before, so that evaluations, reports and figures embed each image once.

A file holds the embeddings of one model, in one precision, of images of one pixel store. Its name is a digest
of the weights and settings, of the store, which is named after the content of its images, and of whatever
else the values depend on. It begins with a line of JSON: the numbers of images and dimensions and a digest of
the rest, which is the rows (int64) and their vectors (float32).
"""

import hashlib
import json
import os
import platform
import warnings
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import firstpage
from firstpage import durable
from firstpage.data.cache import cache_folder
from firstpage.data.jpeg_store import JpegStore
from firstpage.data.store import PixelStore
from firstpage.models.device import use_half
from firstpage.models.embedder import Embedder

VERSION = 1  # of the files, and of how a network computes: a change of either embeds everything anew
LIMIT = 10**9  # bytes of all files together
_HEADER = 200  # bytes of the first line, at most

Rows = NDArray[np.int64]


def embed_cached(
    model: Embedder,
    store: PixelStore | JpegStore,
    rows: Rows,
    *,
    cache: str | os.PathLike[str] | None = None,
    half: bool | None = None,
    flip: bool = False,
    progress: bool = True,
) -> Tensor:
    """Embed images, except those that this model has embedded before.

    At most `LIMIT` bytes are kept; what was not used for longest is removed. The embeddings of a backbone of
    your own are not kept, since its code may change.

    Args:
        model: The model.
        store: The images.
        rows: Rows of the store to embed.
        cache: Folder of cached pixels; embeddings are kept in its folder `embeddings`. Defaults to the user's
            cache.
        half: Whether the network runs in bfloat16; see `Embedder.embed`.
        flip: Whether to average over mirror images; see `Embedder.embed`.
        progress: Whether to show progress.

    Returns:
        Unit vectors [len(rows), D], float32 on the CPU.

    >>> import tempfile
    >>> from PIL import Image
    >>> from firstpage.data import Catalog
    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (60, 80)).save(Path(folder, "a.png"))
    ...     catalog = Catalog("toy", Path(folder), ["a.png"], np.zeros(1, int), ["a"], {})
    ...     store = PixelStore.build(catalog, folder, size=48, progress=False)
    ...     for _ in range(2):
    ...         vectors = embed_cached(model, store, np.arange(1), cache=folder, progress=False)
    >>> vectors.shape
    torch.Size([1, 4])
    """
    half = use_half(model.device, half)
    backbone = model.settings.backbone
    if ":" in backbone and not backbone.startswith("timm:"):
        return model.embed(store, rows=rows, progress=progress, half=half, flip=flip)
    folder = cache_folder() / "embeddings" if cache is None else Path(cache, "embeddings")
    file = folder / f"{_digest(model, store, half, flip)}.bin"
    known, vectors = _read(file, len(store), model.dim)
    places = np.full(len(store), -1)
    places[known] = np.arange(len(known))
    missing = rows[places[rows] < 0]
    if len(missing):
        new = model.embed(store, rows=missing, progress=progress, half=half, flip=flip)
        known, vectors = np.concatenate([known, missing]), torch.cat([vectors, new])
        places[known] = np.arange(len(known))
        if new.isfinite().all():
            _write(file, known, vectors)
    else:
        with suppress(OSError):  # of a folder that cannot be written
            os.utime(file)
    return vectors[torch.from_numpy(places[rows])]


def _digest(model: Embedder, store: PixelStore | JpegStore, half: bool, flip: bool) -> str:
    """Return a digest of everything that the embeddings depend on."""
    about = {
        "version": [VERSION, firstpage.__version__, torch.__version__],
        "store": store.path.name,
        "model": model_fingerprint(model),
        "half": half,
        "device": [model.device.type, platform.machine()],
    }
    if flip:
        about["flip"] = True
    if model.settings.backbone.startswith("timm:"):
        with suppress(PackageNotFoundError):
            about["timm"] = version("timm")
    return hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16).hexdigest()


def model_fingerprint(model: Embedder) -> str:
    """Return a digest of the settings and weights of an embedder, which decide its vectors.

    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> model_fingerprint(model) == model_fingerprint(model)
    True
    """
    return _fingerprint(asdict(model.settings) | {"weights": None}, model)


def backbone_fingerprint(model: Embedder) -> str:
    """Return a digest of what decides the pooled features of an image: all of a model but its head.

    >>> narrow, wide = (Embedder.create(backbone="small", dim=dim, stored=48) for dim in (4, 8))
    >>> narrow.backbone = wide.backbone
    >>> backbone_fingerprint(narrow) == backbone_fingerprint(wide)
    True
    """
    names = ("backbone", "options", "pooling", "stages", "stored", "resize", "crop")
    return _fingerprint({name: getattr(model.settings, name) for name in names}, model.backbone)


def _fingerprint(settings: dict[str, object], network: nn.Module) -> str:
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16)
    for name, tensor in network.state_dict().items():
        digest.update(f"\0{name} {tensor.dtype} {list(tensor.shape)}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read(file: Path, images: int, dim: int) -> tuple[Rows, Tensor]:
    """Return the rows and vectors of a file; none if there is no file, or if it is damaged."""
    nothing = np.zeros(0, np.int64), torch.zeros(0, dim)
    try:
        with durable.open_regular(file, LIMIT) as opened:
            about = json.loads(opened.readline(_HEADER))
            count = int(about["rows"])
            rows = np.frombuffer(opened.read(8 * count), "<i8")
            content = np.frombuffer(bytearray(opened.read()), "<f4")
        vectors = torch.from_numpy(content.reshape(count, dim))
        whole = _content_digest(rows, vectors) == about["digest"]
        if (
            not whole
            or len(np.unique(rows)) < len(rows)
            or (rows.size and not 0 <= rows.min() <= rows.max() < images)
        ):
            raise ValueError("it does not have its checksum")
    except FileNotFoundError:
        return nothing
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        warnings.warn(f"{file}: the kept embeddings are damaged; embedding the images again", stacklevel=3)
        return nothing
    return rows, vectors


def _write(file: Path, rows: Rows, vectors: Tensor) -> None:
    """Keep embeddings, and remove the oldest files beyond the limit. What cannot be written is not kept."""
    size = _HEADER + rows.nbytes + vectors.nbytes
    if size > LIMIT:
        return
    header = {"rows": len(rows), "dim": vectors.shape[1], "digest": _content_digest(rows, vectors)}

    def fill(opened: BinaryIO) -> None:
        opened.write(f"{json.dumps(header)}\n".encode())
        opened.write(rows.astype("<i8").data)
        opened.write(vectors.numpy().astype("<f4", copy=False).data)

    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        durable.write(file, fill)
        others = [(path.stat().st_mtime, path) for path in file.parent.glob("*.bin") if path != file]
        total = file.stat().st_size
        for _, path in sorted(others, reverse=True):
            total += path.stat().st_size
            if total > LIMIT:
                path.unlink()


def _content_digest(rows: Rows, vectors: Tensor) -> str:
    digest = hashlib.blake2b(np.ascontiguousarray(rows, "<i8").data, digest_size=16)
    digest.update(np.ascontiguousarray(vectors.numpy(), "<f4").data)
    return digest.hexdigest()
