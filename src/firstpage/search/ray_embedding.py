"""Embedding very many images on a Ray cluster, part by part.

Workers load the model once and embed parts of the images; this process writes each part to a Parquet file
when it is finished. A worker that dies costs the part it was at, which another one does again, and a run that
is killed goes on with the parts that are missing. Images are read by the workers: from any address that
fsspec knows, or from paths that all machines share.
"""

import hashlib
import json
import logging
import os
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from firstpage import durable
from firstpage._reading import read_json
from firstpage.data.catalog import Catalog
from firstpage.data.decode import ImageBytes, Unreadable, decode_image
from firstpage.data.progress import progress_bar
from firstpage.data.readers.layout import is_image
from firstpage.errors import UserError, one_line
from firstpage.models.embedder import Embedder
from firstpage.models.embedding_cache import model_fingerprint
from firstpage.runs.embedding_file import read_images, write_parquet

PART = 4096  # images
BATCH = 256  # images decoded at a time
RETRIES = 3  # times that a part is done again if its worker dies
PLAN = "_parts.json"  # readers of Parquet folders ignore names that begin like this


def read_addresses(path: str, classes: str | None = None) -> Catalog:
    """Return the catalog of what is to be embedded: local data, or a listing or folder at any fsspec address.

    Args:
        path: A dataset, such as a folder or a table whose paths may be addresses; a .txt file with an address
            or path in each line; or the address of a folder, such as `s3://bucket/photos`.
        classes: What makes a class in local folders; see `firstpage.data.read`.

    Raises:
        UserError: Nothing is there.

    >>> read_addresses("memory://nowhere")
    Traceback (most recent call last):
    firstpage.errors.UserError: memory://nowhere: no image there
    """
    if not path.endswith(".txt") and "://" not in path:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            catalog = read_images([path], classes)
        for warning in caught:  # what is at an address is not missing
            if not (
                " are missing, " in str(warning.message) and any("://" in name for name in catalog.paths)
            ):
                warnings.warn(str(warning.message), stacklevel=2)
        return catalog
    import fsspec  # type: ignore[import-untyped]

    try:
        if path.endswith(".txt"):
            with fsspec.open(path, "rt", encoding="utf-8") as file:
                addresses = [line.strip() for line in file if line.strip()]
        else:
            system, folder = fsspec.core.url_to_fs(path)
            found = [name for name in system.find(folder) if is_image(name)]
            addresses = sorted(system.unstrip_protocol(name) for name in found)
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"{path}: cannot be read ({one_line(error)})") from None
    if not addresses:
        raise UserError(f"{path}: no image there")
    labels = np.zeros(len(addresses), np.int64)
    return Catalog("listing", Path(), addresses, labels, ["images"], {})


def embed_on_ray(
    model: str | os.PathLike[str],
    catalog: Catalog,
    out: str | os.PathLike[str],
    *,
    address: str = "auto",
    part: int = PART,
    progress: bool = True,
) -> str:
    """Embed the images of a catalog on a Ray cluster into a folder of Parquet files, one for each part.

    The files have the columns of `firstpage embed`: path, label, split and embedding. Parts that are there
    already are not done again. Images that cannot be decoded are left out, and counted in the summary.

    Args:
        model: Folder of a saved embedder, or of a run.
        catalog: The images: see `read_addresses`.
        out: The folder to write, whose name ends in .parquet.
        address: Of the cluster: `auto` for the one of this machine (it is started if there is none), or such
            as `ray://HOST:10001`.
        part: Number of images in a part.
        progress: Show a progress bar.

    Returns:
        A summary in one line.

    Raises:
        UserError: Ray is not installed or not reached, the folder holds something else, or a part fails.

    >>> embed_on_ray("nowhere", Catalog("x", Path(), ["a.png"], np.zeros(1, int), ["a"], {}), "x.parquet")
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no such folder
    """
    target = Path(out)
    if target.suffix != ".parquet":
        raise UserError(
            f"{target}: --ray writes a folder of Parquet files: choose a name that ends in .parquet"
        )
    loaded = Embedder.load(model)
    if loaded.settings.boxes and catalog.boxes is not None:
        raise UserError(
            "--ray: embeds whole images, and this model takes them cut to their boxes: leave --ray away"
        )
    images = [_address(catalog, row) for row in range(len(catalog))]
    starts = range(0, len(images), part)
    _plan(target, model_fingerprint(loaded), images, part)
    todo = [number for number in range(len(starts)) if not _file(target, number).exists()]
    left_out = 0
    if todo:
        rows = {number: np.arange(starts[number], min(starts[number] + part, len(images))) for number in todo}
        items = [(number, [images[row] for row in rows[number]]) for number in todo]
        splits: dict[int, str] = {}
        for name, members in catalog.splits.items():
            splits |= {row: f"{splits[row]}+{name}" if row in splits else name for row in members.tolist()}
        with (
            ray_cluster(address) as ray,
            progress_bar("embedding", sum(map(len, rows.values())), progress) as advance,
        ):
            for done in _run(ray, loaded, items):
                _write(_file(target, done.part), catalog, rows[done.part], splits, done)
                left_out += int((~done.ok).sum())
                advance(len(done.ok))
    note = f"; {left_out:,} could not be read" if left_out else ""
    resumed = f", {len(starts) - len(todo):,} of them were there" if len(todo) < len(starts) else ""
    return f"wrote {len(images):,} images in {len(starts):,} parts{resumed} to {target}{note}"


