"""The cells of a table, one training each: run what is missing, in pieces if asked to."""

import hashlib
import json
import os
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firstpage import __version__, durable
from firstpage._reading import read_json
from firstpage.compare.tables import Row, Table
from firstpage.data.catalog import Catalog
from firstpage.data.framing import Framing
from firstpage.data.jpeg_store import open_pixels
from firstpage.data.splits import split_catalog
from firstpage.errors import UserError, one_line
from firstpage.evaluation.clustering import cluster
from firstpage.models.device import resolve_device
from firstpage.models.embedder import Pixels
from firstpage.recipes.recipe import Recipe
from firstpage.runs.folder import fingerprint
from firstpage.training.loop import fit
from firstpage.training.members import fit_members
from firstpage.training.result import Result
from firstpage.training.stopping import Stopped

PROTOCOLS = ("paper", "fair")


@dataclass(frozen=True)
class Cell:
    """A training of a table.

    Args:
        row: The method.
        seed: Of the training.
        protocol: `paper` or `fair`.

    >>> Cell(Row("Margin", Recipe()), 2, "fair").name
    'margin-fair-2'
    """

    row: Row
    seed: int
    protocol: str

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.row.key}-{self.protocol}-{self.seed}"

    @property
    def recipe(self) -> Recipe:
        """How it is trained."""
        train = replace(self.row.recipe.train, seed=self.seed, protocol=self.protocol)
        return replace(self.row.recipe, train=train)

    def identity(self, catalog: Catalog) -> str:
        """Return a digest of the recipe and the data: a cell of another one is trained again."""
        text = json.dumps([self.recipe.toml(), fingerprint(catalog)])
        return hashlib.sha256(text.encode()).hexdigest()


def cells_of(table: Table, seeds: Sequence[int], protocols: Sequence[str]) -> list[Cell]:
    """Return the cells of a table: every method at the first seed, then at the next.

    Raises:
        UserError: There is no such protocol.

    >>> table = Table.of({"title": "Two", "row": [{"name": "RLL"}, {"name": "Margin"}]})
    >>> [cell.name for cell in cells_of(table, [0, 1], ["paper"])]
    ['rll-paper-0', 'margin-paper-0', 'rll-paper-1', 'margin-paper-1']
    """
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            raise UserError(f"protocol {protocol!r}: choose from {', '.join(PROTOCOLS)}")
    return [Cell(row, seed, protocol) for protocol in protocols for seed in seeds for row in table.rows]


def read_cell(cell: Cell, catalog: Catalog, folder: Path) -> dict[str, Any] | None:
    """Return what a finished cell has measured; None if it was not trained, or by another recipe or data.

    >>> from firstpage.data import Catalog
    >>> import numpy as np
    >>> catalog = Catalog("x", Path(), ["a.jpg"], np.zeros(1, int), ["a"], {})
    >>> read_cell(Cell(Row("Margin", Recipe()), 0, "paper"), catalog, Path("nowhere")) is None
    True
    """
    path = folder / "cells" / f"{cell.name}.json"
    if not path.is_file():
        return None
    table = read_json(path)
    if not isinstance(table, dict) or not {"identity", "metrics", "error"} <= table.keys():
        raise UserError(f"{path}: damaged: remove it, and it is measured again")
    return table if table["identity"] == cell.identity(catalog) else None


