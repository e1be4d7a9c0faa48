"""The embeddings of a dataset, written to a file."""

import csv
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from firstpage import durable
from firstpage.data import read
from firstpage.data.catalog import Catalog
from firstpage.data.readers.layout import is_image
from firstpage.errors import UserError
from firstpage.runs.opening import open_run
from firstpage.runs.run_data import is_run_folder, read_data

DEFAULT = Path("embeddings.npz")


def embed_to_file(
    model: str | os.PathLike[str],
    catalog: Catalog,
    path: str | os.PathLike[str],
    *,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> str:
    """Embed the images of a catalog with the model of a run, or a saved one, and write them to a file.

    An .npz file holds `embeddings` [N, dim], `labels` [N], `classes`, `paths` [N] and `splits` [N]. A .csv or
    .parquet file has the columns `path`, `label` and `split`, and the embedding in columns `0`, `1`, … of the
    former and as a list `embedding` of the latter. Splits are those of the training, if the run was trained
    on the dataset; an image in several has their names with + between them. The file is written completely or
    not at all. Images that cannot be decoded are left out, and counted in the summary.

    Args:
        model: Folder of a saved embedder, or of a run.
        catalog: The images.
        path: The .npz, .csv or .parquet file to write.
        device: `cuda` or `cpu`. Defaults to a GPU if available.
        cache: Folder for cached pixels. Defaults to the user's cache.
        progress: Show a progress bar.

    Returns:
        A summary in one line.

    Raises:
        FileNotFoundError: There is no such model.
        UserError: The file cannot be written, the model is not valid, no image can be read, or an embedding
            is not finite.

    >>> embed_to_file("nowhere", Catalog("x", Path(), [], np.zeros(0, int), [], {}), "x.npz")
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no such folder
    """
    target = durable.check(path)
    write = _writer(target)
    run = open_run(model, catalog, device=device, cache=cache, progress=progress)
    readable = np.flatnonzero(run.pixels.ok)
    if not len(readable):
        reason = next(iter(run.pixels.unreadable.values()))
        raise UserError(f"{catalog.path(0)}: {reason}; none of {len(catalog):,} images can be read")
    vectors = run.embed(readable).cpu()
    bad = np.flatnonzero(~vectors.sum(dim=1).isfinite().numpy())
    if len(bad):
        first = ", ".join(repr(catalog.paths[row]) for row in readable[bad[:3]])
        raise UserError(
            f"{model}: embeds {len(bad):,} of {len(readable):,} images as NaN or infinity, such as {first}: "
            "use a model that has not diverged; nothing was written"
        )
    splits = np.full(len(catalog), "", object)
    for name, rows in run.splits.items():
        splits[rows] = [f"{before}+{name}" if before else name for before in splits[rows]]
    arrays = {
        "embeddings": vectors.numpy(),
        "labels": catalog.labels[readable],
        "classes": np.array(catalog.classes),
        "paths": np.array([catalog.paths[row] for row in readable]),
        "splits": splits[readable].astype(str),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    durable.write(target, lambda file: write(file, arrays))
    unreadable = len(catalog) - len(readable)
    note = f"; {unreadable:,} could not be read" if unreadable else ""
    return f"wrote {len(readable):,} embeddings of {run.model.dim} dimensions to {target}{note}"


def read_images(paths: Sequence[str], classes: str | None = None) -> Catalog:
    """Return the catalog of what is to be embedded: a dataset, labeled or not, or single images.

    Args:
        paths: A dataset, a run folder for its dataset, or images.
        classes: What makes a class in folders of images; see `firstpage.data.read`.

    Raises:
        FileNotFoundError: There is no such file.
        UserError: Several paths are not all images.

    >>> read_images(["nowhere.jpg"])
    Traceback (most recent call last):
    FileNotFoundError: nowhere.jpg: no such file
    """
    if len(paths) == 1 and is_run_folder(paths[0]):
        return read_data(None, paths[0], classes)
    files = [Path(path).expanduser() for path in paths]
    if len(files) == 1 and not is_image(files[0].name):
        return read(paths[0], classes=classes, unlabeled=True)
    for file in files:
        if not file.exists():
            raise FileNotFoundError(f"{file}: no such file")
        if not is_image(file.name) or not file.is_file():
            raise UserError(f"{file}: is not an image: give images only, or one folder or table")
    names = [os.path.abspath(file) for file in files]
    root = Path(os.path.dirname(names[0]) if len(names) == 1 else os.path.commonpath(names))
    relative = [Path(os.path.relpath(name, root)).as_posix() for name in names]
    return Catalog("images", root, relative, np.zeros(len(files), np.int64), ["images"], {})


def split_paths(paths: Sequence[str]) -> tuple[list[str], Path]:
    """Return what is to be embedded, and the file to write: the last of several paths, if it is none to read.

    >>> split_paths(["photos", "vectors.npz"]), split_paths(["photo.jpg"])
    ((['photos'], PosixPath('vectors.npz')), (['photo.jpg'], PosixPath('embeddings.npz')))
    """
    *images, last = paths
    if images and (Path(last).suffix.lower() in _WRITERS or not Path(last).is_file()):
        return images, Path(last)
    return list(paths), DEFAULT


def _write_npz(file: BinaryIO, arrays: dict[str, Any]) -> None:
    np.savez(file, **arrays)


def _write_csv(file: BinaryIO, arrays: dict[str, Any]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
    writer = csv.writer(text)
    writer.writerow(["path", "label", "split", *range(arrays["embeddings"].shape[1])])
    labels = arrays["classes"][arrays["labels"]]
    for path, label, split, vector in zip(
        arrays["paths"], labels, arrays["splits"], arrays["embeddings"], strict=True
    ):
        writer.writerow([path, label, split, *(f"{value:.9g}" for value in vector)])
    text.flush()
    text.detach()


def write_parquet(file: BinaryIO, arrays: dict[str, Any]) -> None:
    """Write embeddings into an open Parquet file, with the columns path, label, split and embedding.

    Args:
        file: The file.
        arrays: `embeddings` [N, dim], `labels` [N], `classes`, `paths` [N] and `splits` [N].

    >>> names = np.array(["a.jpg"])
    >>> arrays = {"embeddings": np.ones((1, 2), np.float32), "labels": np.zeros(1, int), "classes": names}
    >>> write_parquet(io.BytesIO(), arrays | {"paths": names, "splits": names})
    """
    import pyarrow
    from pyarrow.parquet import write_table

    count, dim = arrays["embeddings"].shape
    values = pyarrow.array(arrays["embeddings"].reshape(-1))
    columns = {
        "path": arrays["paths"],
        "label": arrays["classes"][arrays["labels"]],
        "split": arrays["splits"],
        "embedding": pyarrow.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32) * dim, values),
    }
    write_table(pyarrow.table(columns), file)


_WRITERS: dict[str, Callable[[BinaryIO, dict[str, Any]], None]] = {
    ".npz": _write_npz,
    ".csv": _write_csv,
    ".parquet": write_parquet,
}


def _writer(path: Path) -> Callable[[BinaryIO, dict[str, Any]], None]:
    """Return what writes a file, by its suffix."""
    suffix = path.suffix.lower()
    if suffix not in _WRITERS:
        raise UserError(f"{path}: embeddings are written as {', '.join(_WRITERS)}: choose one of these names")
    if suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise UserError(f"{path}: needs pyarrow: pip install firstpage[parquet]") from None
    return _WRITERS[suffix]