def read_parts(folder: str | os.PathLike[str], catalog: Catalog) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a catalog that `embed_on_ray` could embed, and their vectors [N, D].

    >>> read_parts("nowhere", Catalog("x", Path(), ["a.png"], np.zeros(1, int), ["a"], {}))
    Traceback (most recent call last):
    FileNotFoundError: nowhere: no parts there
    """
    from pyarrow.parquet import read_table

    files = sorted(Path(folder).glob("part-*.parquet"))
    if not files:
        raise FileNotFoundError(f"{folder}: no parts there")
    numbered = iter(enumerate(catalog.paths))  # in which the parts are in order, some images left out
    rows, vectors = [], []
    for file in files:
        table = read_table(file)
        paths = table["path"].to_pylist()
        rows.append(
            np.array([next(row for row, name in numbered if name == path) for path in paths], np.int64)
        )
        flat = table["embedding"].combine_chunks().flatten().to_numpy()
        vectors.append(flat.reshape(len(rows[-1]), -1) if len(rows[-1]) else flat.reshape(0, 0))
    filled = [part for part in vectors if len(part)]
    return np.concatenate(rows), np.concatenate(filled) if filled else np.zeros((0, 0), np.float32)


def embed_for_index(
    model: str | os.PathLike[str], catalog: Catalog, index: str | os.PathLike[str], *, address: str = "auto"
) -> tuple[Catalog, np.ndarray]:
    """Embed the images of a new index on a Ray cluster, into parts in a folder beside it.

    Args:
        model: Folder of a saved embedder, or of a run.
        catalog: The images; files that all machines share.
        index: The folder of the index; the parts are in INDEX.parquet, and can be removed when it is built.
        address: Of the cluster; see `embed_on_ray`.

    Returns:
        The images that can be read, and their vectors.

    Raises:
        UserError: As `embed_on_ray`; or images are not files, which an index needs.

    >>> embed_for_index("m", Catalog("x", Path(), ["s3://a/b.jpg"], np.zeros(1, int), ["a"], {}), "index")
    Traceback (most recent call last):
    firstpage.errors.UserError: s3://a/b.jpg: an index needs files: firstpage embed --ray embeds addresses
    """
    remote = next((path for path in catalog.paths if "://" in path), None)
    if remote is not None:
        raise UserError(f"{remote}: an index needs files: firstpage embed --ray embeds addresses")
    parts = f"{os.fspath(index)}.parquet"
    embed_on_ray(model, catalog, parts, address=address)
    rows, vectors = read_parts(parts, catalog)
    return catalog.take(rows), vectors


class Embedded(NamedTuple):
    """A part that was embedded.

    Attributes:
        part: Its number.
        ok: [N] Which of its images could be decoded.
        vectors: [M, dim] Of those that could.
        worker: The process that did it.

    >>> Embedded(3, np.array([True, False]), np.ones((1, 4)), 4711).part
    3
    """

    part: int
    ok: np.ndarray
    vectors: np.ndarray
    worker: int


class Worker:
    """Embeds parts; there is one for each GPU of the cluster, or for each core if there is none.

    Args:
        files: The files of a saved embedder, by name.
        gpu: Use the GPU that Ray assigns.

    >>> model = Embedder.create(backbone="small", dim=4, stored=48)
    >>> with TemporaryDirectory() as folder:
    ...     _ = model.save(folder)
    ...     worker = Worker({path.name: path.read_bytes() for path in Path(folder).iterdir()})
    >>> worker.embed(0, ["nowhere.png"]).ok
    array([False])
    """

    def __init__(self, files: dict[str, bytes], gpu: bool = False) -> None:
        if not gpu:
            torch.set_num_threads(1)  # there is a worker for each core
        with TemporaryDirectory() as folder:
            for name, content in files.items():
                durable.write(Path(folder, name), content)
            self._model = Embedder.load(folder, "cuda" if gpu else "cpu")

    def ready(self) -> None:
        """Return when the model is loaded."""

    def embed(self, part: int, images: Sequence[str]) -> Embedded:
        """Embed the images of a part that can be decoded."""
        ok, vectors = np.zeros(len(images), bool), []
        with ThreadPoolExecutor(8) as threads:  # an address may take long to answer
            for start in range(0, len(images), BATCH):
                decoded = list(threads.map(self._decode, images[start : start + BATCH]))
                ok[start : start + BATCH] = [one is not None for one in decoded]
                pictures = [one for one in decoded if one is not None]
                vectors.append(self._model.embed(pictures, progress=False))
        return Embedded(part, ok, torch.cat(vectors).numpy(), os.getpid())

    def _decode(self, address: str) -> Image.Image | None:
        """Return an image; None if it cannot be decoded."""
        least = 2 * max(self._model.framing.least)  # as the stores decode
        try:
            if "://" not in address:
                return decode_image(address, min_side=least)
            import fsspec

            with fsspec.open(address, "rb") as file:
                return decode_image(ImageBytes(file.read(), address), min_side=least)
        except (Unreadable, OSError):
            return None


def _address(catalog: Catalog, row: int) -> str:
    path = catalog.paths[row]
    return path if "://" in path else os.path.abspath(os.path.join(catalog.root, path))


def _file(folder: Path, number: int) -> Path:
    return folder / f"part-{number:06d}.parquet"


def _plan(folder: Path, model: str, images: Sequence[str], part: int) -> None:
    """Write what the parts are of, or check that those that are there are of the same."""
    digest = hashlib.blake2b("\0".join(images).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    plan = {"version": 1, "model": model, "images": digest, "count": len(images), "part": part}
    remedy = "choose another name, or remove it"
    if (folder / PLAN).exists():
        if read_json(folder / PLAN) != plan:
            raise UserError(f"{folder}: holds parts of another model or of other images: {remedy}")
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: holds something else: {remedy}")
    durable.check(folder / PLAN)
    folder.mkdir(parents=True, exist_ok=True)
    durable.write(folder / PLAN, json.dumps(plan).encode())


@contextmanager
def ray_cluster(address: str) -> Iterator[Any]:
    """Connect to a cluster, or start one on this machine; at the end disconnect from it.

    Args:
        address: See `embed_on_ray`.

    Raises:
        UserError: Ray is not installed, or the cluster cannot be reached.

    >>> with ray_cluster("auto") as ray:  # doctest: +SKIP
    ...     ray.cluster_resources()["CPU"]
    2.0
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import pyarrow  # noqa: F401 - before anything is embedded
        import ray
    except ImportError as error:
        raise UserError(f"--ray: needs {error.name}: pip install 'firstpage[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    quiet: Any = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        try:
            ray.init(address=address, **quiet)
        except ConnectionError:
            if address != "auto":
                raise
            ray.init(include_dashboard=False, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(f"--ray {address}: cannot be reached ({one_line(error)})") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _run(ray: Any, model: Embedder, items: list[tuple[int, list[str]]]) -> Iterator[Embedded]:  # noqa: ANN401
    """Yield the results of parts as they are finished."""
    with TemporaryDirectory() as folder:
        model.save(folder)
        files = ray.put({path.name: path.read_bytes() for path in Path(folder).iterdir()})
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    kind = ray.remote(**({"num_gpus": 1} if gpus else {"num_cpus": 1}))(Worker)
    waiting, deaths, failures = (
        deque(items),
        Counter[int](),
        (ray.exceptions.RayActorError, ray.exceptions.RayTaskError),
    )
    running: dict[Any, tuple[Any, tuple[int, list[str]] | None]] = {}  # what a worker is at; None: it starts

    def start() -> None:
        worker = kind.remote(files, bool(gpus))
        running[worker.ready.remote()] = worker, None

    for _ in range(max(1, min(gpus or int(resources.get("CPU", 1)), len(items)))):
        start()
    while waiting or any(item is not None for _, item in running.values()):
        [ready], _ = ray.wait(list(running), num_returns=1)
        worker, item = running.pop(ready)
        number = -1 if item is None else item[0]
        try:
            done = ray.get(ready)
        except failures as error:
            deaths[number] += 1
            if deaths[number] > RETRIES or isinstance(error, ray.exceptions.RayTaskError):
                what = (
                    "a worker does not start"
                    if item is None
                    else f"the part that begins with {item[1][0]} fails"
                )
                raise UserError(
                    f"--ray: {what} ({one_line(error)}): finished parts are kept; run it again to go on"
                ) from error
            if item is not None:
                waiting.appendleft(item)
            start()
            continue
        if waiting:
            item_next = waiting.popleft()
            running[worker.embed.remote(*item_next)] = worker, item_next
        if item is not None:
            yield done


def _write(file: Path, catalog: Catalog, rows: np.ndarray, splits: dict[int, str], done: Embedded) -> None:
    """Write a finished part."""
    chosen = rows[done.ok]
    bad = np.flatnonzero(~np.isfinite(done.vectors).all(axis=1))
    if len(bad):
        raise UserError(
            f"{catalog.paths[chosen[bad[0]]]}: is embedded as NaN or infinity: use a model that has not "
            "diverged"
        )
    arrays = {
        "embeddings": done.vectors,
        "labels": catalog.labels[chosen],
        "classes": np.array(catalog.classes),
        "paths": np.array([catalog.paths[row] for row in chosen], dtype=np.str_),
        "splits": np.array([splits.get(row, "") for row in chosen.tolist()], dtype=np.str_),
    }
    durable.write(file, lambda opened: write_parquet(opened, arrays))