def run_cells(
    table: Table,
    catalog: Catalog,
    folder: str | os.PathLike[str],
    *,
    seeds: Sequence[int] = (0,),
    protocols: Sequence[str] = ("paper",),
    minutes: float | None = None,
    device: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    keep: bool = False,
    progress: bool = True,
    show: Callable[[str], None] = print,
) -> bool:
    """Train what is missing of a table. A finished cell is not trained again, a cut one is resumed.

    One that has failed is tried again after all others.

    Args:
        table: The methods.
        catalog: The data.
        folder: For `cells/`, one JSON file each, and `runs/`, the run folders of cells that were cut.
        seeds: Of the trainings.
        protocols: `paper`, `fair`, or both.
        minutes: Stop after so many, in the middle of a cell if need be; the next call goes on from there.
        device: A torch device. Defaults to a GPU if available.
        cache: Folder for decoded pixels. Defaults to the user's cache.
        keep: Keep the run folders of finished cells, with their models.
        progress: Show the progress of each training.
        show: Is given a line about each finished cell.

    Returns:
        Whether the table is complete.

    Raises:
        UserError: The data does not fit, or a file of a cell is damaged.
    """
    place, target = Path(folder), resolve_device(device)
    cells = cells_of(table, seeds, protocols)
    found = [(cell, read_cell(cell, catalog, place)) for cell in cells]
    missing = [cell for cell, done in found if done is None]
    missing += [cell for cell, done in found if done is not None and done["error"]]
    show(f"{len(cells)} trainings, {len(cells) - len(missing)} of them done")
    end = None if minutes is None else time.monotonic() + 60 * minutes
    with _Stores(catalog, cache, target, progress) as stores, _stopping_at(end):
        for number, cell in enumerate(missing):
            if end is not None and time.monotonic() >= end:
                return False
            began = time.monotonic()
            run = place / "runs" / cell.name
            try:
                result = _train(cell, catalog, run, stores, device=device, cache=cache, progress=progress)
                measured = _measured(result, cell)
                if {"NMI", "F1"} & set(table.metrics):
                    measured["metrics"] |= _cluster(result, cell, catalog, stores)
            except Stopped:
                if end is None or time.monotonic() < end:
                    raise
                show(
                    f"{cell.row.name}, seed {cell.seed}: cut after {minutes:g} minutes; run it again to go on"
                )
                return False
            except UserError as error:  # such as a collapse that cannot be mended: the others go on
                measured = {"metrics": {}, "error": one_line(error)}
            about = {"row": cell.row.name, "seed": cell.seed, "protocol": cell.protocol}
            about |= {"identity": cell.identity(catalog), "data": catalog.name, "firstpage": __version__}
            about |= {"torch": torch.__version__, "device": _describe(target), "recipe": cell.recipe.toml()}
            text = json.dumps(about | measured, indent=1)
            (place / "cells").mkdir(parents=True, exist_ok=True)
            durable.write(place / "cells" / f"{cell.name}.json", f"{text}\n".encode())
            if not keep:
                shutil.rmtree(run, ignore_errors=True)
            show(_line(number + 1, len(missing), cell, measured, time.monotonic() - began))
    return True


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

    def __enter__(self) -> "_Stores":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def of(self, recipe: Recipe) -> Pixels:
        framing = Framing(recipe.model.stored, recipe.model.resize)
        key = (framing, recipe.train.store)
        if key not in self._open:
            opened = open_pixels(
                self._catalog, self._cache, framing, kind=recipe.train.store, progress=self._progress
            )
            self._open[key] = self._stack.enter_context(closing(opened)).to(self._device)
        return self._open[key]


def _train(cell: Cell, catalog: Catalog, run: Path, stores: _Stores, **options: Any) -> Result:  # noqa: ANN401
    """Train a cell in its run folder, from where it was cut; what is left of another recipe is removed."""
    marker, identity = run.with_suffix(".id"), cell.identity(catalog)
    if run.exists() and (not marker.is_file() or marker.read_text() != identity):
        shutil.rmtree(run)
    run.parent.mkdir(parents=True, exist_ok=True)
    durable.write(marker, identity.encode())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are in the result
        train = fit_members if cell.recipe.train.members > 1 else fit
        return train(cell.recipe, catalog, run, pixels=stores.of(cell.recipe), **options)


def _measured(result: Result, cell: Cell) -> dict[str, Any]:
    metrics = dict(result.best if cell.protocol == "paper" or result.test is None else result.test)
    model = result.model
    return {
        "metrics": metrics,
        "error": "",
        "untrained": result.untrained,
        "epoch": result.epoch,
        "history": result.history,
        "seconds": round(result.seconds, 1),
        "images_per_second": round(result.images_per_second),
        "parameters": sum(value.numel() for value in model.parameters()),
        "dim": model.dim,
        "warnings": result.warnings,
    }


def _cluster(result: Result, cell: Cell, catalog: Catalog, stores: _Stores) -> dict[str, float]:
    """Return how well clusters of the test images agree with their classes."""
    pixels = stores.of(cell.recipe)
    test = split_catalog(catalog, pixels.ok, cell.recipe.train).test
    if test is None:
        return {}
    rows = test.queries if test.gallery is None else np.concatenate((test.queries, test.gallery))
    vectors = result.model.embed(pixels, rows=rows, progress=False, half=cell.recipe.train.half)
    device = result.model.device
    return cluster(vectors.to(device), torch.from_numpy(catalog.labels[rows]).to(device)).metrics()


def _line(number: int, count: int, cell: Cell, measured: dict[str, Any], seconds: float) -> str:
    left = f", about {seconds * (count - number) / 60:.0f} min left" if number < count else ""
    name = f"{number}/{count}  {cell.row.name}, seed {cell.seed}, {cell.protocol}: "
    if measured["error"]:
        return f"{name}{measured['error']}"
    paper = f" (paper {cell.row.paper['R@1']:.1f})" if "R@1" in cell.row.paper else ""
    shown = f"R@1 {measured['metrics']['R@1']:.1f}{paper}, MAP@R {measured['metrics']['MAP@R']:.1f}"
    return f"{name}{shown}; {seconds:.0f} s{left}"


def _describe(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


@contextmanager
def _stopping_at(end: float | None) -> Iterator[None]:
    """At a time, send this process SIGTERM, which a training answers by a checkpoint and `Stopped`."""
    if end is None or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: object) -> None:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # between trainings
            raise Stopped("", signal.SIGALRM)
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, end - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
