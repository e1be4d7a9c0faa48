"""Trains the cells of a table one after another."""

import json
import os
import shutil
import signal
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from firstpage import __version__, durable
from firstpage.compare.cells import Cell, make_room
from firstpage.data.catalog import Catalog
from firstpage.data.framing import Framing
from firstpage.data.jpeg_store import open_pixels
from firstpage.data.splits import split_catalog, with_splits
from firstpage.errors import UserError, one_line
from firstpage.evaluation.clustering import cluster
from firstpage.models.device import resolve_device
from firstpage.models.embedder import Pixels, framing_of
from firstpage.recipes.recipe import Recipe
from firstpage.training.loop import fit
from firstpage.training.members import fit_members
from firstpage.training.result import Result
from firstpage.training.stopping import Stopped, StopSignals

_LONGEST = 1e9  # seconds that a timer takes, some thirty years


class CellTrainer:
    """Trains cells one after another, and keeps decoded pixels and compiled networks between them.

    Args:
        catalog: The data.
        folder: For `cells/`, one JSON file each, and `runs/`, the run folders of cells that were cut.
        device: A torch device. Defaults to a GPU if available.
        cache: Folder for decoded pixels. Defaults to the user's cache.
        keep: Keep the run folders of finished cells, with their models.
        clusters: Measure NMI and F1, too.
        progress: Show the progress of decoding, and of each training.
        quiet: Of decoding only.

    >>> from firstpage.compare.tables import Row
    >>> catalog = Catalog("x", Path(), ["a.jpg"], np.zeros(1, int), ["a"], {})
    >>> with CellTrainer(catalog, "results", device="cpu") as trainer:
    ...     trainer.train(Cell(Row("Margin", Recipe()), 0, "paper"), seconds=0.0)  # no time: it is cut
    """

    def __init__(
        self,
        catalog: Catalog,
        folder: str | os.PathLike[str],
        *,
        device: str | None = None,
        cache: str | os.PathLike[str] | None = None,
        keep: bool = False,
        clusters: bool = False,
        progress: bool = False,
        quiet: bool = False,
    ) -> None:
        self._catalog, self._folder, self._keep, self._clusters = catalog, Path(folder), keep, clusters
        self._target = resolve_device(device)
        self._stores = _Stores(catalog, cache, self._target, progress)
        self._options: dict[str, Any] = {"device": device, "cache": cache, "progress": progress and not quiet}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files of decoded pixels."""
        self._stores.close()

    def decode(self, cells: Iterable[Cell], seconds: float | None = None) -> None:
        """Decode the images as cells need them, where that was not done before, for some seconds at most."""
        end = None if seconds is None else time.monotonic() + max(0.0, seconds)
        try:
            with _stopping_at(end):
                for cell in cells:
                    with suppress(UserError):  # the cell itself will fail, and the others go on
                        self._stores.of(cell.recipe)
        except Stopped:
            if end is None or time.monotonic() < end:
                raise

    def train(self, cell: Cell, seconds: float | None = None) -> dict[str, Any] | None:
        """Train a cell, from where it was cut, and write its file.

        Args:
            cell: What to train.
            seconds: Cut it after so many, with a checkpoint.

        Returns:
            What was measured, or why it has failed; None if it was cut.

        Raises:
            Stopped: By another signal than the clock.
        """
        end = None if seconds is None else time.monotonic() + seconds
        if seconds is not None and seconds <= 0:
            return None
        run = self._folder / "runs" / cell.name
        began = time.monotonic()
        try:
            with _stopping_at(end):
                measured = self._measure(cell, run)
        except Stopped:
            if end is None or time.monotonic() < end:
                raise
            return None
        except UserError as error:  # such as a collapse that cannot be mended: the others go on
            measured = {"metrics": {}, "error": one_line(error)}
        measured["wall"] = round(
            time.monotonic() - began, 1
        )  # with evaluations; of the last piece, if it was cut
        self.write(cell, measured)
        if not self._keep:
            shutil.rmtree(run, ignore_errors=True)
            run.with_suffix(".id").unlink(missing_ok=True)
        return measured

    def write(self, cell: Cell, measured: dict[str, Any]) -> None:
        """Write the file of a cell."""
        about: dict[str, Any] = {"row": cell.row.name, "seed": cell.seed, "protocol": cell.protocol}
        about |= {"variant": cell.row.variant} if cell.row.variant else {}
        about |= {"identity": cell.identity(self._catalog), "data": self._catalog.name}
        about |= {"firstpage": __version__, "torch": torch.__version__, "device": _describe(self._target)}
        about |= {"recipe": cell.recipe.toml()} | measured
        path = make_room(cell, self._catalog, self._folder)
        durable.write(path, f"{json.dumps(about, indent=1)}\n".encode())

    def _measure(self, cell: Cell, run: Path) -> dict[str, Any]:
        marker, identity = run.with_suffix(".id"), cell.identity(self._catalog)
        if run.exists() and (not marker.is_file() or marker.read_text() != identity):
            shutil.rmtree(run)  # what is left of another recipe
        run.parent.mkdir(parents=True, exist_ok=True)
        durable.write(marker, identity.encode())
        pixels = self._stores.of(cell.recipe)
        catalog = _without_test(self._catalog) if cell.row.is_trial else self._catalog
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are in the result
            train = fit_members if cell.recipe.train.members > 1 else fit
            result = train(cell.recipe, catalog, run, pixels=pixels, **self._options)
        measured = _measured(result, cell)
        if self._clusters and not cell.row.is_trial:
            measured["metrics"] |= _cluster(result, cell, catalog, pixels)
        return measured


def _without_test(catalog: Catalog) -> Catalog:
    """Return a catalog whose tests are left out."""
    splits = with_splits(catalog).splits
    return replace(catalog, splits={name: splits[name] for name in ("train", "val") if name in splits})


class _Stores:
    """The decoded pixels of a dataset for each way of framing it, opened once and kept on the device."""

    def __init__(
        self,
        catalog: Catalog,
        cache: str | os.PathLike[str] | None,
        device: torch.device,
        progress: bool,
    ) -> None:
        self._catalog, self._cache, self._device, self._progress = catalog, cache, device, progress
        self._open: dict[tuple[Framing, str], Pixels] = {}
        self._stack = ExitStack()

    def close(self) -> None:
        self._stack.close()

    def of(self, recipe: Recipe) -> Pixels:
        framing = framing_of(recipe.model)
        key = (framing, recipe.train.store)
        if key not in self._open:
            opened = open_pixels(
                self._catalog, self._cache, framing, kind=recipe.train.store, progress=self._progress
            )
            self._open[key] = self._stack.enter_context(closing(opened)).to(self._device)
        return self._open[key]


def _measured(result: Result, cell: Cell) -> dict[str, Any]:
    best = cell.protocol == "paper" or cell.row.is_trial or result.test is None
    metrics = dict(result.best if best or result.test is None else result.test)
    model = result.model
    selected = {"selected": result.best[cell.recipe.train.select]} if cell.row.is_trial else {}
    return {
        "metrics": metrics,
        "error": "",
        **selected,
        "untrained": result.untrained,
        "epoch": result.epoch,
        "history": result.history,
        "seconds": round(result.seconds, 1),
        "images_per_second": round(result.images_per_second),
        "parameters": sum(value.numel() for value in model.parameters()),
        "dim": model.dim,
        "warnings": result.warnings,
    }


def _cluster(result: Result, cell: Cell, catalog: Catalog, pixels: Pixels) -> dict[str, float]:
    """Return how well clusters of the test images agree with their classes."""
    test = split_catalog(catalog, pixels.ok, cell.recipe.train).test
    if test is None:
        return {}
    rows = test.queries if test.gallery is None else np.concatenate((test.queries, test.gallery))
    vectors = result.model.embed(pixels, rows=rows, progress=False, half=cell.recipe.train.half)
    device = result.model.device
    return cluster(vectors.to(device), torch.from_numpy(catalog.labels[rows]).to(device)).metrics()


def _describe(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


@contextmanager
def _stopping_at(end: float | None) -> Iterator[None]:
    """At a time, send this process SIGTERM, which a training answers by a checkpoint and `Stopped`."""
    if end is None or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: object) -> None:
        handler = signal.getsignal(signal.SIGTERM)
        if not isinstance(getattr(handler, "__self__", None), StopSignals):  # between trainings
            raise Stopped("", signal.SIGALRM)
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, min(max(0.1, end - time.monotonic()), _LONGEST))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
